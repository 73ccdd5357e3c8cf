"""IOMMU: groups that cannot be split, translation off where it is needed, DMA that was refused, left-over overrides."""

from __future__ import annotations

from collections.abc import Iterator

from accelctl.abi.logrules import DEVICE, LogRule, ids, log_findings
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.probes.rules._common import computing, is_pci, is_whole, name_list, physical
from accelctl.probes.upstream import bridges

_BLOCKED = "the IOMMU refused a memory access of the device"
_FAULT_FIX = (
    "read the lines around it: dmesg | grep -iE 'DMAR|AMD-Vi|smmu'",
    "update the driver and the system firmware; a fault at boot only may come from the firmware's own display set-up",
    "to tell driver from IOMMU: boot once with iommu=pt",
)


def _row(literal: str, pattern: str, source: str) -> LogRule:
    return LogRule(
        "IOMMU-FAULT",
        "warn",
        literal,
        pattern,
        _BLOCKED,
        _FAULT_FIX,
        source=source,
        certainty="likely",
        accelerators_only=True,
    )


LOG_RULES = (
    _row(
        "Request device [",
        r"^.*DMAR: ?\[(?:DMA )?(?:Read|Write)[^\]]*\] Request device "
        r"\[(?P<device>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\].*$",
        "linux drivers/iommu/intel/dmar.c",
    ),
    _row(
        "IO_PAGE_FAULT device=",
        r"^.*Event logged \[IO_PAGE_FAULT device=(?P<device>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*$",
        "linux drivers/iommu/amd/iommu.c",
    ),
    _row(
        "IO_PAGE_FAULT domain=",
        rf"^.*?{DEVICE}: (?:AMD-Vi: )?Event logged \[IO_PAGE_FAULT domain=.*$",
        "linux drivers/iommu/amd/iommu.c",
    ),
    _row(
        " client: ",
        rf"^.*arm-smmu-v3.*: event: \S+ client: {DEVICE} sid: .*$",
        "linux drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c (6.14 and later)",
    ),
)


@rule(*ids(LOG_RULES), needs="log")
def faults(ctx: RuleContext) -> Iterator[Finding]:
    """DMA faults that name an accelerator."""
    yield from log_findings(ctx, LOG_RULES)


def strangers(device: Device) -> list[str]:
    """Others in the group that are not part of the card: neither functions of its slot nor bridges above it."""
    above = {address for address, _ in bridges(device)}
    slot = device.id.rpartition(".")[0]
    return [
        name
        for name in device.value("iommu/shared_with") or ()
        if name not in above and name.rpartition(".")[0] != slot
    ]


@rule("PCI-IOMMU-SHARED")
def shared_group(ctx: RuleContext) -> Iterator[Finding]:
    """One finding per group: its members can only be given to one virtual machine, all together."""
    told: set[int] = set()
    for device in physical(ctx):
        group, others = device.value("iommu/group"), strangers(device)
        if group is None or group in told or not others:
            continue
        told.add(group)
        members = [one.id for one in physical(ctx) if one.value("iommu/group") == group]
        title = (
            f"IOMMU group {group} of {device.id} also holds {name_list(others)}: they can only be passed on together"
        )
        facts = evidence(device.reading("iommu/group"), device.reading("iommu/shared_with"))
        fix = ("if passthrough is wanted: another slot, or the ACS option in the firmware setup",)
        yield Finding("PCI-IOMMU-SHARED", "info", title, device.id if len(members) == 1 else None, facts, fix)


@rule("IOMMU-OFF")
def needed_but_off(ctx: RuleContext) -> Iterator[Finding]:
    """Only where something needs it: a device given to VFIO, or an NPU whose driver shares page tables with the CPU."""
    if ctx.report.value("iommu/active") is not False or not is_whole(ctx):
        return
    for device in computing(ctx):
        driver = device.value("driver")
        if device.chip == "amdxdna" and driver is None:
            why, level = "the NPU driver needs it (shared virtual addresses)", "warn"
        elif driver is not None and "vfio" in driver and is_pci(device):
            why, level = "VFIO can isolate nothing without it (no-IOMMU mode)", "warn"
        else:
            continue
        facts = evidence(ctx.report.machine.get("iommu/units"), ctx.report.machine.get("kernel/parameters"))
        fix = (
            "enable IOMMU (Intel VT-d, AMD-Vi, SMMU) in the firmware setup",
            "take iommu=off, intel_iommu=off, amd_iommu=off off the kernel command line; on Intel add intel_iommu=on",
        )
        yield Finding("IOMMU-OFF", level, f"no IOMMU is translating, but {why}", device.id, facts, fix, "likely")


@rule("PCI-DRIVER-OVERRIDE")
def left_over(ctx: RuleContext) -> Iterator[Finding]:
    """Harmless now, but the next bind goes elsewhere. (Without any driver bound it is the cause: see DRV-BLOCKED.)"""
    for device in computing(ctx):
        override, driver = device.value("driver_override"), device.value("driver")
        if override and driver and override != driver:
            title = f"driver_override says {override}, but {driver} is bound: the next bind will look for {override}"
            fix = (f"echo | sudo tee /{device.path}/driver_override",)
            facts = evidence(device.reading("driver_override"), device.reading("driver"))
            yield Finding("PCI-DRIVER-OVERRIDE", "warn", title, device.id, facts, fix)
