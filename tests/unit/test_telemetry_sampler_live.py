"""The live feed: devices as probe lists them, a driver that hangs, devices that come and go, and what the kernel
says."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelctl.abi.rooms import all_rooms
from accelctl.abi.telemetry import Draft
from accelctl.errors import UsageError
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree
from accelctl.hal.udev import Device as UdevDevice
from accelctl.model.device import Device
from accelctl.model.snapshot import EventMark, ProcessLevel, Snapshot
from accelctl.probes.events import Fault
from accelctl.probes.filters import AnyOf, parse_filters
from accelctl.telemetry import events as happenings
from accelctl.telemetry.events import KernelLog, Uevents, kind_of
from accelctl.telemetry.live import LiveFeed, only
from accelctl.telemetry.source import Source
from tests.eventkit import BDF, GPU, Script, plugged
from tests.synthetic import make_machine
from tests.telemetrykit import health, nothing_left, texts, tick, until

CARD = "0000:01:00.0"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def feeds() -> Iterator[list[LiveFeed]]:
    """Feeds to be closed."""
    found: list[LiveFeed] = []
    yield found
    for one in found:
        one.close()
        one.close()


def feed(root: str | SysRoot, wanted: AnyOf | None = None) -> LiveFeed:
    return LiveFeed(root, wanted, period_s=0.02, budget=0, deadline_s=0.3)


class Slow(DirTree):
    """A captured machine in which a FIFO is read like a driver's file: it answers when it likes."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.name = "slow"  # no folder: files are not kept open past this

    def read(self, path: str, limit: int) -> bytes:
        real = self._prefix + self.resolve(path)
        if not Path(real).is_fifo():
            return super().read(path, limit)
        fd = os.open(real, os.O_RDONLY)
        try:
            return os.read(fd, 6)
        finally:
            os.close(fd)


def test_devices_and_their_numbers(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 3)
    feeds.append(feed(str(tmp_path)))
    assert (feeds[0].title, feeds[0].seekable, feeds[0].devices) == (f"captured machine {tmp_path}", False, None)
    (first, *_) = until(feeds[0], lambda one: True)
    assert [one.id for one in first.devices] == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    one = first.devices[0]
    assert (one.driver, one.chip, one.power_state, one.asleep) == ("amdgpu", "amdgpu", "active", False)
    assert (one.temperature_celsius, one.power_mw, one.fan_rpm, one.clock_hz) == (41.0, 18000.0, 0, 500_000_000)
    assert (one.memory_total_bytes, one.memory_used_bytes, one.busy_ratio) == (25753026560, 28000256, 0.0)
    assert first.sources[f"devices/{CARD}/power_mw"].endswith("/hwmon/hwmon0/power1_average")
    assert {level.state for level in first.health} == {"ok"}
    assert {"power states", "sensors", "chip amdgpu", "PCIe errors"} <= {level.id for level in first.health}
    assert feeds[0].poll(0) is None or feeds[0].seek(1) is None


def test_findings_stand_beside_their_device(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 2)
    (tmp_path / "sys/devices/pci0000:00/0000:00:00.0" / CARD / "aer_dev_fatal").write_text("DLP 1\nTOTAL_ERR_FATAL 1\n")
    feeds.append(feed(str(tmp_path)))
    last = until(feeds[0], lambda one: one.devices[0].findings)[-1]
    assert ("critical", "PCI-AER-FATAL") in last.devices[0].findings
    assert last.devices[0].findings[0][0] == "critical"
    assert not [sign for sign in last.devices[1].findings if sign[1] == "PCI-AER-FATAL"]


def test_only_what_was_asked_for(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 3)
    feeds.append(feed(str(tmp_path), parse_filters(["pci:02:00.0"])))
    (first, *_) = until(feeds[0], lambda one: True)
    assert [one.id for one in first.devices] == ["0000:02:00.0"]
    assert {pool.device for pool in first.pools} == {"0000:02:00.0"}


def test_what_is_no_device_of_a_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="sim:0: not a device of this machine"):
        feed("/", parse_filters(["sim:0"]))
    with pytest.raises(UsageError, match="no such file or folder"):
        feed("/nowhere/at/all")


def test_the_filter_takes_out_rows_of_others() -> None:
    draft = Draft()
    draft.level("a", "open_files", 1, "x")
    draft.level("b", "open_files", 1, "x")
    draft.events = [EventMark(at_ns=0, kind="aer", device=name, level="warn", text=name) for name in ("a", "b", "")]
    only(["a"])(draft)
    assert list(draft.devices) == ["a"]
    assert [one.text for one in draft.events] == ["a", ""]


