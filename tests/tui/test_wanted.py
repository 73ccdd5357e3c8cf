"""The filter of the dashboards leaves of each process what it holds of the devices that are wanted."""

from __future__ import annotations

from accelctl.model.snapshot import DeviceLevel, ProcessLevel, Snapshot
from accelctl.tui.wanted import parse


def test_memory_on_other_devices_is_not_shown() -> None:
    both = ProcessLevel(pid=1, started=1, devices=("a", "b"), memory=(("a", "vram", 1), ("b", "vram", 40)))
    devices = (DeviceLevel(id="a", driver="xe"), DeviceLevel(id="b"))
    whole = Snapshot(taken_ns=1, monotonic_ns=1, devices=devices, processes=(both,))
    (one,) = parse("driver=xe").of(whole).processes
    assert (one.devices, one.memory) == (("a",), (("a", "vram", 1),))
    assert parse("pid=1").of(whole).processes == (both,)
