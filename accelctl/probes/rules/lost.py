"""A device that stopped answering on the bus.

A read from a device that is gone returns all ones (PCIe base specification, PCI_ERROR_RESPONSE in include/linux/pci.h).
Such bits are never decoded: the device stays in the report as lost, its link facts become absences.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import BDF, DEVICE, LogRule, device_of, find, ids, matches, owner
from accelctl.abi.rules import RuleContext, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import VOLATILE, Reading, absent
from accelctl.probes.rules._common import WIDTHS, is_pci

_HEADER = 64
#: What follows from a lost device and must not stand beside it.
_EXPLAINS = (
    "PCI-AER-CORRECTABLE",
    "PCI-AER-NONFATAL",
    "PCI-AER-FATAL",
    "PCI-DPC",
    "PCI-LINK-DOWN",
    "PCI-LINK-WIDTH",
    "PCI-LINK-SPEED",
    "PCI-RECOVERY-FAILED",
    "PCI-RESET-FAILED",
    "PCI-REBAR",
    "LINK-BRIDGE",
    "COUNT-PCI-DRM",
    "COUNT-PCI-KFD",
    "DRV-UNBOUND",
    "NODE-MISSING",
    "AMD-RESET",
    "AMD-RING-TIMEOUT",
    "AMD-SMU",
    "AMD-VRAM-LOST",
    "INTEL-HANG",
    "INTEL-RESET",
    "INTEL-WEDGED",
    "HABANA-STATUS",
    "TASK-HUNG",
)
_FIX = (
    "check the card's power connectors, the power supply's headroom and the card's temperature (BMC sensors)",
    "shut down, take mains power away for a minute, start again: a warm reboot may not bring it back",
    "reseat the card, try another slot and no riser",
    "update the firmware of the card and of the system board",
)
_TITLE = "device lost from the PCIe bus"


def _row(literal: str, pattern: str, source: str, lines: int = 1) -> LogRule:
    return LogRule("PCI-LOST", "critical", literal, pattern, _TITLE, _FIX, source=source, lines=lines)


LOG_RULES = (
    _row(
        "Xid",
        r"^.*NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): 79,.*$",
        "NVIDIA Xid table, code 79; NVIDIA/open-gpu-kernel-modules issue 507",
    ),
    _row(
        "fallen off the bus",
        r"^.*NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<device>[0-9a-fA-F:.]+): GPU has fallen off the bus.*$",
        "NVIDIA/open-gpu-kernel-modules src/nvidia osinit.c",
    ),
    _row(
        "fallen off the bus and is not responding",
        r"^.*NVRM: The NVIDIA GPU (?P<device>[0-9a-fA-F:.]+)\s*\n.*NVRM: .*installed in this system has\s*\n"
        r".*NVRM: fallen off the bus and is not responding to commands.*$",
        "NVIDIA/NVSentinel issue 155; NVIDIA/open-gpu-kernel-modules nv.c",
        lines=3,
    ),
    _row("device lost from bus", rf"^.*{DEVICE}: (?:\w+: )?device lost from bus.*$", "linux amdgpu_device.c"),
    _row(
        "device inaccessible",
        rf"^.*{DEVICE}: Unable to change power state from \S+ to \S+ device inaccessible.*$",
        "linux drivers/pci/pci.c pci_power_up",
    )._replace(accelerators_only=True),
)


def _all_ones(ctx: RuleContext, device: Device) -> Evidence | None:
    """The whole header reads as ones. A VF's first four bytes always do, and all of a card in D3cold: not these."""
    if not is_pci(device) or device.value("power/power_state") in ("D3cold", "D3hot"):
        return None
    path = f"{device.path}/config"
    data = ctx.root.data(path, _HEADER)
    if data is None or len(data) < 16 or data.strip(b"\xff"):
        return None
    return Evidence(path, f"{data[:8].hex(' ')} ... (all {len(data)} bytes ff)")


def _logged(ctx: RuleContext) -> dict[str, list[Evidence]]:
    """Lines about lost devices, by device; of a storm the first and the last."""
    found: dict[str, list[Evidence]] = {}
    for row in LOG_RULES:
        for match in matches(ctx, row):
            name = device_of(row, match)
            if name is not None:
                found.setdefault(owner(ctx.report, name) or name, []).append(ctx.log_evidence(match))
    return {name: list(dict.fromkeys((lines[0], lines[-1]))) for name, lines in found.items()}


