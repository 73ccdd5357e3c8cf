"""Sensors that say of themselves that something is wrong: a temperature at its critical limit, a fault flag."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.model.reading import Reading

#: Limits below this are "not set": drivers leave 0 or absolute zero there (a captured RX 580 has -273.15).
_PLAUSIBLE_CELSIUS = 40.0
_COOLING_FIX = (
    "check fans, airflow, dust and the ambient temperature; watch it: accelctl top",
    "lower the power cap until the cause is found",
)


def _channels(device: Device) -> Iterator[tuple[str, Reading]]:
    for key, reading in device.under("sensors").items():
        if key.endswith("/input_celsius") and isinstance(reading.value, (int, float)):
            yield key.removesuffix("/input_celsius"), reading


@rule("SENSOR-HOT")
def hot(ctx: RuleContext) -> Iterator[Finding]:
    """At or above the limit at which the driver or the card steps in; the hottest channel stands for the device."""
    for device in ctx.report.devices:
        over = []
        for base, now in _channels(device):
            limit = device.reading(f"{base}/crit_celsius")
            if (
                limit is not None
                and isinstance(limit.value, (int, float))
                and _PLAUSIBLE_CELSIUS <= limit.value <= now.value
            ):
                over.append((now.value - limit.value, base, now, limit))
        if over:
            _, base, now, limit = max(over, key=lambda one: one[:2])
            name = device.value(f"{base}/label") or base.rpartition("/")[2]
            title = (
                f"{name} is at {now.value:g} C, its critical limit is {limit.value:g} C: the card slows or switches off"
            )
            yield Finding("SENSOR-HOT", "error", title, device.id, evidence(now, limit), _COOLING_FIX)


@rule("SENSOR-FAULT")
def fault(ctx: RuleContext) -> Iterator[Finding]:
    """A fault flag of hwmon: the sensor or the fan is broken or not connected (Documentation/hwmon/sysfs-interface)."""
    for device in ctx.report.devices:
        flags = {key: one for key, one in device.under("sensors").items() if key.endswith("/fault") and one.value == 1}
        if flags:
            names = ", ".join(key.split("/")[2] for key in flags)
            title = f"hwmon reports a fault of {names}"
            fix = (
                "check that the fan turns and its cable is connected; a temperature without a sensor is not watched",
            )
            yield Finding("SENSOR-FAULT", "warn", title, device.id, evidence(*flags.values()), fix)
