"""``--brief``: one line per device, always the same columns, words without blanks, for grep, awk and eyes.

Columns: id, kind, health, driver, link, memory, temperature, power, NUMA node, first node, and last the name, which may
hold blanks. Where a value is missing its reason stands there.
"""

from __future__ import annotations

import re

from accelctl.model.device import Device
from accelctl.model.report import Report
from accelctl.render.blocks import full_name
from accelctl.render.fields import Field, Subject, fields
from accelctl.render.layout import Page, Span, cells
from accelctl.render.tally import health_of
from accelctl.render.term import Term

HEADER = ("device", "kind", "health", "driver", "link", "memory", "temperature", "power", "numa", "node", "name")
_LABELS = ("driver", "link", "memory", "temperature", "power", "NUMA", "node")


def brief_text(report: Report, term: Term) -> str:
    """The table; its heading is for terminals only."""
    rows = [_row(report, device, term) for device in report.devices]
    if not rows:
        return ""
    wide = [
        max(cells(row[at].text) for row in [*rows, [Span(word) for word in HEADER]]) for at in range(len(HEADER) - 1)
    ]
    page = Page(term)
    if term.tty:
        _line(page, [Span(word, "dim") for word in HEADER], wide)
    for row in rows:
        _line(page, row, wide)
    return page.text()


def _line(page: Page, row: list[Span], wide: list[int]) -> None:
    spans: list[Span] = []
    for span, width in zip(row, wide, strict=False):
        spans += [span, Span(" " * (width - cells(span.text) + 1))]
    page.line(*spans, row[-1])


def _row(report: Report, device: Device, term: Term) -> list[Span]:
    found = {field.label: field for field in fields(Subject(device, report, term.glyphs))}
    level = health_of(report, device)
    values = [Span(_cell(found.get(label))) for label in _LABELS]
    return [Span(device.id, "bold"), Span(device.kind), Span(level, level), *values, Span(full_name(device))]


def _cell(field: Field | None) -> str:
    """The short form as one word: units stay attached, blanks within words become underscores."""
    if field is None:
        return "-"
    text = "".join(span.text for span in field.short).removesuffix(" *")
    if field.label == "node":
        text = text.replace(" ", ":", 1)  # renderD128:rw
    elif field.missing is None:
        text = re.sub(r"(?<=\d) (?=\S)", "", text)  # 18/303 W, 4.0 x16
    return text.replace(" ", "_") or "-"
