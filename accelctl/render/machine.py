"""Sections of the report about the whole machine: the matrix of links, who counts which device how, and facts that
matter."""

from __future__ import annotations

import re
from typing import Any

from accelctl.model.report import Report
from accelctl.probes.topology import MEANING
from accelctl.render import units
from accelctl.render.access import access_span, node_names
from accelctl.render.blocks import INDENT, LABEL
from accelctl.render.layout import Line, Page, Span, clean
from accelctl.render.reasons import reason

#: Letters of the kernel's taint bits, bit 0 first (Documentation/admin-guide/tainted-kernels.rst).
TAINTS = "PFSRMBUDAWCIOELKXTNJ"


def topology(page: Page, report: Report) -> None:
    """Link words between devices, and what the words used here mean."""
    matrix = report.value("topology")
    if not isinstance(matrix, dict):
        return
    order, rows = matrix["order"], matrix["rows"]
    if any(report.device(identity) is None for identity in order):
        return  # --device left only some of them
    numbers = {identity: str(index) for index, identity in enumerate(device.id for device in report.devices)}
    page.blank()
    if all(word in ("X", "?") for row in rows for word in row):
        page.line(Span("How they reach each other", "bold"), Span(f": {MEANING['?']}"))
        return
    page.line(Span("How they reach each other", "bold"))
    header = ["#", "device", *(numbers[identity] for identity in order)]
    table: list[list[Line]] = []
    for identity, row in zip(order, rows, strict=True):
        words = [(Span("-" if word == "X" else word, "dim" if word in ("X", "?") else ""),) for word in row]
        table.append([(Span(numbers[identity], "dim"),), (Span(identity),), *words])
    page.table(header, table, indent=INDENT, keys=2)
    used = [word for word in MEANING if word != "X" and any(word in row for row in rows)]
    page.flow((), [(Span(f"{word} "), Span(MEANING[word], "dim")) for word in used], indent=INDENT, comma=";")


def ordinals(page: Page, report: Report) -> None:
    """Which device a framework means by 0, 1, 2: shown where there is more than one, or where a variable changes it."""
    rooms = sorted({key.split("/")[1] for key in report.machine if key.startswith("ordinals/")})
    rows = [(room, *_ordinal(report, room)) for room in rooms]
    rows = [row for row in rows if len(row[1]) > 1 or row[3]]
    if not rows:
        return
    page.blank()
    page.line(Span("Numbers that frameworks use", "bold"))
    for room, order, visible, masks in rows:
        how = report.machine[f"ordinals/{room}/order"].source.removeprefix("computed: ")
        page.flow((Span(room, "dim"),), _numbered(page, order), indent=INDENT, hang=LABEL)
        page.flow((), [(Span(f"({clean(how)})", "dim"),)], indent=INDENT + LABEL)
        if masks:
            kept = _numbered(page, visible) or [(Span("none"),)]
            page.flow((Span(f"with {masks}: ", "warn"),), kept, indent=INDENT + LABEL, hang=2)


def _numbered(page: Page, order: list[str]) -> list[Line]:
    arrow = page.term.glyphs.arrow
    return [(Span(f"{number} {arrow} "), Span(clean(identity))) for number, identity in enumerate(order)]


def _ordinal(report: Report, room: str) -> tuple[list[str], list[str], str]:
    base = f"ordinals/{room}"
    masks = [
        f"{key.rpartition('/')[2]}={clean(one.value)}"
        for key, one in report.machine.items()
        if key.startswith(f"{base}/environment/")
    ]
    return report.value(f"{base}/order") or [], report.value(f"{base}/visible") or [], ", ".join(masks)


def facts(page: Page, report: Report) -> None:
    """What decides about accelerators beyond the devices themselves; what is missing in one line."""
    rows = [
        _kernel(report),
        _boot(report),
        _numa(report),
        _iommu(report),
        _limits(report),
        _shm(report),
        _nodes(page, report),
    ]
    missing: dict[str, list[str]] = {}
    shown = [(label, items) for label, items, _ in rows if items]
    for label, items, why in rows:
        if not items and why:
            missing.setdefault(why, []).append(label)
    if not shown and not missing:
        return
    page.blank()
    page.line(Span("Machine", "bold"))
    for label, items in shown:
        page.flow((Span(label, "dim"),), items, indent=INDENT, hang=LABEL)
    for why, labels in missing.items():
        page.flow(
            (Span("no value", "dim"),), [(Span(", ".join(labels) + ": "), Span(why, "dim"))], indent=INDENT, hang=LABEL
        )


