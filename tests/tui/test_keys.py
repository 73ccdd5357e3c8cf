"""Every key, through Textual's pilot, on the screen that it is for."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from accelctl.model.snapshot import PoolLevel, ProcessLevel, Snapshot
from accelctl.telemetry.history import History
from accelctl.tui.app import Arrived, Top
from accelctl.tui.detail import detail
from accelctl.tui.lines import plain
from accelctl.tui.moment import Moment
from accelctl.tui.pump import Delivery, Pump
from accelctl.tui.screens import NAMES
from accelctl.tui.signs import signs_for
from accelctl.tui.state import DETAIL, HELP, TABLE
from tests import snapkit
from tests.tui.kit import Ticks, state_of

Steps = Callable[[Top, Pilot[int]], Coroutine[Any, Any, None]]


def drive(
    steps: Steps, *, size: tuple[int, int] = (100, 30), feed: Ticks | None = None, devices: int = 4, processes: int = 8
) -> Top:
    """An app with 60 ticks in it; ``steps`` press keys and look."""
    state = state_of(devices=devices, processes=processes)
    feed = feed or Ticks([])
    state.seekable = feed.seekable

    async def run() -> Top:
        app = Top(state, partial(Pump, feed), styles=True)
        async with app.run_test(size=size) as pilot:
            app.redraw()
            await pilot.pause()
            await steps(app, pilot)
        app.close()
        return app

    return asyncio.run(run())


def text(app: Top) -> str:
    return "\n".join(plain(line) for line in app.pane.lines)


def test_numbers_that_stand_still_tell_their_age() -> None:
    """A sampler that is stopped, say: a clock that stands still is easily overlooked."""

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        app._look()
        assert " old " not in text(app)
        app._came -= 12
        app._look()
        assert "12 s old" in text(app)
        assert app.state.newest is not None
        await pilot.press("2")
        assert "12 s old" in text(app)
        app.on_arrived(Arrived(Delivery((app.state.newest,))))
        assert " old " not in text(app)
        app._came -= 12
        app.state.seekable = True
        app._look()
        assert " old " not in text(app)

    drive(steps)


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl+c", 130)])
def test_quit(key: str, status: int) -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press(key)

    assert drive(steps).return_value == status


def test_numbers_and_tab_change_the_screen() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        for number, name in enumerate(NAMES):
            await pilot.press(str(number + 1))
            assert app.state.view.name == name
            assert f"[{number + 1} {app.state.view.title}]" in text(app)
        await pilot.press("tab")
        assert app.state.view.name == NAMES[0]
        await pilot.press("shift+tab")
        assert app.state.view.name == NAMES[-1]

    drive(steps)


def test_up_and_down_choose_a_row_and_stop_at_the_ends() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5", "down", "j")
        pids = by_memory(app)
        assert app.state.row().pid == pids[2]
        await pilot.press("up", "k", "k")
        assert app.state.row().pid == pids[0]
        await pilot.press("end", "down")
        assert app.state.row().pid == pids[-1]
        await pilot.press("home")
        assert app.state.row().pid == pids[0]

    drive(steps)


def test_the_chosen_row_is_always_in_sight() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5", "end")
        pids = by_memory(app)
        assert f"▸    {pids[-1]}" in text(app)
        await pilot.press("pageup")
        assert f"▸    {pids[-11]}" in text(app)
        await pilot.press("home")
        assert f"▸    {pids[0]}" in text(app)

    drive(steps, size=(80, 24), processes=64)


def by_memory(app: Top) -> list[int]:
    """Processes as they stand before anybody sorts them: who holds most is first."""
    assert app.state.snapshot is not None
    rows = app.state.snapshot.processes
    return [one.pid for one in sorted(rows, key=lambda one: -sum(size for _, _, size in one.memory))]


def test_enter_opens_a_row_and_escape_closes_it() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        assert app.state.over == DETAIL
        assert "213,941 mW (214 W)" in text(app)
        assert "from /sys/devices/pci0000:00/0000:03:00.0/hwmon/hwmon3/power1_input" in text(app)
        await pilot.press("escape")
        assert app.state.over == TABLE

    drive(steps, size=(100, 50))


def test_an_absence_says_why_and_what_to_type() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("down", "enter")
        assert "because reading it would wake a sleeping device: runtime_status is suspended" in text(app)
        assert "try: echo on > /sys/devices/pci0000:00/0000:04:00.0/power/control" in text(app)

    drive(steps, size=(100, 50))


def test_a_long_text_scrolls() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        assert "findings" not in text(app)
        await pilot.press("end")
        assert "warn PCI-LINK-WIDTH" in text(app)

    drive(steps, size=(80, 24))


def test_help_names_every_key() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        assert app.state.over == HELP
        shown = text(app)
        for words in ("Enter", "Space", "Ctrl-C", "PgUp", "--no-mouse", "reset", "OSC 52"):
            assert words in shown
        await pilot.press("question_mark")
        assert app.state.over == TABLE

    drive(steps, size=(100, 50))


def test_s_sorts_by_one_column_after_the_other_and_shift_s_turns_it_round() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5")
        while app.state.place.column != "MEMORY":
            await pilot.press("s")
        assert "sorted by memory" in text(app)
        rows = app.state.rows(app.state.moment())  # type: ignore[arg-type]
        held = [sum(size for _, _, size in row.memory) for row in rows]
        assert held == sorted(held, reverse=True)
        await pilot.press("S")
        rows = app.state.rows(app.state.moment())  # type: ignore[arg-type]
        assert [sum(size for _, _, size in row.memory) for row in rows] == sorted(held)
        assert "MEMORY▲" in text(app)

    drive(steps)


def test_what_has_no_number_is_last_in_both_directions() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        while app.state.place.column != "POWER":
            await pilot.press("s")
        for _ in range(2):
            rows = app.state.rows(app.state.moment())  # type: ignore[arg-type]
            assert [row.power_mw is None for row in rows] == [False, True, True, True, True]
            await pilot.press("S")

    drive(steps)


def test_z_gives_the_whole_body_to_the_table() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("5")
        sixteenth = f" {by_memory(app)[15]} "
        assert sixteenth not in text(app)
        await pilot.press("z")
        assert sixteenth in text(app)
        await pilot.press("z")
        assert sixteenth not in text(app)

    drive(steps, size=(80, 24), processes=64, devices=2)


def test_filter_by_device_process_and_session() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        for typed, devices, processes in (
            ("driver=xe", ["0000:04:00.0"], []),
            ("03:00.0", ["0000:03:00.0"], [1000, 1002, 1003, 1005, 1006]),
            ("pid=1002", ["0000:03:00.0", "0000:06:00.0"], [1002]),
            ("session=7", ["sim:0"], []),
            ("sim:0 driver=xe", ["0000:04:00.0", "sim:0"], []),
        ):
            await pilot.press("slash", "ctrl+u", *typed, "enter")
            seen = app.state.moment().snapshot  # type: ignore[union-attr]
            assert sorted(device.id for device in seen.devices) == devices, typed
            assert [one.pid for one in seen.processes] == processes, typed
            assert f"only {typed}" in text(app)
        await pilot.press("escape")
        assert len(app.state.moment().snapshot.devices) == 5  # type: ignore[union-attr]

    drive(steps)


def test_letters_in_the_filter_are_no_keys() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"sim:0", "enter")
        assert app.state.wanted.text == "sim:0"
        await pilot.press("slash", "q", "backspace", "backspace", "1")
        assert "filter: sim:1_" in text(app)
        await pilot.press("escape")
        assert app.state.wanted.text == "sim:0"
        assert "filter:" not in text(app)

    assert drive(steps).return_value is None


def test_pasting_into_the_filter_takes_one_line() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        app.post_message(Paste("driver=xe\n"))
        await pilot.pause()
        assert app.state.asked is None
        await pilot.press("slash")
        app.post_message(Paste("driver=xe\nsim:0\n"))
        await pilot.pause()
        assert app.state.asked == "driver=xe sim:0"

    drive(steps)


def test_a_filter_that_is_none_says_why_and_changes_nothing() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"pid=x", "enter")
        assert "filter not taken: pid=x: a number belongs after pid=" in text(app)
        assert app.state.wanted.text == ""

    drive(steps)


def test_a_filter_that_fits_nothing_says_so() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"driver=none", "enter")
        assert "Nothing here is driver=none. Esc takes the filter away." in text(app)

    drive(steps)


def test_space_stops_the_picture_and_not_the_history() -> None:
    more = list(snapkit.recording(63, 1002, devices=4, processes=8, simulated=True))[60:]

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        before = app.state.snapshot
        await pilot.press("space")
        for one in more:
            app.state.take(one)
        app.redraw()
        assert app.state.snapshot is before
        assert "stopped 3 s ago" in text(app)
        await pilot.press("space")
        assert app.state.snapshot is more[-1]
        assert len(app.state.past.values("devices/0000:03:00.0/busy_ratio")) == 63

    drive(steps)


def test_left_and_right_wind_a_stopped_recording_and_it_stays_there() -> None:
    feed = Ticks(list(snapkit.recording(400, devices=2, processes=2)), "recording x", seekable=True)
    feed.next = 300

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.state.snapshot is not None and app.state.snapshot.taken_ns >= at(300))
        await pilot.press("space")
        await until(pilot, lambda: not app._pump._go.is_set())
        await pilot.pause(0.3)
        app._pump._first_ns = feed.snapshots[0].monotonic_ns
        here = round((app._pump._at_ns - app._pump._first_ns) / snapkit.SECOND_NS)
        await pilot.press("left")
        await until(pilot, lambda: tick_of(app) == here - 10)
        read = feed.next
        await pilot.pause(0.3)
        assert feed.next == read
        assert tick_of(app) == here - 10
        # what was before it is in the charts
        assert len(app.state.past.values("devices/0000:03:00.0/busy_ratio")) > 100

    drive(steps, feed=feed)


def at(tick: int) -> int:
    return snapkit.START_NS + tick * snapkit.SECOND_NS


def tick_of(app: Top) -> int:
    assert app.state.snapshot is not None
    return (app.state.snapshot.taken_ns - snapkit.START_NS) // snapkit.SECOND_NS


async def until(pilot: Pilot[int], there: Callable[[], bool]) -> None:
    for _ in range(200):
        if there():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come")


def test_seeking_where_nothing_was_recorded_says_what_to_type() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("left")
        assert "accelctl top --record FILE" in text(app)

    drive(steps)


def test_y_sends_the_row_to_the_terminal_and_claims_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        written: list[str] = []
        monkeypatch.setattr(app._driver, "write", written.append)
        await pilot.press("y")
        codes = [code for code in written if code.startswith("\x1b]52;c;")]
        assert len(codes) == 1
        copied = base64.b64decode(codes[0].removeprefix("\x1b]52;c;").removesuffix("\a")).decode()
        assert "213,941 mW" in copied
        assert "sent to terminal" in text(app)

    drive(steps)


def test_nothing_that_is_copied_has_control_characters() -> None:
    """Whoever pastes it into a shell would run it."""
    evil = "a\x1b[201~\nrm -rf ~\n"
    pool = PoolLevel(id="p", device="g", owner=evil, ops=((evil, 2, 1),))
    process = ProcessLevel(pid=1, started=1, name=evil, devices=(evil,), memory=((evil, evil, 5),))
    moment = Moment(Snapshot(taken_ns=1, pools=(pool,), processes=(process,)), History(), signs_for(True), {}, {}, ())
    for table, row in (("pools", pool), ("processes", process)):
        for line in detail(moment, table, row, 120):
            assert plain(line).isprintable()


def test_w_writes_the_screen_to_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.press("w")
        (file,) = tmp_path.iterdir()
        assert f"written to {file.name}" in text(app)
        assert "0000:03:00.0" in file.read_text()

    drive(steps)


def test_clicks_choose_tabs_and_rows() -> None:
    async def steps(app: Top, pilot: Pilot[int]) -> None:
        await pilot.click(app.pane, offset=(17, 1))
        assert app.state.view.name == "memory"
        line = next(y for y, shown in enumerate(app.pane.lines) if "sim:0" in plain(shown))
        await pilot.click(app.pane, offset=(10, line))
        assert app.state.row().id == "sim:0 session 7"

    drive(steps)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5), (300, 100)])
@pytest.mark.parametrize(("devices", "processes"), [(1, 1), (32, 64), (0, 0)])
def test_every_screen_fits_any_size(size: tuple[int, int], devices: int, processes: int) -> None:
    """Exactly as many lines as there are, each exactly as wide as the screen."""
    from accelctl.render.layout import line_cells
    from accelctl.tui import frame

    for unicode in (True, False):
        state = state_of(8, devices, processes, unicode=unicode, simulated=devices > 1)
        for screen in range(len(NAMES)):
            state.screen = screen
            for over in (TABLE, HELP, DETAIL):
                state.over = over
                lines = frame.draw(state, *size)
                assert len(lines) == size[1]
                assert {line_cells(line) for line in lines} == {size[0]}
                assert unicode or all(plain(line).isascii() for line in lines)


def test_before_the_first_numbers_it_says_that_it_waits() -> None:
    async def run() -> str:
        from accelctl.telemetry.history import History
        from accelctl.tui.signs import signs_for
        from accelctl.tui.state import State

        app = Top(State(History(), signs_for(True), "this machine"), partial(Pump, Ticks([])), styles=True)
        async with app.run_test() as pilot:
            await pilot.press("2", "down", "enter", "s", "y", "space")
            shown = text(app)
        app.close()
        return shown

    assert "waiting for the first numbers" in asyncio.run(run())
