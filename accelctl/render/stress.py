"""`accelctl stress` for people: per lifecycle one line that says it all, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP, Outcome, PointTotals, StressReport
from accelctl.model.verdict import CLEAN, Series
from accelctl.render.layout import Page, Span
from accelctl.render.sparkline import sparkline
from accelctl.render.term import Term
from accelctl.render.units import counted, seconds

_STYLE = {PASS: "ok", FAIL: "critical", INCONCLUSIVE: "warn", SKIP: "dim"}
_HEADS = ("lifecycle", "stage", "fault", "points", "balanced", "stranded", "leaked")
_KINDS = {"door-before": "not called", "door-after": "reply lost", "kernel": "in the kernel"}
_INDENT, _NAMES = 4, 21
"""Columns: of what belongs to a lifecycle, and for the name of a book."""
FLAT = 6
"""Books that did not move are named up to here, and counted after that; JSON has all of them."""


def report_text(report: StressReport, term: Term) -> str:
    """The whole report."""
    page = Page(term)
    _title(page, report)
    page.blank()
    for outcome in report.outcomes:
        _outcome(page, outcome)
    if report.sweep:
        page.blank()
        _words(page, "Fault points: what was left when a call failed there, and every earlier stage was undone", 0)
        _sweep(page, report.sweep)
    if report.kernel_leaks:
        page.blank()
        _words(page, "kmemleak: memory that the kernel lost during this run", 0)
        for leak in report.kernel_leaks:
            _words(page, leak, 2)
    for note in report.notes:
        _words(page, f"{term.glyphs.bullet} {note}", 0)
    page.blank()
    _words(page, _verdict(report), 0, _STYLE[report.result])
    return page.text()


def _words(page: Page, text: str, indent: int = _INDENT, style: str = "") -> None:
    """A sentence, wrapped between words where the terminal ends."""
    page.flow([], [[Span(text, style)]], indent=indent)


def _verdict(report: StressReport) -> str:
    """The last line, and the only one that a hurried reader needs."""
    words = {
        PASS: "passed",
        FAIL: "FAILED",
        INCONCLUSIVE: "inconclusive",
        SKIP: "nothing ran: no lifecycle is supported here",
    }[report.result]
    said = f"{words} (simulated)" if report.simulated else words
    why = _worst(report)
    end = " (interrupted)" if report.interrupted and "interrupted" not in why else ""
    return f"{report.device}: {said}{': ' + why if why else ''}{end}"


def _worst(report: StressReport) -> str:
    if report.kernel_leaks:
        return counted(len(report.kernel_leaks), "kmemleak record")
    leaked = sum(row.leaked for row in report.sweep)
    if leaked:
        return counted(leaked, "fault point") + " leaked"
    reasons = [f"{o.lifecycle}: {o.reason}" for o in report.outcomes if o.result == report.result and o.reason]
    return reasons[0] if reasons and report.result in (FAIL, INCONCLUSIVE) else ""


def _title(page: Page, report: StressReport) -> None:
    parts = [report.node, f"driver {report.driver}", f"proven: {report.proven}", f"seed {report.seed}"]
    mark = " SIMULATED" if report.simulated else ""
    rest = f"{mark}  {report.chip}  ({', '.join(parts)})"
    page.flow([], [[Span(report.device, "bold"), Span(rest)]])


def _outcome(page: Page, outcome: Outcome) -> None:
    glyphs = page.term.glyphs
    sign = {PASS: glyphs.ok, FAIL: glyphs.error, SKIP: glyphs.skip, INCONCLUSIVE: glyphs.warn}[outcome.result]
    head = f"{sign} {outcome.lifecycle:<16} {outcome.result}"
    did = f"{outcome.cycles:,} cycles in {seconds(outcome.seconds)}"
    said = outcome.reason if outcome.result == SKIP else f"{did}{'; ' + outcome.reason if outcome.reason else ''}"
    page.flow([Span(head, _STYLE[outcome.result])], [[Span(said)]], hang=len(head) + 2)
    if outcome.result == SKIP:
        return
    if outcome.stages:
        chain = [[Span(f"{s.name} {s.acquired:,}" + (f" ({s.held} held)" if s.held else ""))] for s in outcome.stages]
        page.flow([Span("acquired and released: ")], chain, indent=_INDENT)
    _books(page, outcome)
    for failure in outcome.failures:
        verb = "could not be released" if failure.stage.startswith("-") else "was refused"
        _words(page, f"{failure.stage.lstrip('-')} {verb} {failure.times:,} times: {failure.error}")
    for text in outcome.outstanding[:8]:
        _words(page, f"still held: {text}")
    for text in outcome.mistakes[:8]:
        _words(page, f"our mistake: {text}")
    if outcome.replay is not None:
        _words(page, f"shortest way to see it: {', '.join(outcome.replay.steps)}")
        page.line(Span(outcome.replay.command, "command"), indent=_INDENT)
    for note in outcome.notes:
        _words(page, note)


def _books(page: Page, outcome: Outcome) -> None:
    verdict = outcome.verdict
    if verdict is None:
        return
    series = {one.name: one for one in outcome.series}
    for judgement in verdict.judgements:
        if judgement.verdict == CLEAN and judgement.counter not in outcome.census:
            continue
        curve = _curve(series.get(judgement.counter), page.term)
        items = [[Span(judgement.why)], *([[Span(curve)]] if curve else [])]
        page.flow([Span(judgement.counter)], items, indent=_INDENT, hang=_NAMES, comma="")
        if judgement.decides:
            page.flow([], [[Span(f"to decide it: {judgement.decides}")]], indent=_INDENT, hang=_NAMES)
    flat = [j.counter for j in verdict.judgements if j.verdict == CLEAN and j.counter not in outcome.census]
    if flat:
        named = ", ".join(flat) if len(flat) <= FLAT else f"{', '.join(flat[:FLAT])} and {len(flat) - FLAT} more"
        _words(page, f"unchanged: {named}")
    if verdict.unreadable:
        shown = [f"{name} ({reason})" for name, reason in verdict.unreadable[:6]]
        more = len(verdict.unreadable) - len(shown)
        _words(page, f"not read: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}")


def _curve(series: Series | None, term: Term) -> str:
    values = [sample.value for sample in series.samples] if series is not None else []
    return sparkline(values, 24, term.unicode) if len(set(values)) > 1 else ""


def _sweep(page: Page, rows: Sequence[PointTotals]) -> None:
    """Fault points by stage, and the reproducers of those that did not balance."""
    wide = [len(head) for head in _HEADS[3:]]
    page.table(_HEADS, [[(Span(cell),) for cell in _row(row, wide)] for row in rows], indent=2, keys=2)
    for detail in (detail for row in rows for detail in row.detail):
        page.flow([Span(f"{page.term.glyphs.bullet} ")], [[Span(detail)]], indent=2, hang=2)


def _row(row: PointTotals, wide: Sequence[int]) -> list[str]:
    numbers = (row.points, row.balanced, row.stranded, row.leaked)
    cells = [f"{number:>{width}}" for number, width in zip(numbers, wide, strict=True)]
    return [row.lifecycle, row.stage, _KINDS.get(row.kind, row.kind), *cells]
