"""Accelerators in the report: a block of lines for one, shared lines and a table for several equal ones, parts below
their whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from accelctl.model.device import Device
from accelctl.model.report import Report
from accelctl.render.access import access_span, node_names
from accelctl.render.fields import Field, Subject, fields
from accelctl.render.layout import Line, Page, Span, cells, clean
from accelctl.render.tally import PARTS, health_of

INDENT, LABEL = 2, 10
"""Columns before a field's label, and for the label itself."""

_ABSENT_CELL: dict[str, Line] = {"state": (Span("awake"),)}
"""What stands in a column for a device to which the field says nothing."""

GROUP = 3
"""So many equal devices become a table."""

FOLD = 8
"""More parts than this of one device are listed by id instead of a line each."""


def accelerators(page: Page, report: Report, devices: Sequence[Device]) -> None:
    """Groups of equal devices in the order of their first one."""
    groups: dict[tuple[Any, ...], list[Device]] = {}
    for device in devices:
        groups.setdefault(_model(device), []).append(device)
    for group in groups.values():
        if len(group) >= GROUP:
            _group(page, report, group)
            continue
        for device in group:
            _block(page, report, device)


def _model(device: Device) -> tuple[Any, ...]:
    keys = ("pci/vendor_id", "pci/device_id", "pci/subsystem_device_id", "name", "driver", "driver_version")
    return (device.chip, device.kind, *(str(device.value(key)) for key in keys))


def full_name(device: Device) -> str:
    """Vendor in one word, and the name."""
    vendor, name = clean(device.value("vendor") or ""), clean(device.value("name") or "")
    word = short_vendor(vendor)
    if not name:
        return f"{word or device.chip or 'unknown device'}".strip()
    known = {part.lower() for part in re.findall(r"\w+", name)}
    return name if not word or any(part.lower() in known for part in re.findall(r"\w+", word)) else f"{word} {name}"


def short_vendor(vendor: str) -> str:
    """ "Advanced Micro Devices, Inc. [AMD/ATI]" is "AMD/ATI", "NVIDIA Corporation" is "NVIDIA"."""
    bracket = re.search(r"\[([^\]]+)\]\s*$", vendor)
    if bracket:
        return bracket.group(1)
    return re.split(r",? (?:Inc|Corporation|Corp|Co\.|Ltd|Limited|GmbH|Technolog)", vendor)[0].strip()


def _ids(device: Device) -> str:
    """PCI ids, and what compilers call the chip."""
    numbers = [str(device.value(f"pci/{key}_id") or "")[2:] for key in ("vendor", "device")]
    words = [":".join(numbers)] if all(numbers) else []
    target = device.value("kfd/gfx_target_version")
    if isinstance(target, int) and target > 0:
        words.append(f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}")
    return ", ".join(words)


def _badge(page: Page, report: Report, device: Device) -> Span:
    level = health_of(report, device)
    return Span(f"{getattr(page.term.glyphs, level)} {level}", level)


def _number(report: Report, device: Device) -> str:
    """The number that ``--why`` takes for the device."""
    return str(report.devices.index(device))


def _block(page: Page, report: Report, device: Device) -> None:
    ids = _ids(device)
    title: list[Line] = [(Span(full_name(device), "bold"),), *([(Span(f" {ids}", "dim"),)] if ids else [])]
    part = {"vf": " a virtual function", "partition": " a partition"}.get(device.kind)
    if part:
        title.append((Span(part),))
    badge = _badge(page, report, device)
    lead = (badge, Span(f"  {_number(report, device)}  ", "dim"), Span(device.id, "bold"), Span("  "))
    page.blank()
    page.flow(lead, title, hang=cells(badge.text) + 4 + len(_number(report, device)), comma="")
    _lines(page, fields(Subject(device, report, page.term.glyphs)))
    _parts(page, report, device)


def _lines(page: Page, found: Sequence[Field]) -> None:
    """Fields by line, then in one line what has no value and why."""
    rows: dict[str, list[Line]] = {}
    for field in found:
        if field.missing is None:
            rows.setdefault(field.line, []).extend(field.items)
    for label, items in rows.items():
        page.flow((Span(label, "dim"),), items, indent=INDENT, hang=LABEL)
    missing: dict[str, list[str]] = {}
    for field in found:
        if field.missing is not None:
            missing.setdefault(field.missing, []).append(field.label)
    for why, labels in missing.items():
        page.flow(
            (Span("no value", "dim"),),
            [(Span(", ".join(labels) + ": ", ""), Span(why, "dim"))],
            indent=INDENT,
            hang=LABEL,
        )


