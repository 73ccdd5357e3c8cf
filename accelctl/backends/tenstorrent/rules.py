"""What the Tenstorrent driver counts (tt-kmd docs/sysfs-attributes.md)."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

CONTAINER = {"docker": "docker run --device /dev/tenstorrent -v /dev/hugepages-1G:/dev/hugepages-1G IMAGE"}


@rule("TT-THERMAL")
def hot(ctx: RuleContext) -> Iterator[Finding]:
    """Events of thermal throttling since the firmware started."""
    for device in ctx.devices("tenstorrent"):
        reading = device.reading("health/thermal_trips")
        if reading is not None and isinstance(reading.value, int) and reading.value > 0:
            title = f"{device.id} lowered its clock {reading.value} times because of heat"
            fix = ("check fans and air flow: tt-smi shows the temperature now",)
            yield Finding("TT-THERMAL", "warn", title, device.id, evidence(reading), fix)
