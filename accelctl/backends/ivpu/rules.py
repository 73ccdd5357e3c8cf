"""What intel_vpu says of its NPU, and which firmware each generation asks for.

Wordings and tables: linux drivers/accel/ivpu (ivpu_pm.c, ivpu_fw.c fw_names, ivpu_drv.h ivpu_hw_ip_gen).
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import LogRule, log_findings
from accelctl.abi.rules import RuleContext, rule
from accelctl.model.device import Device
from accelctl.model.finding import Finding

#: Intel NPU device plugin for Kubernetes.
CONTAINER = {"kubernetes": 'resources: {limits: {"npu.intel.com/accel": 1}} with the Intel NPU plugin'}
LIBRARY_PREFIXES = ("libze_intel_npu", "libze_intel_vpu", "libopenvino_intel_npu")

_GENERATION = {"0x7d1d": 37, "0xad1d": 37, "0x643e": 40, "0xb03e": 50, "0xfd3e": 50, "0xd71d": 60}
_BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_OPEN = rf"^intel_vpu {_BDF}: \[drm\] \*ERROR\* ivpu_\w+\(\): "


def firmware_files(device: Device) -> tuple[str, ...]:
    """Names below lib/firmware that the driver tries, newest first; empty for an unknown generation."""
    generation = _GENERATION.get(str(device.value("pci/device_id")))
    if generation is None:
        return ()
    newest = f"intel/vpu/vpu_{generation}xx_v1.bin"
    return (newest,) if generation == 60 else (newest, f"intel/vpu/vpu_{generation}xx_v0.0.bin")


LOG_RULES = (
    LogRule(
        "IVPU-RESUME",
        "error",
        "Failed to resume",
        _OPEN + r"Failed to resume(?: the FW| NPU)?: (?P<code>-\d+)$",
        lambda match: f"the NPU did not come back from sleep (error {match['code']})",
        (
            "sudo rmmod intel_vpu && sudo modprobe intel_vpu, once nothing uses it; else sudo reboot",
            "update the firmware (intel/vpu in linux-firmware) and the kernel",
        ),
        source="linux accel/ivpu/ivpu_pm.c",
    ),
    LogRule(
        "IVPU-RECOVERY",
        "warn",
        "Recover",
        _OPEN + r"Recover(?:y triggered by (?P<why>.+)|ing the NPU \(reset #\d+\))$",
        lambda match: "the NPU hung and was reset" + (f" ({match['why']})" if match["why"] else ""),
        (
            "all work on it at that time failed: run it again",
            "if one model brings it back: report it with the dump, ls /sys/class/accel/accel*/device/devcoredump",
        ),
        source="linux accel/ivpu/ivpu_pm.c",
    ),
)


@rule("IVPU-RESUME", needs="log", explains=("IVPU-RECOVERY",))
def gone(ctx: RuleContext) -> Iterator[Finding]:
    """An NPU that did not come back."""
    yield from log_findings(ctx, LOG_RULES[:1])


@rule("IVPU-RECOVERY", needs="log")
def recovered(ctx: RuleContext) -> Iterator[Finding]:
    """Hangs that a reset cured."""
    yield from log_findings(ctx, LOG_RULES[1:])
