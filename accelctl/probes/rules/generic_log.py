"""Kernel log lines about accelerators that no single bus or chip owns: slots, resets, links, hung tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelctl.abi.logrules import DEVICE, LogRule, find, ids, log_findings
from accelctl.abi.rules import RuleContext, rule
from accelctl.model.finding import Evidence, Finding

LOG_RULES = (
    LogRule(
        "PCI-LINK-DOWN",
        "warn",
        "pciehp: Slot(",
        rf"^.*pcieport {DEVICE}: pciehp: Slot\([^)]*\): (?:Link Down|Card not present)$",
        "the slot's link went down and came back",
        (
            "if nobody took the card out: check power, cabling and seating",
            "boot once with pcie_port_pm=off: a port that sleeps can take a card down with it",
        ),
        source="linux drivers/pci/hotplug/pciehp_ctrl.c",
        accelerators_only=True,
    ),
    LogRule(
        "PCI-RESET-FAILED",
        "error",
        "giving up",
        rf"^.*?{DEVICE}: not ready \d+ms after .+; giving up$",
        "the device did not come back after a reset",
        ("power-cycle the machine (a warm reboot may not be enough)", "dmesg | grep -F {device}"),
        source="linux drivers/pci/pci.c pci_dev_wait",
        accelerators_only=True,
    ),
    LogRule(
        "PCI-LINK-RETRAIN",
        "warn",
        "retraining non-functional downstream link",
        rf"^.*?{DEVICE}: broken device, retraining non-functional downstream link at 2\.5GT/s$",
        "the link came up only after the kernel lowered it to 2.5 GT/s",
        (
            "reseat the card, try another slot or cable",
            "set the slot to a fixed lower generation in the firmware setup",
        ),
        source="linux drivers/pci/quirks.c pcie_failed_link_retrain (6.5 and later)",
        accelerators_only=True,
    ),
)


@rule(*ids(LOG_RULES), needs="log")
def from_the_log(ctx: RuleContext) -> Iterator[Finding]:
    """Rows as findings."""
    yield from log_findings(ctx, LOG_RULES)


_HUNG = r"^.*INFO: task (?P<task>.+):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds\.?$"
#: A line of a stack dump: function+0x12/0x34 [module], with a build id behind the name on some kernels.
_FRAME = re.compile(r"\b[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<module>\w+)(?: [0-9a-f]+)?\]")
#: Characters of the dump after the sentence: some eighty frames.
_DUMP = 6000


def _modules(ctx: RuleContext) -> dict[str, str]:
    """Modules of the rooms that are present -> room."""
    present = {device.chip for device in ctx.report.devices}
    return {
        str(row["name"]): room.name for room in ctx.rooms.rooms if room.name in present for row in room.table("module")
    }


@rule("TASK-HUNG", needs="log")
def hung_task(ctx: RuleContext) -> Iterator[Finding]:
    """A task that the kernel found stuck, with an accelerator's driver in its stack (kernel/hung_task.c)."""
    modules = _modules(ctx)
    text = ctx.log.text if ctx.log else ""
    found: dict[str, tuple[re.Match[str], str, int]] = {}
    for match in find(text, "blocked for more than", _HUNG):
        dump = text[match.end() : match.end() + _DUMP].split("INFO: task ", 1)[0]
        frame = next((one for one in _FRAME.finditer(dump) if one["module"] in modules), None)
        if frame is not None:
            first, words, number = found.get(frame["module"], (match, frame[0], 0))
            found[frame["module"]] = (first, words, number + 1)
    for module, (match, words, number) in found.items():
        owners = [device.id for device in ctx.report.devices if device.chip == modules[module]]
        more = f" ({number} such reports)" if number > 1 else ""
        title = f"task {match['task']} hangs in driver {module} for more than {match['seconds']} s{more}"
        facts = (ctx.log_evidence(match), Evidence(ctx.log_evidence(match).source, words))
        fix = (
            f"cat /proc/{match['pid']}/stack; dmesg | grep -F {module}",
            "a task in state D cannot be killed: if the device does not recover, reboot",
        )
        yield Finding("TASK-HUNG", "error", title, owners[0] if len(owners) == 1 else None, facts, fix, "likely")
