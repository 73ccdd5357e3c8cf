"""Findings in the report: worst first, each with its cause, what was seen, what to type, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.model.finding import Finding
from accelctl.model.report import Report
from accelctl.render import units
from accelctl.render.layout import Line, Page, Span, clean

INDENT, LABEL = 2, 6

SHOWN = 4
"""Pieces of evidence shown on a terminal; a pipe gets all of them."""

RAW = 160
"""Letters of a raw text shown on a terminal."""


def findings_section(page: Page, report: Report) -> None:
    """All findings in the order of the report, equal ones on several devices as one."""
    if not report.findings:
        return
    page.blank()
    page.line(Span("Findings", "bold"))
    groups: dict[Finding, list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault(finding._replace(device=None, evidence=()), []).append(finding)
    for number, group in enumerate(groups.values()):
        if number:
            page.blank()
        _finding(page, group)


def _finding(page: Page, group: Sequence[Finding]) -> None:
    first = group[0]
    sign = getattr(page.term.glyphs, first.level)
    devices = [one.device for one in group if one.device]
    where = units.listed(devices, 8) if devices else "machine"
    doubt = f"  ({first.certainty})" if first.certainty != "certain" else ""
    level = Span(f"{sign} {first.level}", first.level)
    head = (level, Span("  "), Span(first.id, "bold"), Span("  "))
    page.flow(head, [(Span(where), Span(doubt, "dim"))], indent=INDENT, hang=0)
    page.flow((), [(Span(clean(first.title)),)], indent=INDENT + 2)
    _evidence(page, group)
    for at, text in enumerate(first.fix):  # to be copied: never wrapped
        page.line(Span(f"{'' if at else 'do':<{LABEL}}", "dim"), Span(clean(text), "command"), indent=INDENT + 2)
    for at, text in enumerate(first.consequences):
        page.flow((Span("" if at else "then", "dim"),), [(Span(clean(text)),)], indent=INDENT + 2, hang=LABEL)


def _evidence(page: Page, group: Sequence[Finding]) -> None:
    """What was seen; of several devices the first one's, with a word that the others are alike."""
    entries = [one for finding in group[:1] for one in finding.evidence]
    wide = page.width is None
    shown = entries if wide else entries[:SHOWN]
    for at, one in enumerate(shown):
        raw = clean(one.raw)
        if not wide and len(raw) > RAW:
            raw = raw[: RAW - 1] + page.term.glyphs.ellipsis
        item: Line = (Span(clean(one.source) + ": "), Span(raw, ""))
        page.flow((Span("seen" if at == 0 else "", "dim"),), [item], indent=INDENT + 2, hang=LABEL)
    rest = len(entries) - len(shown)
    alike = [f"{rest} more in --json"] if rest else []
    if len(group) > 1 and entries:
        alike.append(f"alike on the other {len(group) - 1}")
    if alike:
        page.flow((Span(""),), [(Span(", ".join(alike), "dim"),)], indent=INDENT + 2, hang=LABEL)