def _group(page: Page, report: Report, group: Sequence[Device]) -> None:
    """Equal devices: what all share in lines, what differs in columns."""
    found = {
        device.id: {one.label: one for one in fields(Subject(device, report, page.term.glyphs))} for device in group
    }
    labels = list(dict.fromkeys(label for own in found.values() for label in own))
    shared: list[str] = []
    differing: list[str] = []
    for label in labels:
        own = [found[device.id].get(label) for device in group]
        (shared if all(one == own[0] for one in own) else differing).append(label)
    page.blank()
    ids = _ids(group[0])
    name = (Span(f"{len(group)} {page.term.glyphs.times} {full_name(group[0])}", "bold"),)
    page.flow((), [name, *([(Span(f" {ids}", "dim"),)] if ids else [])], comma="")
    _lines(page, [found[group[0].id][label] for label in shared])
    header = ["#", "device", "health", *differing]
    rows: list[list[Line]] = []
    for device in group:
        mine = found[device.id]
        values = [mine[one].short if one in mine else _ABSENT_CELL.get(one, (Span("-"),)) for one in differing]
        number = (Span(_number(report, device), "dim"),)
        rows.append([number, (Span(device.id, "bold"),), (_badge(page, report, device),), *values])
    page.table(header, rows, indent=INDENT, keys=2)
    if any(
        label == "link" and any(span.text.endswith(" *") for row in rows for cell in row for span in cell)
        for label in differing
    ):
        page.line(Span("* a bridge on the way is slower than the device", "dim"), indent=INDENT)
    for device in group:
        _parts(page, report, device)


def _parts(page: Page, report: Report, whole: Device) -> None:
    """Virtual functions and partitions of a device, indented below it."""
    parts = [device for device in report.devices if device.parent == whole.id and device.kind in PARTS]
    for kind in PARTS:
        own = [device for device in parts if device.kind == kind]
        sick = [device for device in own if health_of(report, device) != "ok"]
        shown = own if len(own) <= FOLD else sick
        word = "virtual function" if kind == "vf" else "partition"
        if len(own) > len(shown):
            ids = [(Span(device.id),) for device in own]
            page.flow((Span(f"{len(own)} {word}s of {whole.id}"),), ids, indent=INDENT, hang=LABEL)
        for device in shown:
            last = device is shown[-1]
            _part(page, report, device, word, page.term.glyphs.last_branch if last else page.term.glyphs.branch)
        if own and kind == "vf":
            note = Span("sensors and link are not available on a virtual function", "dim")
            page.flow((), [(note,)], indent=INDENT + 3)


def _part(page: Page, report: Report, device: Device, word: str, branch: str) -> None:
    driver = device.value("driver")
    items: list[Line] = [
        (Span(f"{word} {_number(report, device)}"),),
        (Span(clean(driver) if driver else "no driver"),),
    ]
    for name in node_names(device.facts)[:2]:
        items.append((Span(f"/dev/{name} "), access_span(device.facts, name)))
    page.flow(
        (Span(branch), Span(device.id, "bold"), Span("  "), _badge(page, report, device), Span("  ")),
        items,
        indent=INDENT,
        hang=3,
    )


def others(page: Page, report: Report) -> None:
    """Functions that show a picture or stand for no hardware: one line each."""
    found = [device for device in report.devices if device.kind in ("display", "virtual")]
    if not found:
        return
    page.blank()
    page.line(Span("Not accelerators", "bold"))
    for device in found:
        kind = "display only" if device.kind == "display" else "virtual"
        driver = device.value("driver") or device.value("driver_of_minor")
        items: list[Line] = [
            (Span(full_name(device)),),
            (Span(kind),),
            (Span(clean(driver) if driver else "no driver"),),
        ]
        items += [(Span(f"/dev/{name} "), access_span(device.facts, name)) for name in node_names(device.facts)[:2]]
        page.flow(
            (Span(_number(report, device), "dim"), Span("  "), Span(device.id), Span("  ")),
            items,
            indent=INDENT,
            hang=3,
        )
