"""What a feed may do, and what the screen says to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from accelctl.errors import AccelError
from accelctl.model.snapshot import Gone, Snapshot, key
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.record import Recorder
from accelctl.telemetry.replay import ReplayFeed
from accelctl.tui import frame
from accelctl.tui.app import Top
from accelctl.tui.lines import plain
from accelctl.tui.pump import Delivery, Pump
from accelctl.tui.state import MOST_EVENTS, state_for
from tests import snapkit
from tests.tui.kit import Ticks, state_of


class Failing(Ticks):
    def __init__(self, error: Exception) -> None:
        super().__init__([snapkit.snapshot()])
        self.error = error

    def poll(self, timeout_s: float) -> Snapshot | None:
        if self.next:
            raise self.error
        return super().poll(timeout_s)


def shown_when(feed: Feed, there: Callable[[Top], bool]) -> str:
    """The screen as soon as something is so."""

    async def run() -> str:
        app = Top(state_for(feed), partial(Pump, feed), styles=True)
        try:
            async with app.run_test(size=(110, 30)) as pilot:
                for _ in range(400):
                    if there(app):
                        return "\n".join(plain(line) for line in app.pane.lines)
                    await pilot.pause(0.02)
                raise AssertionError("it did not come")
        finally:
            app.close()

    return asyncio.run(run())


def test_a_feed_that_ends_with_a_message_is_told_and_the_numbers_stay() -> None:
    feed = Failing(AccelError("slow.jsonl: recording ended (no space left on device)", kind="os_error"))
    text = shown_when(feed, lambda app: bool(app.state.problem))
    assert "▲ slow.jsonl: recording ended (no space left on device)" in text
    assert "0000:03:00.0" in text
    assert feed.closed == 1


def test_a_mistake_in_a_feed_ends_it_in_order() -> None:
    feed = Failing(KeyError("a mistake"))
    with pytest.raises(KeyError, match="a mistake"):
        shown_when(feed, lambda app: app.failure is not None)
    assert feed.closed == 1


def recorded(file: Path, ticks: int, cut: int = 0) -> ReplayFeed:
    recorder = Recorder(str(file), str)
    for snapshot in snapkit.recording(ticks, devices=2, processes=2):
        recorder.add(snapshot)
    recorder.close()
    if cut:
        file.write_bytes(file.read_bytes()[:-cut])
    return ReplayFeed(str(file), speed=1000)


def test_the_end_of_a_recording_is_told(tmp_path: Path) -> None:
    text = shown_when(recorded(tmp_path / "x.jsonl", 5), lambda app: app.state.ended)
    assert "end of the recording" in text


def test_a_recording_that_breaks_off_says_so(tmp_path: Path) -> None:
    text = shown_when(recorded(tmp_path / "x.jsonl", 5, cut=30), lambda app: app.state.ended)
    assert "▲ the last line is incomplete and was left out" in text


class TestPump:
    """Without a screen."""

    def test_it_waits_until_a_delivery_was_taken(self) -> None:
        feed, got = Ticks(list(snapkit.recording(5))), list[Delivery]()
        pump = Pump(feed, got.append)
        pump._step()
        assert len(got) == 1
        assert not pump._free.is_set()
        pump.taken()
        pump._step()
        assert [one.snapshots[0].taken_ns for one in got] == [at(0), at(1)]

    def test_a_jump_brings_what_was_before_it(self) -> None:
        feed, got = Ticks(list(snapkit.recording(300)), seekable=True), list[Delivery]()
        pump = Pump(feed, got.append)
        pump._step()
        pump.taken()
        pump.jump(200.0)
        pump.jump(50.0)
        pump._step()
        assert got[-1].anew
        assert [one.taken_ns for one in got[-1].snapshots] == [at(tick) for tick in range(130, 251)]
        pump.taken()
        pump._step()
        assert got[-1].snapshots[0].taken_ns == at(251)

    def test_a_jump_stops_at_the_ends(self) -> None:
        feed, got = Ticks(list(snapkit.recording(10)), seekable=True), list[Delivery]()
        pump = Pump(feed, got.append)
        pump._step()
        for seconds, tick in ((-100.0, 0), (1000.0, 9), (-4.0, 5)):
            pump.taken()
            pump.jump(seconds)
            pump._step()
            assert got[-1].snapshots[-1].taken_ns == at(tick)

    def test_a_jump_in_a_stopped_recording_does_not_let_it_run_on(self) -> None:
        feed, got = Ticks(list(snapkit.recording(300)), seekable=True), list[Delivery]()
        pump = Pump(feed, got.append)
        pump._step()
        pump.taken()
        pump.hold(True)
        pump.jump(200.0)
        pump._step()
        assert got[-1].snapshots[-1].taken_ns == at(200)
        assert not pump._go.is_set()
        pump.taken()
        pump.jump(-100.0)
        assert pump._go.is_set()
        pump._step()
        assert got[-1].snapshots[-1].taken_ns == at(100)
        pump.taken()
        pump.hold(False)
        pump._step()
        assert got[-1].snapshots[-1].taken_ns == at(101)

    def test_a_jump_that_waits_is_made_although_it_was_stopped_then(self) -> None:
        feed, got = Ticks(list(snapkit.recording(300)), seekable=True), list[Delivery]()
        pump = Pump(feed, got.append)
        pump._step()
        pump.jump(200.0)
        pump.hold(True)
        assert pump._go.is_set()

    def test_closing_twice_is_safe_and_closes_the_feed(self) -> None:
        feed = Ticks([])
        pump = Pump(feed, lambda delivery: None)
        pump.start()
        pump.close()
        assert feed.closed == 1
        assert not pump._thread.is_alive()


def at(tick: int) -> int:
    return snapkit.START_NS + tick * snapkit.SECOND_NS


class TestState:
    """What is remembered."""

    def test_sources_and_absences_are_those_told_last(self) -> None:
        """All come whenever one has changed: hours of processes that come and go must not pile up."""
        state = state_of(1, 2, 1)
        name = key("devices", snapkit.device_id(0), "power_mw")
        state.take(replace(snapkit.snapshot(tick=1), sources={}, absences={name: Gone("timed_out")}))
        assert state.sources == {}
        assert list(state.absences) == [name]
        state.take(replace(snapkit.snapshot(tick=2), sources={}, absences={}))
        assert list(state.absences) == [name]

    def test_events_are_bounded_and_keep_their_numbers(self) -> None:
        state = state_of(1, 2, 1)
        for tick in range(1, 20 * MOST_EVENTS, 20):
            state.take(snapkit.snapshot(tick=tick + 4, processes=0))
        assert len(state.events) == MOST_EVENTS
        assert state.events[-1][0] == state.heard - 1

    def test_the_chosen_row_stays_chosen_when_others_come(self) -> None:
        state = state_of(1, 2, 8)
        state.screen, state.place.row = 4, "1003@40051"
        state.take(
            replace(snapkit.snapshot(tick=1, processes=8), processes=snapkit.snapshot(processes=8).processes[2:])
        )
        assert state.row().pid == 1003
        state.take(snapkit.snapshot(tick=2, processes=2))
        moment = state.moment()
        assert moment is not None
        assert state.row() == state.rows(moment)[0]


def text_of(screen: int, **more: int) -> str:
    state = state_of(**more)  # type: ignore[arg-type]
    state.screen = screen
    return "\n".join(plain(line) for line in frame.draw(state, 160, 50))


def test_what_is_not_attributed_is_said_with_its_size() -> None:
    """MON-07, in the words of the text report."""
    assert "2 processes not readable; 300 MiB of 7698.7 MiB not attributed" in text_of(0)


def test_a_sleeping_device_is_shown_as_asleep() -> None:
    """MON-05: no sensor errors, one word."""
    (row,) = [line for line in text_of(0).splitlines() if line.startswith("  0000:04:00.0")]
    assert row.split()[3:] == ["asleep", "asleep", "asleep", "asleep", "asleep", "asleep", "0", "–"]


def test_a_hung_source_is_named_with_its_path_and_its_wait_channel() -> None:
    line = next(line for line in text_of(0).splitlines() if "has hung" in line)
    assert "▲ hwmon 0000:06:00.0 has hung for 29 s, tried again in 1 s" in line
    assert "/sys/devices/pci0000:00/0000:06:00.0/hwmon/hwmon3/power1_input (wait_for_completion)" in line


def test_many_hung_sources_leave_room_for_the_rest() -> None:
    state = state_of(40, 32, 4)
    lines = [plain(line) for line in frame.draw(state, 80, 24)]
    assert [line[:30] for line in lines if "▲" in line][:2] == [
        " ▲ hwmon 0000:06:00.0 has hung",
        " ▲ and 7 more: hwmon 0000:0a:0",
    ]
    assert lines[4].startswith("  DEVICE")


def test_a_leak_is_named_with_its_slope() -> None:
    """snapkit: pid 1002 holds 1 MiB more a second on each of two devices."""
    (row,) = [line for line in text_of(4).splitlines() if " 1002  ollama" in line]
    assert "▲ leak? +120 MiB/min" in row
    assert "leak?" not in text_of(4, leak_pid=0)


def test_a_leak_in_a_session_is_seen_in_its_pool_and_in_its_address_space() -> None:
    """snapkit: the session holds 1 MiB more a second, and its space of 1 GiB has 945 MiB left."""
    (pool,) = [line for line in text_of(1).splitlines() if line.startswith("  sim:0 session 7")]
    assert "▲ +60.0 MiB/min" in pool
    (space,) = [line for line in text_of(3).splitlines() if line.startswith("  sim:0 session 7")]
    assert "▲ +60.0 MiB/min" in space
    assert "in 15 min 45 s" in space


def test_a_stuck_process_has_a_sign_and_a_word() -> None:
    (row,) = [line for line in text_of(4).splitlines() if " 1005  trainer" in line]
    assert "✗ stuck" in row


def test_simulated_is_always_in_sight() -> None:
    for screen in range(6):
        assert "partly simulated" in text_of(screen).splitlines()[0]


def test_the_filter_knows_what_probe_found() -> None:
    """Nodes and PCI numbers are not in a Snapshot."""
    from accelctl.model.device import Device
    from accelctl.model.reading import Reading
    from accelctl.tui.wanted import parse

    found = Device("0000:03:00.0", "physical", "")
    found.facts = {
        "nodes/renderD128/path": Reading("/dev/dri/renderD128", "dev"),
        "pci/vendor_id": Reading("0x1002", "vendor"),
    }
    snapshot = snapkit.snapshot(devices=4)
    for text in ("renderD128", "vendor=0x1002", "drm:renderD128", "kind=physical,vendor=1002"):
        assert [device.id for device in parse(text).of(snapshot, [found]).devices][:1] == ["0000:03:00.0"]
    assert parse("renderD128").of(snapshot).devices == ()


def test_a_filter_leaves_what_belongs_to_it_in_every_table() -> None:
    from accelctl.tui.wanted import parse

    snapshot = snapkit.snapshot(devices=4, processes=8, simulated=True)
    seen = parse("session=7").of(snapshot)
    ids = [[row.id for row in seen.pools], [row.id for row in seen.queues], [row.id for row in seen.spaces]]
    assert ids == [["sim:0 session 7"]] * 3
    assert seen.processes == ()
    seen = parse("pid=1002").of(snapshot)
    assert [row.id for row in seen.spaces] == ["0000:06:00.0 pid 1002"]
    assert [one.pid for one in seen.processes] == [1002]
    assert parse("").of(snapshot) is snapshot
