"""Where the events of `accelctl watch` come from: udevd and the kernel together, polling, the kernel log."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelctl.abi.rules import Rule
from accelctl.hal import kmsg, netlink
from accelctl.hal.monitor import Monitor
from accelctl.hal.netlink import UeventSocket
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, MemoryTree
from accelctl.hal.udev import Context, Device
from accelctl.model.finding import Finding
from accelctl.probes import engine, watch
from accelctl.probes.events import Event, Fault, Known
from accelctl.probes.filters import parse_filters
from accelctl.probes.watch import LogSource, NetlinkSource, PollSource, Watcher
from tests.eventkit import (
    INTEREST,
    NULL,
    ROOM,
    Losing,
    Script,
    kernel_message,
    machine,
    plugged,
    poke,
    udev_message,
)

# -- sources --


class Wire:
    """Both monitors of a NetlinkSource on socket pairs."""

    def __init__(self, *, udevd: bool = True, patience: float = 0.05) -> None:
        self.context = machine()
        self.said: list[str] = []
        self.kernel_end, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.kernel = Losing(near)
        self.udev_end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        second = Monitor(self.context, UeventSocket(other, lambda _sender: True))
        if not udevd:
            second.close()
        self.source = NetlinkSource(
            Monitor(self.context, self.kernel), second if udevd else None, self.said.append, patience
        )

    def send(self, number: int, *, kernel: bool = True, udev: bool = True) -> None:
        texts = {
            "ACTION": "add",
            "DEVPATH": f"/devices/virtual/drm/card{number}",
            "SUBSYSTEM": "drm",
            "SEQNUM": str(number),
        }
        if kernel:
            self.kernel_end.send(kernel_message(**texts))
        if udev:
            self.udev_end.send(udev_message(texts))

    def close(self) -> None:
        self.source.close()
        self.kernel_end.close()
        self.udev_end.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def numbers(devices: list[Device]) -> list[tuple[int, str]]:
    return [(device.sequence_number, device.origin) for device in devices]


def test_an_event_is_told_once_when_udevd_has_handled_it(wire: Wire) -> None:
    assert wire.source.name == "netlink udev"
    wire.send(1)
    wire.send(2, udev=False)
    assert numbers(wire.source.events()) == [(1, "udev")]
    assert 0 < (wire.source.due_in() or 0) <= 0.05
    wire.send(2, kernel=False)
    assert numbers(wire.source.events()) == [(2, "udev")]
    assert wire.source.due_in() is None
    wire.send(2)
    assert wire.source.events() == []
    assert wire.said == []


def test_a_silent_udevd_does_not_hide_an_event(wire: Wire) -> None:
    wire.send(1, udev=False)
    assert wire.source.events() == []
    time.sleep(0.06)
    wire.send(2, udev=False)
    assert numbers(wire.source.events()) == [(1, "kernel")]
    wire.send(1, kernel=False)  # at last
    time.sleep(0.06)
    assert numbers(wire.source.events()) == [(2, "kernel")]
    assert len(wire.said) == 1
    assert "udevd was silent" in wire.said[0]


def test_udevd_that_is_faster_than_our_reading_of_the_kernel(wire: Wire) -> None:
    wire.send(5, kernel=False)
    assert numbers(wire.source.events()) == [(5, "udev")]
    wire.send(5, udev=False)
    assert wire.source.events() == []
    assert wire.source.due_in() is None


def test_lost_events_are_said(wire: Wire) -> None:
    wire.kernel.lose = 1
    assert wire.source.events() == []
    assert wire.source.events() == []
    assert len(wire.said) == 1
    assert "lost" in wire.said[0]


def test_without_udevd_the_kernel_is_believed_at_once() -> None:
    wire = Wire(udevd=False)
    try:
        assert wire.source.name == "netlink kernel"
        wire.send(1, udev=False)
        assert numbers(wire.source.events()) == [(1, "kernel")]
    finally:
        wire.close()


def test_the_source_is_chosen_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    context = machine()
    tree = context.root.tree
    assert isinstance(tree, MemoryTree)
    said: list[str] = []

    def opened(**options: bool) -> str:
        source = watch.open_source(context, INTEREST, said.append, **options)
        source.close()
        return source.name

    assert "as asked for" in opened(poll=True)
    assert opened() == "netlink kernel"
    tree.add_file("run/udev/control", b"")
    assert opened() == "netlink udev"
    tree.add_file("proc/self/uid_map", b"         0          0 4294967295\n")
    assert opened() == "netlink udev"
    tree.add_file("proc/self/uid_map", b"         0     100000      65536\n")
    assert "user namespace" in opened()
    tree.files.pop("proc/self/uid_map")
    monkeypatch.setattr(
        Monitor, "from_netlink", lambda *_: (_ for _ in ()).throw(OSError(93, "Protocol not supported"))
    )
    assert "no netlink events: protocol not supported" in opened()


def test_polling_tells_what_came() -> None:
    context = machine()
    tree = context.root.tree
    assert isinstance(tree, MemoryTree)
    source = PollSource(context, INTEREST, "test", interval=0.05)
    assert "polling sysfs every 0.05 s (test)" in source.name
    assert source.events() == []
    tree.add_file("sys/devices/virtual/testclass/t0/uevent", b"")
    tree.add_link("sys/devices/virtual/testclass/t0/subsystem", "/sys/class/testclass")
    tree.add_link("sys/class/testclass/t0", "/sys/devices/virtual/testclass/t0")
    watcher = Watcher(source, None, Known(context, INTEREST), INTEREST, parse_filters(None))
    lines = list(watcher.run(duration=0.3))
    assert [(one.action, one.device, one.source) for one in lines] == [("add", "testclass:t0", "poll")]


# -- the kernel log --


def classify(line: str) -> tuple[str, str | None, str, str] | None:
    if "Xid" not in line:
        return None
    return "NV-XID", "0000:03:00.0" if "03:00" in line else None, "error", "the GPU reported an error"


def logged(*lines: str, filters: tuple[str, ...] = ()) -> list[Event]:
    # Records of /dev/kmsg come one per read(2), and so do those of a sequenced-packet socket.
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    with far:
        for number, line in enumerate(lines):
            far.send(f"3,{number},1000,-;{line}\n SUBSYSTEM=pci\n".encode())
        known = Known(plugged(), INTEREST)
        known.learn()
        log = LogSource(near.detach(), classify)
        watcher = Watcher(Script(), log, known, INTEREST, parse_filters(filters))
        found = list(watcher.run(duration=0.05))
        watcher.close()
    return found


XID = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus"


def test_faults_of_the_kernel_log_are_events() -> None:
    found = logged("usb 1-1: new device", XID, "NVRM: Xid somewhere")
    assert [(one.action, one.device, one.source, one.driver) for one in found] == [
        ("fault", "0000:03:00.0", "kmsg", "amdgpu"),
        ("fault", None, "kmsg", None),
    ]
    assert found[0].fault == Fault("NV-XID", "error", "the GPU reported an error", XID)


def test_filters_hold_for_faults() -> None:
    assert len(logged(XID, "NVRM: Xid somewhere", filters=("03:00.0",))) == 1
    assert logged(XID, filters=("04:00.0",)) == []


def test_a_log_that_may_not_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: OSError) -> str:
        monkeypatch.setattr(kmsg, "open_device", lambda **_: (_ for _ in ()).throw(error))
        said = watch.open_log(classify)
        assert isinstance(said, str)
        return said

    assert "sudo" in refuse(PermissionError(1, "Operation not permitted"))
    assert "container" in refuse(FileNotFoundError(2, "No such file or directory"))
    assert "not the kernel's log device" in refuse(OSError(19, "not the kernel's log device"))


def test_the_log_rules_of_probe_classify_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def xid(context: Any) -> Iterator[Finding]:
        for match in context.log_matches("Xid", r"Xid \(PCI:([0-9a-f:]+)\): (\d+)"):
            yield Finding("TEST-XID", "error", f"Xid {match[2]}", match[1] + ".0", (context.log_evidence(match),))
            yield Finding("TEST-NOTE", "info", "also", None)

    def bus(_context: Any) -> Iterator[Finding]:
        raise AssertionError("a rule that needs no log says nothing of a line")

    monkeypatch.setattr(
        engine,
        "collect",
        lambda _rooms: [Rule(("TEST-XID", "TEST-NOTE"), "log", (), xid), Rule(("BUS",), None, (), bus)],
    )
    found = watch.log_classifier(SysRoot(MemoryTree("test")), [ROOM])
    assert found(XID) == ("TEST-XID", "0000:03:00.0", "error", "Xid 79")
    assert found("nothing") is None


def test_real_messages_of_a_udevd_are_joined_with_the_kernels() -> None:
    """A root process may send to udevd's group; here the test is udevd."""
    context = Context(SysRoot(LiveTree()))
    if context.has_udevd:
        pytest.skip("a real udevd answers here; the guest's tests look at it")
    said: list[str] = []
    kernel, second = Monitor.from_netlink(context, "kernel"), Monitor.from_netlink(context, "udev")
    for monitor in (kernel, second):
        monitor.filter_by("mem")
    source = NetlinkSource(kernel, second, said.append, patience=1.0)
    try:
        poke()
        _wait(source, lambda: source.due_in() is not None)
        number = next(iter(source._waiting))
        texts = {"ACTION": "change", "DEVPATH": NULL.removeprefix("/sys"), "SUBSYSTEM": "mem", "SEQNUM": str(number)}
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETLINK_KOBJECT_UEVENT) as udevd:
            udevd.sendto(udev_message(texts), (0, netlink.GROUPS["udev"]))
        assert numbers(_wait(source, lambda: source.due_in() is None)) == [(number, "udev")]
        assert said == []
        poke()
        assert [device.origin for device in _wait(source, lambda: bool(said))] == ["kernel"]
    finally:
        source.close()


def _wait(source: NetlinkSource, until: Callable[[], bool]) -> list[Device]:
    found: list[Device] = []
    end = time.monotonic() + 5
    while time.monotonic() < end:
        found += source.events()
        if until():
            return found
        time.sleep(0.02)
    pytest.fail("nothing happened within 5 s")
