"""What qaic counts: errors since its driver was loaded (linux ABI sysfs-driver-qaic)."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

#: Qualcomm Cloud AI documentation, Kubernetes device plugin.
CONTAINER = {"kubernetes": 'resources: {limits: {"qualcomm.com/qaic": 1}} with the Cloud AI device plugin'}


@rule("QAIC-ERRORS")
def errors(ctx: RuleContext) -> Iterator[Finding]:
    """Uncorrectable errors stop work; those it calls non-fatal, and corrected ones, only tell of wear."""
    for device in ctx.devices("qaic"):
        for key, level, words in (
            ("ras/uncorrectable", "error", "uncorrectable errors"),
            ("ras/uncorrectable_nonfatal", "warn", "uncorrectable but non-fatal errors"),
        ):
            reading = device.reading(key)
            if reading is not None and isinstance(reading.value, int) and reading.value > 0:
                title = f"{device.id} counts {reading.value} {words} since its driver was loaded"
                fix = (
                    f"sudo dmesg | grep -F '{device.id}'",
                    "drain it; power the machine off and on; replace the card if they return",
                )
                yield Finding("QAIC-ERRORS", level, title, device.id, evidence(reading), fix)
