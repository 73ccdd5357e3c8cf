"""What the NVIDIA drivers say of their GPUs: Xid lines, failed starts, cards the module refuses, excluded cards.

Wordings were read in NVIDIA/open-gpu-kernel-modules (nv.c, nvalloc/unix/src/osapi.c, osinit.c) and in public kernel
logs; the meaning of an Xid stands in codes.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from accelctl.abi.logrules import LogRule, ids, log_findings
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Finding

# -- hints for the bus-generic rules (probes/rules/hints.py) --

#: The driver's libraries refuse a kernel module of any other version (NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18).
LOCKSTEP = ("libnvidia-ml.so.*", "libcuda.so.*")
LOCKSTEP_EFFECT = "every NVML and CUDA call fails at its start (NVML answers 18, CUDA 803)"
CLIENT_MISMATCH = (
    "NVRM: API mismatch",
    r"NVRM: API mismatch: the client(?:.|\n){0,120}?has the version (?P<client>\d+(?:\.\d+)+)"
    r"(?:.|\n){0,160}?the version (?P<module>\d+(?:\.\d+)+)[^\n]*",
)
NOT_PROBED = ("probe routine was not called", r"^NVRM: The NVIDIA probe routine was not called for \d+ device\(s\)\.")
#: nvidia-modprobe makes the nodes; the CUDA library calls it, and nvidia-smi as root has the same effect.
NODES_ON_DEMAND = "sudo nvidia-modprobe -c 0 -u (or: sudo nvidia-smi)"
#: NVIDIA container toolkit and k8s-device-plugin documentation.
CONTAINER = {
    "docker": "docker run --gpus all IMAGE",
    "cdi": "docker run --device nvidia.com/gpu=all IMAGE (podman likewise), after: nvidia-ctk cdi generate",
    "kubernetes": 'resources: {limits: {"nvidia.com/gpu": 1}} with the NVIDIA device plugin',
}
LIBRARY_PREFIXES = ("libnvidia-", "libcudart", "libcudnn", "libcublas", "libnvrtc", "libnccl")

_BDF = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_NVLINK5 = range(144, 151)


@lru_cache(maxsize=1)
def codes() -> dict[str, dict[str, str]]:
    """Xid number -> meaning, level, next step."""
    loaded = json.loads((Path(__file__).parent / "codes.json").read_text(encoding="utf-8"))["codes"]
    return loaded if isinstance(loaded, dict) else {}


def xid_level(match: re.Match[str]) -> str:
    """Level of an Xid line; some lines carry their own severity or the action the driver recommends."""
    number, tail = match["xid"], match["tail"]
    if number == "154":
        return "info" if "(None)" in tail.rpartition(" to ")[2] else "error"
    if int(number) in _NVLINK5 and re.search(r"\bNon-?fatal\b", tail, re.IGNORECASE):
        return "warn"
    return codes().get(number, {}).get("level", "warn")


def xid_title(match: re.Match[str]) -> str:
    """The number with its meaning; unknown numbers are shown as they are."""
    entry = codes().get(match["xid"])
    if entry is None:
        return f"Xid {match['xid']}: a code that this version does not explain"
    action = match["tail"].rpartition(" to ")[2].strip() if match["xid"] == "154" else ""
    return f"Xid {match['xid']}: {entry['meaning']}" + (f": {action}" if action else "")


XID = LogRule(
    "NV-XID",
    xid_level,
    "NVRM: Xid",
    # 79 is the bus rule's (PCI-LOST); GPU-I names a MIG instance
    rf"^NVRM: Xid \((?:PCI:)?{_BDF}(?: GPU-I:\w+)?\): (?!79\b)(?P<xid>\d+)\b,?(?P<tail>.*)$",
    xid_title,
    source="NVIDIA/open-gpu-kernel-modules; leptonai/gpud xid component",
    split=True,
)
LOG_RULES = (
    XID,
    LogRule(
        "NV-INIT",
        "error",
        "RmInitAdapter failed",
        rf"^NVRM: GPU {_BDF}: RmInitAdapter failed! \((?P<code>[0-9a-fx:]+)\)$",
        lambda match: f"the driver could not start this GPU (RmInitAdapter {match['code']})",
        (
            "the lines above it name the step: sudo dmesg | grep -B 20 RmInitAdapter",
            "power the machine off for a minute (a warm reboot may not be enough), then check power cables and seating",
            "if the lines name GSP firmware: is the firmware of this very driver version in /lib/firmware/nvidia?",
        ),
        source="NVIDIA/open-gpu-kernel-modules osinit.c; public logs",
    ),
    LogRule(
        "NV-UNSUPPORTED",
        "error",
        "nvidia.ko because it does not include",
        rf"^NVRM: The NVIDIA GPU {_BDF} \(PCI ID: (?P<id>[0-9a-f:]+)\)(?:.|\n){{0,200}}?"
        r"nvidia\.ko because it does not include[^\n]*",
        lambda match: f"the open kernel module does not drive this GPU ({match['id']}): it has no GPU system processor",
        (
            "install the closed kernel module of a branch that still knows the GPU, in place of the -open one",
            "sudo reboot",
        ),
        source="NVIDIA/open-gpu-kernel-modules osapi.c (gpumgrIsDeviceRmFirmwareCapable)",
        lines=3,
    ),
    LogRule(
        "NV-UNSUPPORTED",
        "error",
        "GPU installed in this system is",
        r"NVRM: The NVIDIA (?P<name>[^\n]+?) GPU installed in this system is(?:\nNVRM:)? +supported through the "
        r"NVIDIA (?P<branch>[\w.]+) [Ll]egacy[^\n]*",
        lambda match: f"this driver ignores the {match['name']}: it needs the {match['branch']} legacy branch",
        ("install the driver of that legacy branch", "sudo reboot"),
        device=None,
        source="public logs: a driver of branch 595 with a GTX 1050",
        lines=2,
    ),
    LogRule(
        "NV-SXID",
        lambda match: "warn" if match["severity"] == "Non-fatal" else "error",
        "SXid (PCI:",
        rf"^nvidia-nvswitch\d+: SXid \(PCI:{_BDF}\): (?P<code>\d+), (?P<severity>Non-fatal|Fatal), (?P<words>.*)$",
        lambda match: f"NVSwitch error {match['code']} ({match['severity'].lower()}): {match['words']}",
        (
            "sudo journalctl -u nvidia-fabricmanager; compare both ends of the link it names",
            "a fatal one ends traffic on the port: reset the GPUs and switches of the fabric, or reboot",
        ),
        source="leptonai/gpud sxid component; NVIDIA Fabric Manager user guide, appendix D",
        split=True,
    ),
)


@rule(*ids(LOG_RULES), needs="log", explains=("DRV-UNBOUND", "NODE-MISSING"))
def from_the_log(ctx: RuleContext) -> Iterator[Finding]:
    """Findings of the driver's own lines; an Xid gets the next step of its number."""
    for finding in log_findings(ctx, LOG_RULES):
        number = re.match(r"Xid (\d+)", finding.title) if finding.id == "NV-XID" else None
        step = codes().get(number.group(1), {}).get("next") if number else None
        yield finding._replace(fix=(step.replace("{device}", finding.device or "GPU"),)) if step else finding


@rule("PCI-LOST", explains=("NV-XID", "NV-INIT", "DRV-UNBOUND", "NODE-MISSING"))
def lost(ctx: RuleContext) -> Iterator[Finding]:
    """Declares what follows from a GPU that left the bus; the bus-generic rule of the same id finds it."""
    yield from ()


@rule("NV-EXCLUDED")
def excluded(ctx: RuleContext) -> Iterator[Finding]:
    """A GPU that the module was told to leave alone (NVreg_ExcludedGpus)."""
    for device in ctx.devices("nvidia"):
        reading = device.reading("nvidia/excluded")
        if reading is not None and str(reading.value).lower() == "yes":
            title = f"{device.id} is excluded from use by the module option NVreg_ExcludedGpus"
            fix = ("grep -r NVreg_ExcludedGpus /etc/modprobe.d; remove it there, rebuild the initramfs, reboot",)
            yield Finding("NV-EXCLUDED", "warn", title, device.id, evidence(reading), fix)
