"""Runtime power management: read first, because it decides what else may be read of a device."""

from __future__ import annotations

from accelctl.model.device import Device
from accelctl.model.reading import STABLE, VOLATILE
from accelctl.probes.context import Field, Scan, read_fields

_FIELDS: tuple[Field, ...] = (
    ("power/runtime_status", "power/runtime_status", "text", None, VOLATILE),
    ("power/control", "power/control", "text", None, STABLE),
    ("power/runtime_active_time_ms", "power/runtime_active_time", "int", "ms", VOLATILE),
    ("power/runtime_suspended_time_ms", "power/runtime_suspended_time", "int", "ms", VOLATILE),
    ("power/runtime_usage", "power/runtime_usage", "int", None, VOLATILE),
)


def describe(scan: Scan, device: Device) -> None:
    """Add the facts, and let the root know when the device sleeps: from then on nothing that would wake it is read."""
    device.facts.update(read_fields(scan.root, device.path, _FIELDS))
    if device.value("power/runtime_status") in ("suspended", "suspending"):
        scan.root.asleep.append(f"/{device.path.rpartition('/')[2]}/")
