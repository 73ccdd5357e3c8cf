"""What habanalabs says of its accelerators: their status file, resets, a start that failed.

Status words: linux drivers/accel/habanalabs/common/habanalabs_drv.c (create_hdev), ABI sysfs-driver-habanalabs. Log
line: common/device.c (hl_device_init), seen in HabanaAI/Setup_and_Install issue 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import LogRule, ids, log_findings
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

#: Intel Gaudi documentation (container runtime, Kubernetes device plugin).
CONTAINER = {
    "docker": "docker run --runtime=habana -e HABANA_VISIBLE_DEVICES=all IMAGE",
    "kubernetes": 'resources: {limits: {"habana.ai/gaudi": 1}} with the Intel Gaudi device plugin',
}
LIBRARY_PREFIXES = ("libSynapse", "libhl-", "libhlml")

_BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
LOG_RULES = (
    LogRule(
        "HABANA-INIT",
        "error",
        "Device is NOT usable",
        rf"^habanalabs {_BDF}: Failed to initialize \S+\. Device is NOT usable !$",
        "the driver could not start this device",
        (
            "the lines above it name the step: sudo dmesg | grep habanalabs",
            "cold boot; then hl-smi and the firmware's version",
        ),
        source="linux accel/habanalabs/common/device.c; HabanaAI/Setup_and_Install issue 1",
    ),
)
#: Status -> level and meaning. Passing states are told as information: the next look shows how they ended.
_STATUS = {
    "malfunction": ("critical", "is out of order"),
    "disabled": ("critical", "is out of order"),
    "needs reset": ("error", "works again only after a hard reset"),
    "in reset": ("info", "is being reset"),
    "in reset after device release": ("info", "is being reset after a program closed it"),
    "in device creation": ("info", "is still starting"),
}


@rule(*ids(LOG_RULES), needs="log", explains=("DRV-UNBOUND", "NODE-MISSING", "HABANA-STATUS"))
def not_started(ctx: RuleContext) -> Iterator[Finding]:
    """A start that failed."""
    yield from log_findings(ctx, LOG_RULES)


@rule("HABANA-STATUS")
def status(ctx: RuleContext) -> Iterator[Finding]:
    """The device's own word, with the number of hard resets since the driver was loaded."""
    for device in ctx.devices("habanalabs"):
        reading = device.reading("health/status")
        known = _STATUS.get(str(reading.value).strip().lower()) if reading is not None else None
        if known is None or reading is None:
            continue
        level, words = known
        resets = device.reading("reset/hard_count")
        fix = (
            f"sudo dmesg | grep -F '{device.id}'",
            "stop its programs; the driver's hard reset, or a cold boot, brings it back",
        )
        title = f"{device.id} {words} (status {reading.value})"
        yield Finding(
            "HABANA-STATUS", level, title, device.id, evidence(reading, resets), fix if level != "info" else ()
        )


@rule("HABANA-RESETS")
def resets(ctx: RuleContext) -> Iterator[Finding]:
    """Hard resets happen after faults; the log says which."""
    for device in ctx.devices("habanalabs"):
        reading = device.reading("reset/hard_count")
        if reading is not None and isinstance(reading.value, int) and reading.value > 0:
            title = f"{device.id} was hard-reset {reading.value} times since its driver was loaded"
            fix = (f"what came before each: sudo dmesg | grep -F '{device.id}'",)
            yield Finding("HABANA-RESETS", "info", title, device.id, evidence(reading), fix)
