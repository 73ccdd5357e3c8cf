"""What the gasket driver says of an Edge TPU: status and heat (google/gasket-driver gasket_core.c, apex_driver.c)."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

CONTAINER = {"docker": "docker run --device /dev/apex_0 IMAGE"}
#: gasket.h enum gasket_status; ALIVE is the healthy one, DRIVER_EXITING lasts a moment.
_STATUS = {
    "DEAD": ("error", "was not started, or stopped after a fault"),
    "LAMED": ("warn", "works, but the driver could not set up all of it (interrupts)"),
}


@rule("CORAL-STATUS")
def status(ctx: RuleContext) -> Iterator[Finding]:
    """A device that is not ALIVE."""
    for device in ctx.devices("coral"):
        reading = device.reading("health/status")
        known = _STATUS.get(str(reading.value).strip().upper()) if reading is not None else None
        if known is not None and reading is not None:
            title = f"{device.id} {known[1]} (status {reading.value})"
            fix = (
                "sudo dmesg | grep -E 'apex|gasket'",
                "sudo rmmod apex && sudo modprobe apex; a cold boot if that fails",
            )
            yield Finding("CORAL-STATUS", known[0], title, device.id, evidence(reading), fix)


@rule("CORAL-HOT")
def hot(ctx: RuleContext) -> Iterator[Finding]:
    """Above its first trip point the driver lowers the clock (apex_driver.c, trip_point0_temp)."""
    for device in ctx.devices("coral"):
        now, trip = device.reading("temperature/chip_celsius"), device.reading("temperature/trip0_celsius")
        if (
            now
            and trip
            and isinstance(now.value, float | int)
            and isinstance(trip.value, float | int)
            and now.value >= trip.value
        ):
            title = f"{device.id} is at {now.value:g} degrees Celsius, above {trip.value:g}: it runs slower"
            yield Finding(
                "CORAL-HOT", "warn", title, device.id, evidence(now, trip), ("improve the air flow over the module",)
            )