def test_of_a_process_only_what_it_holds_of_the_devices_asked_for() -> None:
    draft = Draft()
    draft.processes = [
        ProcessLevel(
            pid=1, started=1, name="job", shared_with=(2,), devices=("a", "b"),
            memory=(("a", "vram", 1), ("b", "vram", 40)), engines=(("a", "gfx", 0.5), ("b", "gfx", 1.0)),
            files=(("", 1), ("a", 2), ("b", 3)), mapped=(("a", 4096), ("b", 8192)),
        ),
    ]  # fmt: skip
    only(["a"])(draft)
    assert draft.processes == [
        ProcessLevel(
            pid=1, started=1, name="job", shared_with=(2,), devices=("a",), memory=(("a", "vram", 1),),
            engines=(("a", "gfx", 0.5),), files=(("a", 2),), mapped=(("a", 4096),),
        ),
    ]  # fmt: skip


def test_a_sensor_that_hangs_leaves_the_others(
    feeds: list[LiveFeed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelctl.telemetry.sampler.FIRST_S", 0.5)
    make_machine(tmp_path, 2)
    sensor = tmp_path / "sys/devices/pci0000:00/0000:00:00.0" / CARD / "hwmon/hwmon0/temp1_input"
    sensor.unlink()
    os.mkfifo(sensor)
    feeds.append(feed(SysRoot(Slow(str(tmp_path)))))
    seen = until(feeds[0], lambda one: health(one, "sensors") == "quarantined")
    last = until(feeds[0], lambda one: True)[-1]
    (held,) = [level for level in last.health if level.state == "quarantined"]
    assert held.path == str(sensor.relative_to(tmp_path))
    assert any(f"{held.path} did not come back while devices were listed" in text for text in texts(seen))
    card, other = last.devices
    assert (card.temperature_celsius, card.power_mw, other.temperature_celsius) == (None, 18000.0, 41.0)
    assert seen[-1].absences[f"devices/{CARD}/temperature_celsius"].kind == "timed_out"
    writer = os.open(sensor, os.O_RDWR)
    try:
        os.write(writer, b"43000\n" * 600)
        back = until(feeds[0], lambda one: one.devices[0].temperature_celsius == 43.0)
        assert health(back[-1], "sensors") == "ok"
    finally:
        os.close(writer)


def test_devices_that_come_are_sampled(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    feeds.append(feed(str(tmp_path)))
    until(feeds[0], lambda one: len(one.devices) == 1)
    make_machine(tmp_path, 2)
    assert feeds[0]._sampler is not None
    feeds[0]._sampler.stale = True  # as a source tells it
    last = until(feeds[0], lambda one: len(one.devices) == 2)[-1]
    assert last.devices[1].temperature_celsius == 41.0
    shutil.rmtree(tmp_path / "sys/devices/pci0000:00/0000:00:01.0")
    for name in ("bus/pci/devices/0000:02:00.0", "class/drm/card1", "class/drm/renderD129"):
        (tmp_path / "sys" / name).unlink()
    feeds[0]._sampler.stale = True
    until(feeds[0], lambda one: len(one.devices) == 1)


def looking(feed: LiveFeed) -> bool:
    return feed._look_at is not None or feed._scout is not None


def test_a_look_that_finds_the_same_leaves_the_sampler_alone(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    feeds.append(feed(str(tmp_path)))
    until(feeds[0], lambda one: True)
    sampler = feeds[0]._sampler
    assert sampler is not None
    pids = sampler.pids
    until(feeds[0], lambda one: not looking(feeds[0]))  # the first look, its rules included
    sampler.stale = True
    until(feeds[0], lambda one: looking(feeds[0]))
    until(feeds[0], lambda one: not looking(feeds[0]))
    assert sampler.pids == pids


def test_this_machine(feeds: list[LiveFeed]) -> None:
    """Whatever there is: snapshots come, and no source fails."""
    feeds.append(feed("/"))
    assert feeds[0].title == "this machine"
    seen = until(feeds[0], lambda one: one.monotonic_ns > 0 and one.sources == {})
    assert {level.state for level in seen[-1].health} == {"ok"}


def test_closed(tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    one = feed(str(tmp_path))
    one.close()
    assert one.poll(10) is None
    assert one.fileno() == -1


# -- what the kernel says --


def draft_of(source: Source) -> Draft:
    draft = Draft()
    source.sample(draft, tick())
    return draft


def uevents(monkeypatch: pytest.MonkeyPatch, *texts: dict[str, str], wanted: AnyOf | None = None) -> Draft:
    context = plugged()
    devices = [UdevDevice.from_event(context, one, "kernel") for one in texts]
    monkeypatch.setattr(happenings, "open_source", lambda *rest: Script(*devices))
    source = Uevents(context.root, all_rooms(), wanted or AnyOf(()))
    assert draft_of(source).events == [], "the first Snapshot does not wait for what learning all devices costs"
    return draft_of(source)


def test_uevents_become_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = uevents(monkeypatch, {"ACTION": "unbind", "DEVPATH": BDF, "SUBSYSTEM": "pci", **GPU})
    (mark,) = draft.events
    assert (mark.kind, mark.device, mark.level) == ("uevent", "0000:03:00.0", "info")
    assert mark.text == "unbind pci 0000:03:00.0"
    assert draft.stale


def test_uevents_that_tell_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"SUBSYSTEM": "drm", "DEVNAME": "dri/card0", "DEVTYPE": "drm_minor"}
    draft = uevents(
        monkeypatch, {"ACTION": "change", "DEVPATH": f"{BDF}/drm/card0", "WEDGED": "rebind,bus-reset", **node}
    )
    (mark,) = draft.events
    assert (mark.kind, mark.device, mark.level) == ("fault", "0000:03:00.0", "critical")
    assert mark.text.startswith("DRM-WEDGED: ")
    assert not draft.stale


def test_uevents_of_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"ACTION": "unbind", "DEVPATH": BDF, "SUBSYSTEM": "pci", **GPU}
    assert uevents(monkeypatch, event, wanted=parse_filters(["pci:09:00.0"])).events == []


def test_kinds_of_faults() -> None:
    kinds = {name: kind_of(Fault(name, "warn", "")) for name in ("I915-RESET", "PCI-AER-FATAL", "AMD-RING-TIMEOUT")}
    assert kinds == {"I915-RESET": "reset", "PCI-AER-FATAL": "aer", "AMD-RING-TIMEOUT": "fault"}


@pytest.fixture
def log() -> Iterator[tuple[int, socket.socket]]:
    """What stands for /dev/kmsg: one record a read, and EAGAIN when there are no more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    yield ours.fileno(), theirs
    ours.close()
    theirs.close()


def record(number: int, text: str, seconds: float = 0.5) -> bytes:
    return f"3,{number},{round(seconds * 1e6)},-;{text}\n".encode()


LINE = "amdgpu {}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12"


def test_faults_of_the_kernel_log(log: tuple[int, socket.socket], tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    devices = [Device(CARD, "physical", f"sys/devices/pci0000:00/{CARD}", chip="amdgpu")]
    source = KernelLog(SysRoot(DirTree(str(tmp_path))), all_rooms(), devices, log[0], True)
    assert source.descriptors() == [log[0]]
    assert draft_of(source).events == []
    assert source._classify is None  # no rule is loaded before a line comes
    log[1].send(record(1, "usb 1-1: new high-speed USB device"))
    log[1].send(record(2, LINE.format(CARD)))
    (mark,) = draft_of(source).events
    assert (mark.device, mark.level) == (CARD, "warn")
    assert mark.text.startswith("AMD")
    assert mark.at_ns == 500_000_000  # of tick 0, which is at one second on both clocks


def test_a_storm_of_lines_is_taken_in_parts(log: tuple[int, socket.socket], tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    source = KernelLog(SysRoot(DirTree(str(tmp_path))), (), [], log[0], True)
    sent = 0
    log[1].setblocking(False)
    try:
        while sent < 2 * happenings.MOST_LINES:
            log[1].send(record(sent, "x"))
            sent += 1
    except BlockingIOError:
        pass
    assert sent > happenings.MOST_LINES
    draft_of(source)
    left = len(list(iter(lambda: _receive(log[0]), b"")))
    assert left == sent - happenings.MOST_LINES


def _receive(fd: int) -> bytes:
    try:
        return os.read(fd, 8192)
    except BlockingIOError:
        return b""


def test_faults_of_other_devices_are_left_out_where_a_filter_was_given(
    log: tuple[int, socket.socket], tmp_path: Path
) -> None:
    make_machine(tmp_path, 1)
    devices = [Device("0000:09:00.0", "physical", "sys/devices/pci0000:00/0000:09:00.0", chip="amdgpu")]
    source = KernelLog(SysRoot(DirTree(str(tmp_path))), all_rooms(), devices, log[0], False)
    log[1].send(record(1, LINE.format(CARD)))
    assert draft_of(source).events == []


def test_a_fault_is_a_finding_from_then_on(feeds: list[LiveFeed], tmp_path: Path) -> None:
    make_machine(tmp_path, 1)
    feeds.append(feed(str(tmp_path)))
    until(feeds[0], lambda one: True)
    sampler = feeds[0]._sampler
    assert sampler is not None
    sampler._events.append(
        EventMark(at_ns=1, kind="fault", device=CARD, level="error", text="AMD-RING-TIMEOUT: a ring timed out")
    )

    def shown(one: Snapshot) -> bool:
        return ("error", "AMD-RING-TIMEOUT") in one.devices[0].findings

    until(feeds[0], shown)
