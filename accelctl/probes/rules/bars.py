"""Memory windows (BARs): one that got no address makes a card useless, a small one only costs speed.

Wordings: drivers/pci/setup-res.c, older ("BAR 1: no space for [mem size ...]", then "BAR 1: failed to assign [...]")
and newer ("BAR 1 [mem size ...]: can't assign; no space"). Of these only memory BARs 0 to 5 count: a missing I/O BAR,
expansion ROM (BAR 6) or VF BAR does not stop an accelerator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from accelctl.abi.logrules import DEVICE, LogRule, find, owner
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.rules._common import by_file, is_pci, physical, size_words

_PREFIX = rf"^(?:.*\s)?{DEVICE}: BAR (?P<bar>[0-5])"
_SIZE = r"\[mem size (?P<size>0x[0-9a-f]{1,16})[^\]]*\]"
_OLD = rf"{_PREFIX}: (?:no space for|failed to assign) {_SIZE}"
_NEW = rf"{_PREFIX} {_SIZE}: (?:can't assign; no space|failed to assign)"
_ASSIGNED = rf"{_PREFIX}(?:: assigned \[mem 0x| \[mem 0x[^\]]*\]: assigned)"
#: include/linux/ioport.h
_IO, _UNSET = 0x100, 0x20000000
_FIX = (
    'enable "Above 4G Decoding" (and MMIO high size, if there is one) in the firmware setup, then reboot',
    "or add pci=realloc to the kernel command line and reboot",
)
#: A driver that finds no window to the card's memory gives up: its own words are consequences.
_EXPLAINS = (
    "PCI-REBAR",
    "DRV-UNBOUND",
    "NODE-MISSING",
    "NODE-HIDDEN",
    "NV-INIT",
    "AMD-INIT",
    "INTEL-WEDGED",
    "HABANA-INIT",
)


def _title(match: re.Match[str]) -> str:
    return f"BAR {match['bar']} got no address: {size_words(int(match['size'], 16))} wanted, not assigned"


LOG_RULES = (
    LogRule(
        "PCI-BAR-UNASSIGNED", "error", "no space for [mem", _OLD, _title, _FIX, accelerators_only=True, split=True,
        source="linux drivers/pci/setup-res.c before 6.10",
    ),
    LogRule(
        "PCI-BAR-UNASSIGNED", "error", "[mem size", _NEW, _title, _FIX, accelerators_only=True, split=True,
        source="linux drivers/pci/setup-res.c",
    ),
)  # fmt: skip


class Lost(NamedTuple):
    """A BAR without an address: wanted size in bytes, and what says so."""

    size: int
    proof: tuple[Evidence, ...]


def _assigned_now(ctx: RuleContext, device: str, bar: int) -> bool:
    """True where sysfs shows an address: the kernel tried again, or the driver gave up on a larger window."""
    found = ctx.report.device(device)
    return found is not None and (found.value(f"bars/{bar}/size_bytes") or 0) > 0 and not _unset(found, bar)


def _unset(device: Device, bar: int) -> bool:
    reading = device.reading(f"bars/{bar}/size_bytes")
    words = (reading.raw or "").split() if reading else []
    return len(words) == 3 and bool(int(words[2], 16) & _UNSET) and not int(words[2], 16) & _IO


def _zero_line(ctx: RuleContext, device: str, bar: int) -> tuple[Evidence, ...]:
    """The line of ``resource`` as evidence, zeros and all."""
    found = ctx.report.device(device)
    path = f"{found.path}/resource" if found else ""
    lines = (ctx.root.text(path) or "").splitlines() if found else []
    return (Evidence(path, lines[bar].strip()),) if bar < len(lines) else ()


def _from_log(ctx: RuleContext) -> dict[tuple[str, int], Lost]:
    """Failures that no later line and no sysfs file takes back."""
    found: dict[tuple[str, int], Lost] = {}
    places: dict[tuple[str, int], int] = {}
    text = ctx.log.text if ctx.log is not None else ""
    for pattern in (_OLD, _NEW):
        for match in find(text, "[mem size", pattern):
            key = (match["device"].lower(), int(match["bar"]))
            known = found.get(key)
            proof = (known.proof if known else ()) + (ctx.log_evidence(match),)
            found[key] = Lost(int(match["size"], 16), proof[:1] + proof[-1:] if len(proof) > 2 else proof)
            places[key] = max(places.get(key, 0), match.start())
    for match in find(text, "assigned", _ASSIGNED) if found else ():
        key = (match["device"].lower(), int(match["bar"]))
        if key in places and match.start() > places[key]:
            del found[key], places[key]
    return {key: lost for key, lost in found.items() if owner(ctx.report, key[0]) == key[0]}


def _from_sysfs(ctx: RuleContext) -> dict[tuple[str, int], Lost]:
    """BARs that sysfs calls unset: the flag says so, start is 0 and the end still carries the size."""
    found = {}
    for device in ctx.report.devices:
        for bar in range(6) if is_pci(device) else ():
            reading = device.reading(f"bars/{bar}/size_bytes")
            if reading is not None and reading.value and _unset(device, bar):
                found[device.id, bar] = Lost(reading.value, evidence(reading))
    return found


def _finding(device: str, bar: int, lost: Lost) -> Finding:
    title = f"BAR {bar} of {device} got no address: {size_words(lost.size)} wanted, not assigned"
    return Finding("PCI-BAR-UNASSIGNED", "error", title, device, tuple(dict.fromkeys(lost.proof)), _FIX)


@rule("PCI-BAR-UNASSIGNED", explains=_EXPLAINS)
def unassigned(ctx: RuleContext) -> Iterator[Finding]:
    """By sysfs alone; what the log adds to the same BAR becomes evidence."""
    logged = _from_log(ctx)
    for (device, bar), lost in _from_sysfs(ctx).items():
        more = logged.get((device, bar))
        yield _finding(device, bar, lost._replace(proof=lost.proof + more.proof) if more else lost)


@rule("PCI-BAR-UNASSIGNED", needs="log", explains=_EXPLAINS)
def unassigned_by_log(ctx: RuleContext) -> Iterator[Finding]:
    """By the log: a BAR that was given up has only zeros in sysfs, as one that never existed has."""
    known = _from_sysfs(ctx)
    for (device, bar), lost in _from_log(ctx).items():
        if (device, bar) not in known and not _assigned_now(ctx, device, bar):
            yield _finding(device, bar, Lost(lost.size, lost.proof + _zero_line(ctx, device, bar)))


def _window(device: Device) -> tuple[int, Reading, Reading] | None:
    """The resizable BAR that can grow largest: (number, size now, largest size). Doorbell BARs are resizable too."""
    found = []
    for bar in range(6):
        now, most = device.reading(f"bars/{bar}/size_bytes"), device.reading(f"bars/{bar}/max_size_bytes")
        if now is not None and most is not None and now.value and most.value:
            found.append((most.value, -bar, now, most))
    if not found:
        return None
    _, bar, now, most = max(found, key=lambda one: one[:2])
    return -bar, now, most


def _memory(device: Device) -> Reading | None:
    """Memory on the card, as its driver says."""
    for key in ("memory/vram_total_bytes", "memory/local_total_bytes", "memory/total_bytes"):
        reading = device.reading(key)
        if reading is not None and reading.value:
            return reading
    return by_file(device, "mem_info_vram_total")


def _sizes(mask: Reading | None) -> str:
    """The sizes a resize mask offers: bit n stands for 2**(n+20) bytes (Documentation/ABI/testing/sysfs-bus-pci)."""
    bits = int(mask.value, 16) if mask is not None and mask.value else 0
    if not bits:
        return "larger sizes"
    low, high = (bits & -bits).bit_length() - 1 + 20, bits.bit_length() - 1 + 20
    return f"{size_words(1 << low)} to {size_words(1 << high)}"


_REBAR_FIX = (
    'enable "Re-Size BAR Support" (and "Above 4G Decoding", CSM off) in the firmware setup, then reboot',
)  # fmt: skip


@rule("PCI-REBAR")
def small_window(ctx: RuleContext) -> Iterator[Finding]:
    """The card works, but the host sees its memory through a small window."""
    for device in physical(ctx):
        window, memory = _window(device), _memory(device)
        total = memory.value if memory is not None else None
        visible = by_file(device, "mem_info_vis_vram_total")
        if window is not None:
            bar, now, most = window
            if now.value < most.value and (total is None or now.value < total):
                mask = device.reading(f"bars/{bar}/resize_mask")
                title = (
                    f"BAR {bar} is {size_words(now.value)}, sizes up to {size_words(most.value)} are possible "
                    f"({_sizes(mask)}): resizable BAR is off; the device is healthy"
                )
                yield Finding("PCI-REBAR", "info", title, device.id, evidence(now, mask, memory), _REBAR_FIX)
        elif visible is not None and visible.value and total and visible.value < total:
            title = (
                f"the host sees {size_words(visible.value)} of {size_words(total)} device memory: "
                "resizable BAR is off or not supported; the device is healthy"
            )
            yield Finding("PCI-REBAR", "info", title, device.id, evidence(visible, memory), _REBAR_FIX)
