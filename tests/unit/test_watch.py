"""`accelctl watch`: which events count, of which device they are, and what filters let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.rooms import Room
from accelctl.hal.tree import MemoryTree
from accelctl.hal.udev import Context, Device
from accelctl.probes.events import Event, Known, fault_of, identity_of
from accelctl.probes.filters import parse_filters
from accelctl.probes.watch import Watcher
from tests.eventkit import (
    BDF,
    GPU,
    INTEREST,
    ROOM,
    Script,
    machine,
    plugged,
)


def event(
    context: Context | None = None, /, action: str = "add", path: str = BDF, subsystem: str = "pci", **texts: str
) -> Device:
    properties = {"ACTION": action, "DEVPATH": path, "SUBSYSTEM": subsystem, "SEQNUM": "1", **texts}
    return Device.from_event(context or machine(), properties, "kernel")


@pytest.mark.parametrize(
    ("counts", "path", "subsystem", "texts"),
    [
        (True, BDF, "pci", GPU),
        (True, BDF, "pci", {"PCI_CLASS": "120000", "PCI_ID": "FFFF:0001"}),  # an unknown vendor's accelerator
        (True, BDF, "pci", {"PCI_CLASS": "B4000", "PCI_ID": "1BCF:001C"}),
        (True, BDF, "pci", {"PCI_CLASS": "FF00", "PCI_ID": "1E52:FACA"}),  # odd class, but a room names the device
        (
            False,
            BDF,
            "pci",
            {"PCI_CLASS": "20000", "PCI_ID": "1D0F:EC20"},
        ),  # a network card of a vendor that makes chips too
        (False, BDF, "pci", {"PCI_CLASS": "60400", "PCI_ID": "1022:1453"}),
        (False, BDF, "pci", {}),
        (True, f"{BDF}/drm/card0", "drm", {"DEVNAME": "dri/card0"}),
        (False, f"{BDF}/drm/card0/card0-DP-1", "drm", {"DEVTYPE": "drm_connector"}),
        (True, "/devices/virtual/kfd/kfd", "kfd", {"DEVNAME": "kfd"}),
        (True, f"{BDF}/accel/accel0", "accel", {"DEVNAME": "accel/accel0"}),
        (True, f"{BDF}/testclass/t0", "testclass", {}),
        (True, "/devices/virtual/x/testacc3", "x", {"DEVNAME": "testacc3"}),
        (True, "/devices/virtual/misc/testacc_ctl", "misc", {"DEVNAME": "testacc_ctl"}),
        (False, "/devices/virtual/misc/tun", "misc", {"DEVNAME": "net/tun"}),
        (True, "/devices/platform/soc/fd80.gpu", "platform", {"DRIVER": "testsoc"}),
        (True, "/devices/platform/softacc.1", "platform", {}),
        (False, "/devices/platform/serial8250", "platform", {"DRIVER": "serial8250"}),
        (True, "/module/testdrv", "module", {}),
        (False, "/module/helperdrv", "module", {}),
        (False, "/module/loop", "module", {}),
        (True, "/devices/virtual/devcoredump/devcd1", "devcoredump", {}),
        (False, "/devices/virtual/net/lo", "net", {}),
        (False, "/devices/virtual/block/loop0", "block", {"DEVNAME": "loop0"}),
    ],
)
def test_which_events_are_about_accelerators(counts: bool, path: str, subsystem: str, texts: dict[str, str]) -> None:
    for action in ("add", "remove"):
        assert INTEREST(event(action=action, path=path, subsystem=subsystem, **texts)) is counts


@pytest.mark.parametrize(
    ("path", "subsystem", "identity"),
    [
        (BDF, "pci", "0000:03:00.0"),
        (f"{BDF}/drm/card0", "drm", "0000:03:00.0"),
        (f"{BDF}/drm/card0/card0-DP-1", "drm", "0000:03:00.0"),
        ("/devices/pci0000:00/0000:00:02.0/virtio0/drm/card1", "drm", "0000:00:02.0"),
        ("/devices/pci0000:00/0000:00:02.0/virtio0", "virtio", "0000:00:02.0"),
        ("/devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0", "pci", "10000:e1:00.0"),
        ("/devices/platform/soc/fd80.gpu/drm/card0", "drm", "platform:fd80.gpu"),
        ("/devices/platform/soc/fd80.gpu", "platform", "platform:fd80.gpu"),
        ("/devices/platform/a0003e00.virtio_mmio/virtio3/drm/card0", "drm", "platform:a0003e00.virtio_mmio"),
        ("/devices/faux/vgem/drm/card0", "drm", "faux:vgem"),
        ("/devices/virtual/drm/card0", "drm", "drm:card0"),
        ("/devices/virtual/kfd/kfd", "kfd", "kfd:kfd"),
        ("/devices/virtual/misc/testacc", "misc", "misc:testacc"),
        ("/module/testdrv", "module", "module:testdrv"),
        ("/x", "x", "x:x"),
        ("/", "x", "x:"),
    ],
)
def test_the_device_is_named_by_the_path_alone(path: str, subsystem: str, identity: str) -> None:
    assert identity_of(event(path=path, subsystem=subsystem, action="remove")) == identity


@given(st.text(max_size=60), st.text(max_size=10))
def test_any_path_has_some_identity(path: str, subsystem: str) -> None:
    device = event(path="/" + path, subsystem=subsystem)
    assert isinstance(identity_of(device), str)
    assert INTEREST(device) in (True, False)


@pytest.mark.parametrize(
    ("action", "subsystem", "texts", "identity", "level"),
    [
        ("change", "drm", {"WEDGED": "rebind,bus-reset"}, "DRM-WEDGED", "critical"),
        ("change", "drm", {"WEDGED": "unknown"}, "DRM-WEDGED", "critical"),
        ("change", "drm", {"WEDGED": "none"}, "DRM-WEDGED", "warn"),
        ("change", "pci", {"ERROR_EVENT": "BEGIN_RECOVERY"}, "PCI-ERROR-RECOVERY", "error"),
        ("change", "pci", {"ERROR_EVENT": "SUCCESSFUL_RECOVERY"}, "PCI-ERROR-RECOVERY", "warn"),
        ("change", "pci", {"ERROR_EVENT": "FAILED_RECOVERY"}, "PCI-ERROR-RECOVERY", "critical"),
        ("change", "drm", {"ERROR": "1"}, "I915-HANG", "error"),
        ("change", "drm", {"ERROR": "0"}, "I915-HANG", "info"),
        ("change", "drm", {"RESET": "1"}, "I915-RESET", "warn"),
        ("change", "drm", {"L3_PARITY_ERROR": "1", "ROW": "3"}, "I915-L3-PARITY", "error"),
        ("add", "devcoredump", {}, "DRV-COREDUMP", "error"),
    ],
)
def test_events_that_report_a_fault(
    action: str, subsystem: str, texts: dict[str, str], identity: str, level: str
) -> None:
    fault = fault_of(event(action=action, subsystem=subsystem, **texts))
    assert fault is not None
    assert (fault.id, fault.level) == (identity, level)
    assert "\n" not in fault.title


@pytest.mark.parametrize(
    ("action", "subsystem", "texts"),
    [
        ("change", "drm", {"HOTPLUG": "1"}),
        ("add", "pci", GPU),
        ("remove", "devcoredump", {}),
        ("change", "pci", {"ERROR_EVENT": "?"}),
    ],
)
def test_events_that_report_no_fault(action: str, subsystem: str, texts: dict[str, str]) -> None:
    assert fault_of(event(action=action, subsystem=subsystem, **texts)) is None


def told(
    *devices: Device, filters: tuple[str, ...] = (), context: Context | None = None, learn: bool = True
) -> list[Event]:
    known = Known(context or machine(), INTEREST)
    if learn:
        known.learn()
    watcher = Watcher(Script(*devices), None, known, INTEREST, parse_filters(filters))
    return list(watcher.run(duration=0.05))


def unplug() -> list[Device]:
    """What the kernel sends when a card is pulled: from the inside out."""
    return [
        event(action="change", path=f"{BDF}/drm/card0", subsystem="drm", DEVNAME="dri/card0", HOTPLUG="1"),
        event(action="remove", path=f"{BDF}/drm/card0/card0-DP-1", subsystem="drm"),
        event(action="remove", path=f"{BDF}/drm/renderD128", subsystem="drm", DEVNAME="dri/renderD128"),
        event(action="remove", path=f"{BDF}/drm/card0", subsystem="drm", DEVNAME="dri/card0"),
        event(action="unbind", path=BDF, **GPU),
        event(action="remove", path=BDF, **GPU),
    ]


def test_an_unplug_is_many_events_of_one_device() -> None:
    lines = told(*unplug(), context=plugged())
    assert [one.action for one in lines] == ["change", "remove", "remove", "unbind", "remove"]
    assert {one.device for one in lines} == {"0000:03:00.0"}
    # The driver of the card is told with every event, also when sysfs has already forgotten it; once unbound, no more.
    assert [one.driver for one in lines] == ["amdgpu", "amdgpu", "amdgpu", "amdgpu", None]
    assert [one.node for one in lines] == ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card0", None, None]
    assert lines[0].detail == {"HOTPLUG": "1"}
    assert lines[0].time_ns > 0
    assert lines[0].monotonic_ns > 0


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("driver=amdgpu",), 4),  # the last event comes after the unbind
        (("0000:03:00.0",), 5),
        (("vendor=0x1002",), 5),
        (("device=744c",), 5),
        (("drm:renderD128",), 2),  # its own removal, and before it the change, when the card still had the node
        (("vendor=nvidia",), 0),
        (("driver=xe", "class=03"), 5),
    ],
)
def test_filters_hold_for_what_is_gone(filters: tuple[str, ...], count: int) -> None:
    assert len(told(*unplug(), filters=filters, context=plugged())) == count


def test_a_vendor_is_known_by_its_room() -> None:
    add = event(path="/devices/pci0000:00/0000:00:05.0", PCI_ID="1E52:FACA", PCI_CLASS="FF00")
    assert len(told(add, filters=("vendor=testing,chip=testchip",))) == 1
    assert len(told(add, filters=("chip=other",))) == 0
    assert len(told(event(path="/module/testdrv", subsystem="module"), filters=("driver=testdrv",))) == 1


def test_a_crash_dump_belongs_to_the_device_that_failed() -> None:
    context = plugged()
    tree = context.root.tree
    assert isinstance(tree, MemoryTree)
    path = "/devices/virtual/devcoredump/devcd1"
    tree.add_file(f"sys{path}/uevent", b"")
    tree.add_link(f"sys{path}/failing_device", "/sys" + BDF)
    add = event(context, "add", path, "devcoredump")
    remove = event(context, "remove", path, "devcoredump")
    lines = told(add, context=context)
    assert lines[0].device == "0000:03:00.0"
    assert lines[0].fault is not None
    assert lines[0].fault.id == "DRV-COREDUMP"
    known = Known(context, INTEREST)
    known.settle(add, known.describe(add))
    tree.links.pop(f"sys{path}/failing_device")  # gone with the device
    assert known.describe(remove).id == "0000:03:00.0"


def test_a_device_that_comes_back_is_looked_at_afresh() -> None:
    context = plugged()
    back = event(context, action="bind", DRIVER="vfio-pci", **GPU)
    lines = told(*unplug(), event(context, **GPU), back, filters=("driver=vfio-pci",), context=context)
    assert [one.action for one in lines] == ["bind"]


def test_the_room_is_used() -> None:
    assert isinstance(ROOM, Room)
    assert INTEREST.polled == tuple(sorted(INTEREST.polled))
    assert {"drm", "accel", "kfd", "pci", "misc", "testclass"} <= set(INTEREST.polled)
