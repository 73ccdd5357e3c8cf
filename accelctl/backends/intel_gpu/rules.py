"""What i915 and xe say of their GPUs: hangs, lost (wedged) devices, micro-controllers, force_probe, throttling.

Wordings: linux drivers/gpu/drm/i915 (i915_gpu_error.c, gt/intel_reset.c, gt/intel_gt.c, i915_pci.c), drivers/gpu/drm/xe
(xe_device.c, xe_guc_submit.c, xe_pci.c, xe_survivability_mode.c), drm_drv.c (drm_dev_wedged_event).
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import LogRule, ids, log_findings
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

#: Intel device plugins for Kubernetes; compute-runtime documentation for containers.
CONTAINER = {
    "docker": "docker run --device /dev/dri --group-add GID_OF_/dev/dri/renderD128 IMAGE",
    "kubernetes": 'resources: {limits: {"gpu.intel.com/i915": 1}} or "gpu.intel.com/xe" with the Intel GPU plugin',
}
LIBRARY_PREFIXES = ("libze_", "libigdrcl", "libigc", "libigdgmm")

_BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_I915 = rf"^i915 {_BDF}: \[drm\] (?:\*ERROR\* )?(?:GT\d+: )?"
_XE = rf"^xe {_BDF}: \[drm\] (?:\*ERROR\* )?(?:Tile\d+: )?(?:GT\d+: )?"
_REBIND = "close all programs that use it, then reboot (or unbind and bind the driver)"

LOG_RULES = (
    LogRule(
        "INTEL-HANG",
        "warn",
        "GPU HANG: ecode",
        _I915 + r"GPU HANG: ecode (?P<code>[0-9a-fx:]+)(?:, in (?P<process>[^\[]+?) ?\[\d+\])?.*$",
        lambda match: (
            f"the GPU hung (ecode {match['code']})" + (f", in {match['process']}" if match["process"] else "")
        ),
        (
            "keep the error state before a reboot: sudo cat /sys/class/drm/card*/error > gpu-error.txt",
            "one program: report it with that file; many: update kernel, Mesa and the compute runtime",
        ),
        source="linux i915/i915_gpu_error.c",
    ),
    LogRule(
        "INTEL-RESET",
        "warn",
        "Resetting ",
        _I915
        + r"Resetting (?P<what>chip|[a-z]{3,4}\d+) for (?P<why>(?:stopped heartbeat|preemption time out|no reply).*)$",
        lambda match: (
            f"the driver reset {'the whole GPU' if match['what'] == 'chip' else match['what']}: {match['why']}"
        ),
        ("look for GPU HANG beside it; long kernels need a longer heartbeat_interval_ms of their engine",),
        source="linux i915/gt/intel_reset.c",
    ),
    LogRule(
        "INTEL-RESET",
        "warn",
        "Engine reset",
        _XE + r"Engine reset: engine_class=(?P<class>\w+), logical_mask: .*$",
        lambda match: f"the firmware reset an engine ({match['class']}) because its work did not end",
        ("find the program: sudo dmesg | grep -i 'Timedout job'", "update kernel, firmware and the compute runtime"),
        source="linux xe/xe_guc_submit.c",
    ),
    LogRule(
        "INTEL-WEDGED",
        "critical",
        "as wedged",
        _XE + r"CRITICAL: Xe has declared device \S+ as wedged\.$",
        "the driver gave this GPU up (wedged): it accepts no work until it is bound again",
        (_REBIND, "keep the log and the dump: ls /sys/class/drm/card*/device/devcoredump"),
        source="linux xe/xe_device.c",
    ),
    LogRule(
        "INTEL-WEDGED",
        "critical",
        "declaring it wedged",
        _I915 + r"Failed to initialize GPU, declaring it wedged!$",
        "the driver gave this GPU up at its start (wedged): it accepts no work",
        ("the lines above it name the step, often GuC firmware", _REBIND),
        source="linux i915/gt/intel_gt.c",
    ),
    LogRule(
        "INTEL-FIRMWARE",
        "error",
        "initialization failed",
        _I915 + r"(?P<what>GuC|HuC|GSC) initialization failed (?P<code>-\w+)$",
        lambda match: f"the firmware of the {match['what']} micro-controller did not start ({match['code']})",
        ("install the firmware package of the distribution's newest release, rebuild the initramfs, reboot",),
        source="linux i915/gt/uc/intel_guc.c",
    ),
    LogRule(
        "INTEL-SURVIVABILITY",
        "error",
        "Survivability Mode",
        rf"^xe {_BDF}: (?:\[drm\] (?:\*ERROR\* )?)?In Survivability Mode$",
        "the GPU started in survivability mode: its firmware is damaged, only flashing works",
        ("flash the GPU's firmware (fwupdmgr update, or the vendor's tool)", "sudo reboot"),
        source="linux xe/xe_survivability_mode.c",
    ),
    LogRule(
        "INTEL-FORCE-PROBE",
        "error",
        "Your graphics device",
        rf"^(?:i915|xe) {_BDF}: Your graphics device (?P<id>[0-9a-f]{{4}}) is not (?:proper|official)ly supported\b.*$",
        lambda match: f"this kernel's driver knows GPU {match['id']} but does not take it without force_probe",
        (
            "use a newer kernel: support that needs force_probe is unfinished",
            "or at your own risk on the kernel line: i915.force_probe=ID, or xe.force_probe=ID i915.force_probe=!ID",
        ),
        source="linux i915/i915_pci.c, xe/xe_pci.c",
    ),
)


@rule("INTEL-WEDGED", needs="log", explains=("INTEL-HANG", "INTEL-RESET", "INTEL-FIRMWARE"))
def wedged(ctx: RuleContext) -> Iterator[Finding]:
    """A device the driver gave up. "device wedged, but recovered" is none: that one goes on working."""
    yield from log_findings(ctx, [row for row in LOG_RULES if row.id == "INTEL-WEDGED"])


@rule("INTEL-HANG", needs="log", explains=("INTEL-RESET",))
def hangs(ctx: RuleContext) -> Iterator[Finding]:
    """Hangs; the resets after them are their consequence."""
    yield from log_findings(ctx, [row for row in LOG_RULES if row.id == "INTEL-HANG"])


@rule("INTEL-FORCE-PROBE", "INTEL-SURVIVABILITY", needs="log", explains=("DRV-UNBOUND", "NODE-MISSING"))
def refused(ctx: RuleContext) -> Iterator[Finding]:
    """Reasons why the driver does not take a GPU; not told of one that another of the two drivers has."""
    for finding in log_findings(
        ctx, [row for row in LOG_RULES if row.id in ("INTEL-FORCE-PROBE", "INTEL-SURVIVABILITY")]
    ):
        device = ctx.report.device(finding.device or "")
        if finding.id == "INTEL-SURVIVABILITY" or device is None or device.value("driver") is None:
            yield finding


_REST = [row for row in LOG_RULES if row.id in ("INTEL-RESET", "INTEL-FIRMWARE")]


@rule(*ids(_REST), needs="log")
def from_the_log(ctx: RuleContext) -> Iterator[Finding]:
    """The other lines."""
    yield from log_findings(ctx, _REST)


@rule("INTEL-HEALTH", "INTEL-SURVIVABILITY")
def health(ctx: RuleContext) -> Iterator[Finding]:
    """What newer xe drivers say themselves (ABI sysfs-driver-intel-xe-ras: ok, warning, critical)."""
    for device in ctx.devices("intel_gpu"):
        reading = device.reading("ras/health")
        level = {"warning": "warn", "critical": "critical"}.get(str(reading.value).lower()) if reading else None
        if level and reading is not None:
            title = f"{device.id} reports its own health as {reading.value}"
            fix = (f"sudo dmesg | grep -F '{device.id}'", "critical: stop its work and replace the card")
            yield Finding("INTEL-HEALTH", level, title, device.id, evidence(reading), fix)


@rule("GPU-THROTTLE")
def throttled(ctx: RuleContext) -> Iterator[Finding]:
    """Clocks that are held down right now, with the reason the driver names. Power limits under load are normal."""
    for device in ctx.devices("intel_gpu"):
        active = {key: one for key, one in device.under("throttle").items() if one.value == 1}
        reasons = sorted(
            {key.rpartition("/")[2].removeprefix("reason_") for key in active} - {"status", "reason_status"}
        )
        if active:
            title = f"{device.id} holds its clocks down: {', '.join(reasons) or 'no reason named'}"
            fix = ("thermal, prochot: look at cooling; pl1, pl2: the power limit works as set",)
            yield Finding("GPU-THROTTLE", "info", title, device.id, evidence(*list(active.values())[:4]), fix)
