"""PCIe errors (Advanced Error Reporting), from the counters in sysfs, else from the log.

The counters are "as seen by that device": an endpoint's trouble may be counted at its link partner only, and the TOTAL
line need not equal the sum (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats). So the ports above are looked
at as well, and one path makes one finding. Newer kernels write "Correctable error message received from", older ones
"Corrected error received:" (drivers/pci/pcie/aer.c); both are the same class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from accelctl.abi.logrules import DEVICE, LogRule, device_of, ids, log_findings, matches, owner
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.rules._common import name_list, physical, sharers
from accelctl.probes.upstream import bridges

#: Corrected errors since boot (or since the device was added) from which it is a warning. The counters carry no time.
#: A link trained anew or a card that wakes leaves a handful, and the specification's own bit error limit of 1e-12
#: allows one in a minute or so for each lane under full load; hundreds are what people with bad risers report. Below
#: FEW nothing is said, between the two it is information.
MANY, FEW = 100, 10

_SOURCE = rf"(?:{DEVICE}|id=(?P<id>[0-9a-f]{{4}}))"
_PORT = r"^.*?(?P<domain>[0-9a-f]{4,8}):[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: (?:PCIe )?AER: (?:Multiple )?"
_RECEIVED = r" error (?:message received from|received:) "
_SIGNAL_FIX = (
    "reseat the card; try it without riser or extension and in another slot",
    "boot once with pcie_aspm=off: if the errors stop, a power saving state of the link causes them",
    "see whether it grows: cat /sys/bus/pci/devices/{device}/aer_dev_correctable",
)
_HARD_FIX = (
    "read the lines around it: dmesg | grep -F {device}",
    "check power, seating, riser and slot; update the firmware of card and board",
    "if it comes back after a power cycle, move the card to another slot to tell card from slot",
)


def _source(match: re.Match[str]) -> str:
    """The sender of the message; older kernels print its requester id (bus << 8 | device << 3 | function)."""
    if match["device"] is not None:
        return str(match["device"])
    number = int(match["id"], 16)
    return f"{match['domain']}:{number >> 8:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"


def _row(identity: str, level: str, words: str, title: str, fix: tuple[str, ...]) -> LogRule:
    pattern = f"{_PORT}(?:{words}){_RECEIVED}{_SOURCE}.*$"
    return LogRule(
        identity, level, "AER: ", pattern, title, fix, _source, "linux drivers/pci/pcie/aer.c", accelerators_only=True
    )


_CORRECTABLE = _row("PCI-AER-CORRECTABLE", "warn", "Correctable|Corrected", "correctable PCIe error", _SIGNAL_FIX)
_NONFATAL = _row(
    "PCI-AER-NONFATAL",
    "error",
    r"Uncorrectable \(Non-Fatal\)|Uncorrected \(Non-Fatal\)",
    "uncorrectable PCIe error, not fatal: a transfer was lost",
    _HARD_FIX,
)
_FATAL = _row(
    "PCI-AER-FATAL",
    "critical",
    r"Uncorrectable \(Fatal\)|Uncorrected \(Fatal\)",
    "fatal PCIe error: the link was not reliable any more",
    _HARD_FIX,
)
_RECOVERY = LogRule(
    "PCI-RECOVERY-FAILED",
    "error",
    "recovery failed",
    rf"^.*?{DEVICE}: (?:AER: |DPC: )?device recovery failed.*$",
    "the kernel could not recover the device after a PCIe error",
    ("power-cycle the machine", *_HARD_FIX),
    source="linux drivers/pci/pcie/err.c",
    accelerators_only=True,
)
_CONTAINED = LogRule(
    "PCI-DPC",
    "error",
    "containment event",
    rf"^.*?{DEVICE}: DPC: containment event, status:0x[0-9a-f]+.*$",
    "the port cut its link after an uncorrectable error (downstream port containment)",
    _HARD_FIX,
    source="linux drivers/pci/pcie/dpc.c",
    accelerators_only=True,
)
LOG_RULES = (_CORRECTABLE, _NONFATAL, _FATAL, _RECOVERY, _CONTAINED)


def total(counts: dict[str, int]) -> int:
    """The TOTAL line, or the sum where that is larger."""
    own = sum(count for name, count in counts.items() if not name.startswith("TOTAL"))
    return max(own, *(count for name, count in counts.items() if name.startswith("TOTAL")), 0)


def kinds(counts: dict[str, int]) -> str:
    """The kinds that occurred, as the kernel names them."""
    words = [f"{name} {count}" for name, count in counts.items() if count and not name.startswith("TOTAL")]
    return ", ".join(words)


@dataclass(frozen=True)
class Seen:
    """Errors of one class on one path: where most were counted, how many, of which kinds; no device: a shared port."""

    device: str | None
    where: str
    count: int
    counts: dict[str, int]
    proof: tuple[Evidence, ...]
    shared: tuple[str, ...] = ()


def _counted(reading: Reading | None) -> dict[str, int]:
    value = reading.value if reading is not None else None
    if isinstance(value, dict):
        return value
    return {"TOTAL": value} if isinstance(value, int) else {}


def _places(ctx: RuleContext, kind: str) -> Iterator[tuple[str | None, str, Reading, tuple[str, ...]]]:
    """(device, function that counted, reading, sharers) of every counter on the way to an accelerator, each once."""
    short = {"correctable": "cor"}.get(kind, kind)
    told: set[str] = set()
    users = sharers(ctx)
    for device in physical(ctx):
        own = device.reading(f"aer/{kind}")
        if own is not None:
            yield device.id, device.id, own, ()
        for address, _ in bridges(device):
            if address in told:
                continue
            told.add(address)
            behind = tuple(users[address])
            for key in (f"aer/{kind}", f"aer/rootport_{short}"):
                reading = device.reading(f"upstream/{address}/{key}")
                if reading is not None:
                    yield behind[0] if len(behind) == 1 else None, address, reading, behind


def seen(ctx: RuleContext, kind: str) -> list[Seen]:
    """One entry per accelerator (its own counters, those of its own ports) and per shared port, if not zero."""
    best: dict[str, Seen] = {}
    for device, where, reading, behind in _places(ctx, kind):
        counts = _counted(reading)
        count = total(counts) if any(counts.values()) else 0
        key = device or where
        known = best.get(key)
        if count == 0:
            continue
        proof = (known.proof if known else ()) + evidence(reading)
        # The device's own count wins a tie: the port's total counts the same messages again.
        if known is None or count > known.count:
            best[key] = Seen(device, where, count, counts, proof, behind if device is None else ())
        else:
            best[key] = replace(known, proof=proof)
    return list(best.values())


def _where(one: Seen) -> str:
    if one.device == one.where:
        return ""
    return f", counted at port {one.where}" + (f" above {name_list(one.shared)}" if one.shared else "")


def _fixes(steps: tuple[str, ...], address: str) -> tuple[str, ...]:
    return tuple(step.replace("{device}", address) for step in steps)


@rule("PCI-AER-CORRECTABLE")
def correctable(ctx: RuleContext) -> Iterator[Finding]:
    """By the counters in sysfs."""
    fatal = {one.device or one.where for one in seen(ctx, "fatal")}
    for one in seen(ctx, "correctable"):
        if one.count < FEW:
            continue
        words = kinds(one.counts)
        none = "" if (one.device or one.where) in fatal else ", no fatal ones"
        title = f"{one.count} correctable PCIe errors{f' ({words})' if words else ''}{none}{_where(one)}"
        level, tail = ("warn", "the signal on the link is poor") if one.count >= MANY else ("info", "few, since boot")
        fix = _fixes(_SIGNAL_FIX, one.where)
        yield Finding("PCI-AER-CORRECTABLE", level, f"{title}: {tail}", one.device, one.proof, fix, "likely")


@rule("PCI-AER-CORRECTABLE", needs="log")
def correctable_by_log(ctx: RuleContext) -> Iterator[Finding]:
    """By the log, where sysfs has no counters (kernels before 4.19, or counters that began anew)."""
    known = {one.device or one.where for one in seen(ctx, "correctable")}
    for name, found in _by_source(ctx, _CORRECTABLE).items():
        if name not in known and len(found) >= FEW:
            level = "warn" if len(found) >= MANY else "info"
            title = f"{len(found)} correctable PCIe errors in the kernel log: the signal on the link is poor"
            proof = tuple(dict.fromkeys(ctx.log_evidence(match) for match in (found[0], found[-1])))
            yield Finding("PCI-AER-CORRECTABLE", level, title, name, proof, _fixes(_SIGNAL_FIX, name), "likely")


def _by_source(ctx: RuleContext, row: LogRule) -> dict[str, list[re.Match[str]]]:
    found: dict[str, list[re.Match[str]]] = {}
    for match in matches(ctx, row):
        name = device_of(row, match) or ""
        found.setdefault(owner(ctx.report, name) or name, []).append(match)
    return found


@rule("PCI-AER-NONFATAL", explains=("PCI-AER-CORRECTABLE",))
def nonfatal(ctx: RuleContext) -> Iterator[Finding]:
    """A transfer was lost. Unsupported Request alone is what probing absent functions leaves: a warning."""
    for one in seen(ctx, "nonfatal"):
        harmless = {name for name, count in one.counts.items() if count and not name.startswith("TOTAL")} == {
            "UnsupReq"
        }
        words = kinds(one.counts)
        title = f"{one.count} uncorrectable PCIe errors, not fatal{f' ({words})' if words else ''}{_where(one)}"
        level, steps = "warn" if harmless else "error", _fixes(_HARD_FIX, one.where)
        yield Finding("PCI-AER-NONFATAL", level, title, one.device, one.proof, steps)


@rule("PCI-AER-FATAL", explains=("PCI-AER-NONFATAL", "PCI-AER-CORRECTABLE", "PCI-DPC"))
def fatal(ctx: RuleContext) -> Iterator[Finding]:
    """The link was not reliable. At a port, Surprise Down alone also comes from taking a card out: a warning."""
    for one in seen(ctx, "fatal"):
        only = {name for name, count in one.counts.items() if count and not name.startswith("TOTAL")}
        removed = one.device != one.where and only == {"SDES"}
        words = kinds(one.counts)
        title = f"{one.count} fatal PCIe errors{f' ({words})' if words else ''}{_where(one)}"
        level, steps = "warn" if removed else "critical", _fixes(_HARD_FIX, one.where)
        yield Finding("PCI-AER-FATAL", level, title, one.device, one.proof, steps)


@rule("PCI-AER-NONFATAL", "PCI-AER-FATAL", needs="log", explains=("PCI-AER-CORRECTABLE", "PCI-DPC"))
def uncorrectable_by_log(ctx: RuleContext) -> Iterator[Finding]:
    """By the log, where the counters do not say it already."""
    for row, kind in ((_NONFATAL, "nonfatal"), (_FATAL, "fatal")):
        known = {one.device or one.where for one in seen(ctx, kind)}
        yield from (one for one in log_findings(ctx, (row,)) if one.device not in known)


@rule(*ids((_RECOVERY, _CONTAINED)), needs="log", explains=("PCI-LINK-DOWN",))
def aftermath(ctx: RuleContext) -> Iterator[Finding]:
    """What the kernel did about an error."""
    yield from log_findings(ctx, (_RECOVERY, _CONTAINED))
