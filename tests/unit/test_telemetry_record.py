"""Recordings: what was written comes back, at any moment; what is damaged is said in one line."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.accept.recorded import recorded
from accelctl.errors import AccelError, UsageError
from accelctl.model import snapshotjson
from accelctl.model.snapshot import EventMark, Gone, Snapshot, SourceLevel
from accelctl.telemetry.record import Recorder, header
from accelctl.telemetry.replay import ReplayFeed
from tests import snapkit
from tests.feedkit import Listed

QUICK = 1e9
"""A speed at which nothing waits."""


def as_it_is(text: str) -> str:
    return text


def write(file: Path, ticks: int = 20, **options: int) -> list[Snapshot]:
    made = list(snapkit.recording(ticks, devices=5, simulated=True, **options))
    recorder = Recorder(str(file), as_it_is)
    for one in made:
        recorder.add(one)
    recorder.close()
    return made


def played(file: Path) -> list[Snapshot]:
    feed = ReplayFeed(str(file), speed=QUICK)
    try:
        return [found for _ in range(len(feed)) if (found := feed.poll(1.0)) is not None]
    finally:
        feed.close()


def without_why(snapshot: Snapshot) -> dict[str, object]:
    found = snapshotjson.plain(snapshot)
    del found["sources"], found["absences"]
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_every_snapshot_is_itself_again(sparse: bool) -> None:
    for made in snapkit.recording(30, devices=8, processes=12, simulated=True, leak_pid=1003):
        assert snapshotjson.read(json.loads(json.dumps(snapshotjson.plain(made, sparse=sparse)))) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"taken_ns": None}, "snapshot.taken_ns: a whole number of 64 bits is expected, not null"),
        ({"taken_ns": True}, "not True"),
        ({"taken_ns": 1 << 64}, "64 bits"),
        ({"devices": {}}, "snapshot.devices: a list is expected, not an object"),
        ({"devices": [{}]}, "snapshot.devices[0]: id is missing"),
        ({"devices": [{"id": "a"}, {"id": "b", "power_mw": "12"}]}, "devices[1].power_mw: a number"),
        ({"devices": [{"id": "a", "power_mw": float("nan")}]}, "a number is expected"),
        ({"devices": [{"id": "\ud800"}]}, "text is expected"),
        ({"devices": [{"id": "a", "findings": [["warn"]]}]}, "findings[0]: a list of 2 values"),
        ({"absences": {"k": {"kind": 1}}}, "absences['k'].kind: text"),
        ({"rockets": []}, "no field is called 'rockets'"),
        ({"cost": {"reads": 1.5}}, "cost.reads: a whole number"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        snapshotjson.read({"taken_ns": 1, **change})
    assert said in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_recording_plays_what_was_recorded(tmp_path: Path, name: str) -> None:
    made = write(tmp_path / name)
    found = played(tmp_path / name)
    assert [without_why(one) for one in found] == [without_why(one) for one in made]
    assert all(one.sources == made[0].sources and one.absences == made[0].absences for one in found)


def test_sources_are_written_once_and_a_repeat_is_not(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "a"), as_it_is)
    first = snapkit.snapshot(tick=0)
    for _ in range(3):
        recorder.add(first)
    recorder.close()
    lines = (tmp_path / "a").read_text().splitlines()
    assert json.loads(lines[0]) == header()
    assert ["sources" in json.loads(line) for line in lines[1:]] == [True, False, False]


def test_sources_that_change_hold_from_there_on(tmp_path: Path) -> None:
    name, other = "devices/a/power_mw", "devices/a/fan_rpm"
    a, b = {name: "first", other: "same"}, {name: "second"}
    recorder = Recorder(str(tmp_path / "a"), as_it_is)
    for tick, sources in enumerate([a, {}, b, {}]):
        recorder.add(Snapshot(taken_ns=tick, monotonic_ns=tick * 10**9, sources=sources))
    recorder.close()
    written = [json.loads(line).get("sources") for line in (tmp_path / "a").read_text().splitlines()[1:]]
    assert written == [a, None, b, None]
    feed = ReplayFeed(str(tmp_path / "a"))
    assert [getattr(feed.seek(at), "sources", None) for at in (3, 1, 2, 0)] == [a | b, a, a | b, a]
    feed.close()


def test_a_number_that_comes_back_has_a_source_and_no_absence(tmp_path: Path) -> None:
    name = "devices/a/power_mw"
    gone = Gone("asleep")
    recorder = Recorder(str(tmp_path / "a"), as_it_is)
    recorder.add(Snapshot(taken_ns=0, absences={name: gone}))
    recorder.add(Snapshot(taken_ns=1, monotonic_ns=1, sources={name: "file"}))
    recorder.add(Snapshot(taken_ns=2, monotonic_ns=2, absences={name: gone}))
    recorder.close()
    found = [(one.sources, one.absences) for one in played(tmp_path / "a")]
    assert found == [({}, {name: gone}), ({name: "file"}, {}), ({}, {name: gone})]


def test_seek_finds_the_last_one_at_or_before(tmp_path: Path) -> None:
    made = write(tmp_path / "a", ticks=10)
    feed = ReplayFeed(str(tmp_path / "a"), speed=QUICK)
    for seconds, tick in ((0, 0), (-5, 0), (3.0, 3), (3.99, 3), (9, 9), (1e9, 9)):
        found = feed.seek(seconds)
        assert found is not None
        assert (found.taken_ns, feed.position_s) == (made[tick].taken_ns, tick)
    assert feed.duration_s == 9
    assert feed.ended
    assert feed.poll(0) is None
    feed.seek(4)
    following = feed.poll(1)
    assert following is not None
    assert following.taken_ns == made[5].taken_ns
    back = feed.step(-2)
    assert back is not None
    assert back.taken_ns == made[3].taken_ns
    feed.close()


def test_pace_is_that_of_the_recording_times_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", ticks=4)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    feed = ReplayFeed(str(tmp_path / "a"), speed=2.0)
    times = []
    while not feed.ended:
        if feed.poll(0.1) is not None:
            times.append(round(now[0] - 100.0, 3))
    assert times == [0.0, 0.5, 1.0, 1.5]
    feed.close()


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_killed_writer_loses_one_line_at_most(tmp_path: Path, name: str) -> None:
    """A child records without end and is killed; what it had finished is there."""
    file, reading, writing = tmp_path / name, *os.pipe()
    child = os.fork()
    if child == 0:
        try:
            recorder = Recorder(str(file), as_it_is)
            for made in snapkit.recording(100_000, devices=4):
                recorder.add(made)
                os.write(writing, b".")
        finally:
            os._exit(1)
    os.close(writing)
    done = 0
    while done < 50:
        done += len(os.read(reading, 4096))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 4096):
        done += len(more)
    os.close(reading)
    feed = ReplayFeed(str(file), speed=QUICK)
    assert done <= len(feed) <= done + 1
    feed.close()


def test_a_cut_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    write(tmp_path / "a", ticks=5)
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole[:-40])
    feed = ReplayFeed(str(tmp_path / "a"))
    assert (len(feed), feed.notes) == (4, ("the last line is incomplete and was left out",))
    feed.close()


def _with_line(whole: bytes, number: int, line: bytes) -> bytes:
    lines = whole.splitlines(keepends=True)
    return b"".join([*lines[:number], line, *lines[number + 1 :]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda whole: b"", "not a recording of accelctl"),
        (lambda whole: b"\x7fELF\x02\x01\x01\x00" * 100, "not a recording of accelctl"),
        (lambda whole: b'{"schema": "someone.else/1"}\n', "not a recording of accelctl"),
        (lambda whole: b"[]\n", "not a recording of accelctl"),
        (lambda whole: b"[" * 100_000, "not a recording of accelctl"),
        (lambda whole: whole.replace(b"recording/1", b"recording/7", 1), "accelctl.recording/7"),
        (lambda whole: whole.replace(b"snapshot/1", b"snapshot/9", 1), "accelctl.snapshot/9"),
        (lambda whole: whole.splitlines(keepends=True)[0], "it holds no Snapshot"),
        (lambda whole: _with_line(whole, 3, b"{broken\n"), "line 4 is damaged"),
        (lambda whole: _with_line(whole, 3, b"\xff\xfe\n"), "line 4 is damaged"),
        (lambda whole: _with_line(whole, 3, b'{"taken_ns": NaN}\n'), "line 4 is damaged"),
        (lambda whole: _with_line(whole, 3, b'{"taken_ns": 5, "monotonic_ns": 1}\n'), "line 4 is older"),
        (lambda whole: _with_line(whole, 3, b'{"taken_ns": "now"}\n'), "line 4 has no time"),
        (lambda whole: _with_line(whole, 1, b'{"taken_ns": 5, "devices": 7}\n'), "Snapshot 1.devices: a list"),
        (lambda whole: gzip.compress(b"hello"), "not a recording of accelctl"),
        (lambda whole: gzip.compress(whole)[:10], "not a recording of accelctl"),
    ],
)
def test_bad_files_are_one_usage_error(tmp_path: Path, make: object, said: str) -> None:
    write(tmp_path / "good", ticks=5)
    assert callable(make)
    (tmp_path / "bad").write_bytes(make((tmp_path / "good").read_bytes()))
    with pytest.raises(UsageError) as caught:
        ReplayFeed(str(tmp_path / "bad"))
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_files_that_cannot_be_read_or_made(tmp_path: Path) -> None:
    write(tmp_path / "a", ticks=1)
    for file in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError):
            ReplayFeed(str(file))
    for file in (tmp_path / "a", tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(UsageError):
            Recorder(str(file), as_it_is)
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError):
            ReplayFeed(str(tmp_path / "a"), speed=speed)


def test_a_recording_from_a_pipe(tmp_path: Path) -> None:
    made = write(tmp_path / "a", ticks=3)
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "a").read_bytes())
    os.close(writing)
    found = played(Path(f"/dev/fd/{reading}"))
    os.close(reading)
    assert [one.taken_ns for one in found] == [one.taken_ns for one in made]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), packed=st.booleans())
def test_mutated_bytes_are_an_error_or_a_recording(tmp_path: Path, data: st.DataObject, packed: bool) -> None:
    file = tmp_path / "base"
    if not file.exists():
        write(file, ticks=4)
    whole = bytearray(file.read_bytes())
    if packed:
        whole = bytearray(gzip.compress(bytes(whole), 1, mtime=0))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "drop", "insert"]))
        if kind == "set":
            whole[at] = data.draw(st.integers(0, 255))
        elif kind == "cut" and at:
            del whole[at:]
        elif kind == "drop" and len(whole) > 40:
            del whole[at : at + data.draw(st.integers(1, 30))]
        else:
            whole[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    (tmp_path / "bad").write_bytes(bytes(whole))
    try:
        found = played(tmp_path / "bad")
    except UsageError as error:
        assert "\n" not in error.message  # noqa: PT017 - either outcome is right
    else:
        assert all(isinstance(one, Snapshot) for one in found)


def test_damage_in_the_middle_of_a_good_file_is_an_event(tmp_path: Path) -> None:
    write(tmp_path / "a", ticks=4)
    bad = b'{"taken_ns": 7, "monotonic_ns": 5001000000000, "devices": 7}\n'
    (tmp_path / "a").write_bytes(_with_line((tmp_path / "a").read_bytes(), 2, bad))
    found = played(tmp_path / "a")
    assert len(found) == 4
    (event,) = found[1].events
    assert (event.kind, event.level, event.at_ns) == ("source", "error", 7)
    assert "Snapshot 2.devices" in event.text


def test_a_recording_holds_no_names_of_people_or_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "marlene.q")
    host = os.uname().nodename
    text = f"fault on {host} by marlene.q, mail marlene.q@example.org, /home/marlene.q/run, 10.1.2.3, aa:bb:cc:dd:ee:0f"
    made = Snapshot(
        taken_ns=1,
        events=(EventMark(at_ns=1, kind="fault", device="0000:03:00.0", level="error", text=text),),
        health=(SourceLevel(id="service unix:/home/marlene.q/s", path="/home/marlene.q/s"),),
        sources={"devices/0000:03:00.0/power_mw": "/sys/devices/pci0000:00/0000:03:00.0/hwmon/hwmon3/power1_input"},
        processes=snapkit.snapshot().processes,
    )
    feed = recorded(Listed([made]), str(tmp_path / "a"))
    assert feed.poll(0) == made
    feed.close()
    written = (tmp_path / "a").read_text()
    for secret in ("marlene", "10.1.2.3", "aa:bb:cc:dd:ee:0f", "example.org", *([host] if len(host) > 2 else [])):
        assert secret not in written
    assert "/sys/devices/pci0000:00/0000:03:00.0/hwmon/hwmon3/power1_input" in written
    assert '"name":"trainer"' in written


def test_a_recording_that_cannot_go_on_is_an_event_and_the_feed_goes_on(tmp_path: Path) -> None:
    class Full(Listed):
        def poll(self, timeout_s: float) -> Snapshot | None:
            return snapkit.snapshot(tick=1)

    feed = recorded(Full([snapkit.snapshot()]), str(tmp_path / "a"))
    first = feed.poll(0)
    feed.recorder._raw.close()  # what a write then says is as good as a full disk
    second, third = feed.poll(0), feed.poll(0)
    assert first == third == snapkit.snapshot(tick=1)
    assert second is not None
    assert [(one.level, "recording ended" in one.text) for one in second.events] == [("error", True)]
    assert feed.failed == second.events[0].text
    feed.close()


def test_a_full_disk_ends_the_recording_in_one_line(tmp_path: Path) -> None:
    file, made = tmp_path / "a", snapkit.snapshot(devices=8)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
            recorder = Recorder(str(file), as_it_is)
            try:
                for _ in range(100):
                    recorder.add(made)
            except AccelError as error:
                code = 0 if "recording ended" in error.message and str(file) in error.message else 2
            recorder.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    feed = ReplayFeed(str(file))
    assert len(feed) > 0
    assert feed.notes
    feed.close()