_Row = tuple[str, list[Line], str | None]
"""Label, items, and without items the reason why (None: nothing to say)."""


def _kernel(report: Report) -> _Row:
    reading = report.machine.get("kernel/parameters")
    if reading is None or not isinstance(reading.value, dict):
        return "kernel parameters", [], reason(reading)
    items: list[Line] = [(Span(clean(f"{name}={value}" if value else name)),) for name, value in reading.value.items()]
    tainted = report.value("kernel/tainted")
    if isinstance(tainted, int) and tainted > 0:
        letters = "".join(letter for bit, letter in enumerate(TAINTS) if tainted >> bit & 1)
        items.append((Span(f"tainted {tainted}{f' ({letters})' if letters else ''}"),))
    return "kernel", items or [(Span("no parameters that matter here", "dim"),)], None


def _boot(report: Report) -> _Row:
    reading = report.machine.get("secure_boot")
    items: list[Line] = []
    if reading is not None and isinstance(reading.value, bool):
        items.append((Span(f"Secure Boot {'on' if reading.value else 'off'}"),))
    lockdown = report.value("kernel/lockdown")
    chosen = re.search(r"\[(\w+)\]", str(lockdown))
    if chosen and chosen.group(1) != "none":
        items.append((Span(f"lockdown {chosen.group(1)}"),))
    missing = reading is not None and reading.absence is not None and reading.absence.kind == "not_captured"
    return "Secure Boot" if not items else "boot", items, reason(reading) if missing else None


def _numa(report: Report) -> _Row:
    nodes, cpus = report.machine.get("numa/online"), report.value("cpu/online")
    items: list[Line] = []
    if nodes is not None and nodes.present:
        items.append(
            (Span(f"node {clean(nodes.value)}" if "-" not in str(nodes.value) else f"nodes {clean(nodes.value)}"),)
        )
    if cpus:
        items.append((Span(f"CPUs {clean(cpus)}"),))
    return "NUMA" if not items else "numa", items, reason(nodes)


def _iommu(report: Report) -> _Row:
    active = report.machine.get("iommu/active")
    if active is None or not active.present:
        return "IOMMU", [], reason(active)
    if not active.value:
        return "iommu", [(Span("off: devices are not isolated"),)], None
    found, groups = report.value("iommu/units") or [], report.value("iommu/groups")
    items: list[Line] = [(Span(f"on, {units.counted(groups or 0, 'group')}"),)]
    if found:
        items.append((Span(clean(units.listed(found, 3))),))
    return "iommu", items, None


def _limits(report: Report) -> _Row:
    items: list[Line] = []
    for key, word in (("memlock", "locked memory"), ("nofile", "open files")):
        value = report.value(f"limits/{key}_soft")
        if value is not None:
            text = units.size(value) if key == "memlock" and isinstance(value, int) else str(value)
            items.append((Span(f"{word} {text}"),))
    return "limits", items, reason(report.machine.get("limits/memlock_soft"))


def _shm(report: Report) -> _Row:
    total, free = report.value("shm/size_bytes"), report.value("shm/free_bytes")
    if not isinstance(total, int):
        return "/dev/shm", [], reason(report.machine.get("shm/size_bytes"))
    rest = f", {units.size(free)} free" if isinstance(free, int) else ""
    return "/dev/shm", [(Span(f"{units.size(total)}{rest}"),)], None


def _nodes(page: Page, report: Report) -> _Row:
    """Nodes that serve several devices (/dev/kfd, /dev/nvidiactl)."""
    found: dict[str, Any] = report.machine
    items: list[Line] = [(Span(f"/dev/{name} "), access_span(found, name)) for name in node_names(found)]
    return "nodes", items, None
