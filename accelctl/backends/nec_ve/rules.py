"""What ve_drv says of a Vector Engine (veos-sxarr-NEC/ve_drv-kmod sysfs_ve1.c: states 0 to 4)."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

LIBRARY_PREFIXES = ("libveo", "libveos")
#: 1 is online.
_STATE = {
    0: ("warn", "is not initialised yet"),
    2: ("warn", "is offline"),
    3: ("info", "is in maintenance"),
    4: ("error", "is unavailable"),
}


@rule("VE-STATE")
def state(ctx: RuleContext) -> Iterator[Finding]:
    """An engine that is not online."""
    for device in ctx.devices("nec_ve"):
        reading = device.reading("ve/state")
        known = _STATE.get(reading.value) if reading is not None and isinstance(reading.value, int) else None
        if known is not None and reading is not None:
            title = f"{device.id} {known[1]} (ve_state {reading.value})"
            fix = (
                ("/opt/nec/ve/bin/vecmd state get", "sudo /opt/nec/ve/bin/vecmd state set on")
                if known[0] != "info"
                else ()
            )
            yield Finding("VE-STATE", known[0], title, device.id, evidence(reading), fix)


@rule("VE-THROTTLE")
def throttled(ctx: RuleContext) -> Iterator[Finding]:
    """The clock is held down (throttling_level above 0)."""
    for device in ctx.devices("nec_ve"):
        reading = device.reading("ve/throttling_level")
        if reading is not None and isinstance(reading.value, int) and reading.value > 0:
            title = f"{device.id} holds its clock down (throttling level {reading.value})"
            yield Finding("VE-THROTTLE", "info", title, device.id, evidence(reading), ("check cooling and power",))
