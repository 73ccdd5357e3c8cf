"""What amdgpu, amdkfd and radeon say of their GPUs: hangs and resets, page faults, RAS, refused devices, heat.

Wordings: linux drivers/gpu/drm/amd/amdgpu (amdgpu_job.c, amdgpu_device.c, gmc_v*.c, amdgpu_ras*.c), amdkfd
(kfd_device.c), amd/pm (smu_cmn.c, swsmu), radeon (radeon_fence.c). Older kernels print without the device's address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelctl.abi.logrules import LogRule, ids, log_findings
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.model.reading import Reading

#: ROCm documentation (running containers) and ROCm/k8s-device-plugin.
CONTAINER = {
    "docker": "docker run --device /dev/kfd --device /dev/dri --group-add GID_OF_/dev/kfd IMAGE",
    "cdi": "docker run --device amd.com/gpu=all IMAGE, after: sudo amd-ctk cdi generate",
    "kubernetes": 'resources: {limits: {"amd.com/gpu": 1}} with the AMD device plugin',
}
LIBRARY_PREFIXES = ("libamdhip", "libhsa-", "librocm", "librocblas", "libhipblas", "libMIOpen", "librccl", "libamd_")

_BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_OPEN = rf"^amdgpu {_BDF}: (?:amdgpu: )?"
#: With the address (dev_err) or without (DRM_ERROR of kernels before 6.10).
_ANY = rf"^(?:amdgpu {_BDF}: (?:amdgpu: )?(?:\[drm\] )?|\[drm:[^\]]*\[amdgpu\]\] |\[drm\] )(?:\*ERROR\* )?"
_SOCKET = r"(?:\{\d+\} ?)?(?:socket: \d+,? ?(?:die: \d+,? ?)?)?"
_DUMP = "keep the kernel log, and the dump if there is one: ls /sys/class/drm/card*/device/devcoredump"

LOG_RULES = (
    LogRule(
        "AMD-RING-TIMEOUT",
        lambda match: "info" if match["soft"] else "warn",
        " timeout, ",
        _ANY + r"ring (?P<ring>\S+) timeout, (?:signaled seq=\d+, emitted seq=\d+|(?P<soft>but soft recovered)).*$",
        lambda match: (
            f"work on ring {match['ring']} did not end in time" + (" and was stopped" if match["soft"] else "")
        ),
        (
            "the line after it names the process: sudo dmesg | grep -A 1 'timeout, signaled'",
            "one program: endless loop or bad address in its kernels; many: update kernel, firmware, Mesa or ROCm",
        ),
        source="linux amdgpu_job.c amdgpu_job_timedout",
    ),
    LogRule(
        "AMD-RESET",
        "error",
        "GPU reset",
        _OPEN + r"GPU reset(?:\(\d+\) failed| end with ret = (?P<ret>-?[1-9]\d*)).*$",
        "the GPU was reset after a hang, and the reset failed",
        ("sudo reboot; if that is not enough, power the machine off for a minute", _DUMP),
        source="linux amdgpu_device.c amdgpu_device_gpu_recover",
    ),
    LogRule(
        "AMD-RESET",
        "warn",
        "GPU reset",
        _OPEN + r"GPU reset(?:\(\d+\) succeeded!|  ?begin!| succeeded, trying to resume).*$",
        "the GPU was reset after a hang",
        ("look at the ring timeout or page fault just before it", "restart the programs that used the GPU", _DUMP),
        source="linux amdgpu_device.c amdgpu_device_gpu_recover",
    ),
    LogRule(
        "AMD-VRAM-LOST",
        "warn",
        "VRAM is lost due to GPU reset",
        _ANY + r"VRAM is lost due to GPU reset!$",
        "a reset lost the contents of the GPU's memory: every program that used it must be restarted",
        ("restart the programs that used the GPU",),
        source="linux amdgpu_device.c",
    ),
    LogRule(
        "AMD-PAGE-FAULT",
        "warn",
        " page fault (",
        _OPEN + r"\[(?P<hub>(?:gfx|mm)hub\d*)\] ?(?:VMC |retry |no-retry )?page fault \(.*$",
        lambda match: f"GPU code used an address that is not mapped for it ({match['hub']})",
        (
            "the lines after it name process and address: sudo dmesg | grep -A 8 'page fault'",
            "look for use after free and out of bounds in that program; retry faults (HSA_XNACK=1) are no fault",
        ),
        source="linux gmc_v9_0.c, gmc_v10_0.c, gmc_v11_0.c",
    ),
    LogRule(
        "AMD-RAS",
        "error",
        " uncorrectable hardware error",
        _OPEN + _SOCKET + r"[1-9]\d* (?:new )?uncorrectable hardware errors detected in (?:total in )?(?P<block>\w+) "
        r"block.*$",
        lambda match: f"memory or logic of the {match['block']} block was damaged beyond repair (RAS)",
        (
            "stop the work on this GPU, then reset it or reboot: results since the first line are not to be trusted",
            "compare the counters: grep . /sys/bus/pci/devices/{device}/ras/*_err_count",
            "if it returns: replace the card",
        ),
        source="linux amdgpu_ras.c; a poll without errors says 'no uncorrectable ...'",
    ),
    LogRule(
        "AMD-BAD-PAGES",
        "error",
        " threshold",
        _OPEN + r"(?:RAS records:\d+ exceed threshold:\d+|Saved bad pages \d+ reaches threshold value \d+).*$",
        "more memory pages went bad than this card may have",
        ("plan the replacement of the card", "list them: cat /sys/bus/pci/devices/{device}/ras/gpu_vram_bad_pages"),
        source="linux amdgpu_ras_eeprom.c",
    ),
    LogRule(
        "AMD-INIT",
        "error",
        "Fatal error during GPU init",
        _OPEN + r"Fatal error during GPU init$",
        "the driver stopped while it started the GPU",
        (
            "the lines above it name the step: sudo dmesg | grep -B 20 'Fatal error during GPU init'",
            "sudo reboot after the cure",
        ),
        source="linux amdgpu_device.c, amdgpu_kms.c",
    ),
    LogRule(
        "AMD-SMU",
        "error",
        "SMU: I'm not done with your previous command",
        _OPEN + r"SMU: I'm not done with your previous command.*$",
        "the power controller of the GPU (SMU) no longer answers",
        (
            "sudo reboot; if that is not enough, power the machine off for a minute",
            "update the card's VBIOS and the kernel",
            _DUMP,
        ),
        source="linux amd/pm/swsmu/smu_cmn.c",
    ),
    LogRule(
        "AMD-THERMAL",
        "critical",
        " detected!",
        _OPEN + r"ERROR: GPU (?:over temperature range\(SW CTF\)|HW Critical Temperature Fault\(aka CTF\)) detected!$",
        "the GPU got too hot: the driver shuts the machine down",
        (
            "check fans, air flow and dust; for passive cards the server's fan profile",
            "power the machine off before working on it",
        ),
        source="linux amd/pm/swsmu, powerplay",
    ),
    LogRule(
        "AMD-ATOMICS",
        "error",
        "PCI rejects atomics",
        r"^kfd kfd: (?:amdgpu: )?skipped device (?P<id>1002:[0-9a-f]{4}), PCI rejects atomics(?: (?P<have>\d+)<\d+)?$",
        lambda match: (
            f"no compute on {match['id']}: the path to it cannot do PCIe atomics"
            + (f", and its firmware {match['have']} is too old to do without" if match["have"] else "")
        ),
        (
            "move the card to a slot that hangs on the CPU, without a switch or an old bridge between",
            "update the system board's firmware and the GPU firmware package",
        ),
        device=None,
        source="linux amdkfd/kfd_device.c kgd2kfd_device_init; legacy ROCm README",
        split=True,
    ),
    LogRule(
        "AMD-RING-TIMEOUT",
        "warn",
        "GPU lockup",
        rf"^radeon {_BDF}: GPU lockup \(current fence id .* on ring (?P<ring>\d+)\)$",
        lambda match: f"work on ring {match['ring']} did not end in time",
        ("sudo dmesg | grep -A 20 'GPU lockup' shows whether the reset worked",),
        source="linux radeon/radeon_fence.c",
    ),
)
_SINGLE = ("AMD-RING-TIMEOUT", "AMD-VRAM-LOST")


@rule("AMD-RESET", needs="log", explains=("AMD-VRAM-LOST", "AMD-RING-TIMEOUT", "AMD-PAGE-FAULT"))
def resets(ctx: RuleContext) -> Iterator[Finding]:
    """Resets with what belongs to them: the hang before, the memory lost after."""
    yield from log_findings(ctx, [row for row in LOG_RULES if row.id == "AMD-RESET"])


@rule(*[one for one in ids(LOG_RULES) if one not in ("AMD-RESET", "AMD-INIT", "AMD-ATOMICS", "AMD-RAS")], needs="log")
def from_the_log(ctx: RuleContext) -> Iterator[Finding]:
    """The other lines. One without an address belongs to the only GPU there is."""
    own = [device.id for device in ctx.devices("amdgpu")]
    taken = ("AMD-RESET", "AMD-INIT", "AMD-ATOMICS", "AMD-RAS")
    for finding in log_findings(ctx, [row for row in LOG_RULES if row.id not in taken]):
        alone = finding.device is None and finding.id in _SINGLE and len(own) == 1
        yield finding._replace(device=own[0]) if alone else finding


@rule("AMD-INIT", needs="log", explains=("DRV-UNBOUND", "NODE-MISSING"))
def not_started(ctx: RuleContext) -> Iterator[Finding]:
    """A start that stopped; not told of a GPU that has its driver now."""
    for finding in log_findings(ctx, [row for row in LOG_RULES if row.id == "AMD-INIT"]):
        device = ctx.report.device(finding.device or "")
        if device is None or device.value("driver") is None:
            yield finding


@rule("AMD-ATOMICS", needs="log", explains=("COUNT-PCI-KFD",))
def atomics(ctx: RuleContext) -> Iterator[Finding]:
    """The compute driver leaves a GPU out, by its id; with one such GPU the address is known."""
    for finding in log_findings(ctx, [row for row in LOG_RULES if row.id == "AMD-ATOMICS"]):
        words = re.search(r"1002:([0-9a-f]{4})", finding.title)
        same = [
            one.id for one in ctx.devices("amdgpu") if words and one.value("pci/device_id") == f"0x{words.group(1)}"
        ]
        yield finding._replace(device=same[0]) if len(same) == 1 else finding


@rule("AMD-RAS")
def damaged(ctx: RuleContext) -> Iterator[Finding]:
    """Uncorrectable errors, from the counters of this boot, else from the log."""
    counted = set()
    for device in ctx.devices("amdgpu"):
        bad = {key: one for key, one in device.under("ras").items() if _is_count(key) and _number(one) > 0}
        if bad:
            counted.add(device.id)
            yield _counted(device, bad)
    for finding in log_findings(ctx, [row for row in LOG_RULES if row.id == "AMD-RAS"]):
        if finding.device not in counted:
            yield finding


def _is_count(key: str) -> bool:
    return key.endswith(("/uncorrectable", "/ue"))


def _number(reading: Reading) -> int:
    text = str(reading.value)
    return int(text) if text.isdecimal() else 0


def _counted(device: Device, bad: dict[str, Reading]) -> Finding:
    blocks = ", ".join(f"{key.split('/')[1].removesuffix('_err_count')} {one.value}" for key, one in bad.items())
    row = next(row for row in LOG_RULES if row.id == "AMD-RAS")
    fix = tuple(step.replace("{device}", device.id) for step in row.fix)
    title = f"uncorrectable errors since the driver started: {blocks} (RAS)"
    return Finding("AMD-RAS", "error", title, device.id, evidence(*list(bad.values())[:4]), fix)


@rule("AMD-BAD-PAGES")
def retired(ctx: RuleContext) -> Iterator[Finding]:
    """Memory pages that were put aside: healthy as long as there are few."""
    for device in ctx.devices("amdgpu"):
        reading = device.reading("ras/bad_pages")
        pages = (
            [line for line in str(reading.value or "").splitlines() if re.match(r"0x[0-9a-f]+ : 0x", line)]
            if reading
            else []
        )
        if reading is not None and pages:
            title = f"{len(pages)} bad memory page{'s are' if len(pages) > 1 else ' is'} put aside on {device.id}"
            fix = ("watch the number: a growing one means that the card is to be replaced",)
            yield Finding("AMD-BAD-PAGES", "info", title, device.id, evidence(reading), fix)