def _mark(device: Device | None, proof: Evidence) -> None:
    """Say "lost" on the device, and take back what was decoded from all-ones reads."""
    if device is None:
        return
    device.facts["state"] = Reading("lost", proof.source, proof.raw, None, None, VOLATILE)
    garbled = device.value("link/current_width") not in WIDTHS
    for key, reading in device.under("link").items() if garbled or proof.source.endswith("/config") else ():
        gone = absent(
            reading.source, "unreadable", detail="the device does not answer", raw=reading.raw, scope=reading.scope
        )
        device.facts[key] = gone._replace(unit=reading.unit)


def _finding(ctx: RuleContext, name: str, proof: list[Evidence]) -> Finding:
    _mark(ctx.report.device(name), proof[0])
    return Finding("PCI-LOST", "critical", f"{_TITLE}: {name} no longer answers", name, tuple(proof), _FIX)


@rule("PCI-LOST", explains=_EXPLAINS)
def lost(ctx: RuleContext) -> Iterator[Finding]:
    """What the bus says now; the log's words join it."""
    logged = _logged(ctx)
    for device in ctx.report.devices:
        proof = _all_ones(ctx, device)
        if proof is not None:
            yield _finding(ctx, device.id, [proof, *logged.get(device.id, [])])


@rule(*ids(LOG_RULES), needs="log", explains=_EXPLAINS)
def lost_by_log(ctx: RuleContext) -> Iterator[Finding]:
    """What the log says, also about devices whose configuration cannot be read or that are gone from sysfs."""
    for name, proof in _logged(ctx).items():
        device = ctx.report.device(name)
        if device is None or _all_ones(ctx, device) is None:
            yield _finding(ctx, name, proof)


_FOUND = (
    r"pci (?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0): \[[0-9a-f]{4}:[0-9a-f]{4}\] type 00 class "
    r"0x(?:03|12|0b40)"
)
_BUSES = rf"(?P<port>{BDF}): PCI bridge to \[bus (?P<first>[0-9a-f]{{2}})(?:-(?P<last>[0-9a-f]{{2}}))?\]"
_DOWN = rf"^.*pcieport (?P<port>{BDF}): pciehp: Slot\([^)]*\): (?:Link Down|Card not present).*$"


def _domain_bus(address: str) -> tuple[str, int]:
    return address[:-8], int(address[-7:-5], 16)


def _ports_above(text: str, name: str) -> list[str]:
    """Bridges whose bus range, as the kernel printed it at boot, holds a function."""
    domain, bus = _domain_bus(name)
    return [
        one["port"]
        for one in find(text, "PCI bridge to [bus ", _BUSES)
        if _domain_bus(one["port"])[0] == domain
        and int(one["first"], 16) <= bus <= int(one["last"] or one["first"], 16)
    ]


@rule("PCI-GONE", needs="log")
def gone(ctx: RuleContext) -> Iterator[Finding]:
    """An accelerator that the kernel had found, whose slot then reported link down, and that is on the bus no more.

    Both lines are asked for: a function may also leave quietly (VFs switched off, an unbound eGPU), which is no fault.
    """
    text = ctx.log.text if ctx.log else ""
    present = set(ctx.root.listdir("sys/bus/pci/devices"))
    downs = {match["port"]: match for match in find(text, "pciehp: Slot(", _DOWN)}
    if not present or not downs:
        return
    for name, seen in {match["device"]: match for match in find(text, "] type 00 class 0x", _FOUND)}.items():
        above = _ports_above(text, name) if name not in present else []
        down = next((downs[port] for port in above if port in downs and downs[port].start() > seen.start()), None)
        if down is not None:
            title = f"{name} was found at boot, its slot reported link down, and it is not on the bus any more"
            fix = (
                "if nobody took it out: check power, cabling and seating, then power-cycle",
                f"dmesg | grep -F '{down['port']}'",
            )
            yield Finding("PCI-GONE", "warn", title, name, (ctx.log_evidence(seen), ctx.log_evidence(down)), fix)
