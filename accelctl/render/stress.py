"""`accelctl stress` for people: per lifecycle one line that says it all, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP, Outcome, PointTotals, StressReport
from accelctl.model.verdict import CLEAN, Series
from accelctl.render.sparkline import sparkline
from accelctl.render.term import Term
from accelctl.render.units import counted, seconds

_SGR = {PASS: "32", FAIL: "1;31", INCONCLUSIVE: "33", SKIP: "2"}
_HEADS = ("lifecycle", "stage", "fault", "points", "balanced", "stranded", "leaked")
_KINDS = {"door-before": "not called", "door-after": "reply lost", "kernel": "in the kernel"}
FLAT = 6
"""Books that did not move are named up to here, and counted after that; JSON has all of them."""


def report_text(report: StressReport, term: Term) -> str:
    """The whole report."""
    lines = [_title(report, term), ""]
    for outcome in report.outcomes:
        lines += _outcome(outcome, term)
    if report.sweep:
        lines += ["", "Fault points: what was left when a call failed there, and every earlier stage was undone"]
        lines += sweep_table(report.sweep, term)
    if report.kernel_leaks:
        lines += ["", "kmemleak: memory that the kernel lost during this run"]
        lines += [f"  {line}" for line in report.kernel_leaks]
    lines += [f"{term.glyphs.bullet} {note}" for note in report.notes]
    lines += ["", verdict_line(report, term)]
    return "\n".join(lines) + "\n"


def verdict_line(report: StressReport, term: Term) -> str:
    """The last line, and the only one that a hurried reader needs."""
    words = {
        PASS: "passed",
        FAIL: "FAILED",
        INCONCLUSIVE: "inconclusive",
        SKIP: "nothing ran: no lifecycle is supported here",
    }[report.result]
    said = f"{words} (simulated)" if report.simulated else words
    why = _worst(report)
    text = f"{report.device}: {said}{': ' + why if why else ''}"
    return term.style(text, _SGR[report.result]) + (" (interrupted)" if report.interrupted else "")


def _worst(report: StressReport) -> str:
    if report.kernel_leaks:
        return counted(len(report.kernel_leaks), "kmemleak record")
    leaked = sum(row.leaked for row in report.sweep)
    if leaked:
        return counted(leaked, "fault point") + " leaked"
    reasons = [f"{o.lifecycle}: {o.reason}" for o in report.outcomes if o.result == report.result and o.reason]
    return reasons[0] if reasons and report.result in (FAIL, INCONCLUSIVE) else ""


def _title(report: StressReport, term: Term) -> str:
    parts = [report.node, f"driver {report.driver}", f"proven: {report.proven}", f"seed {report.seed}"]
    mark = " SIMULATED" if report.simulated else ""
    return f"{term.style(report.device, '1')}{mark}  {report.chip}  ({', '.join(parts)})"


def _outcome(outcome: Outcome, term: Term) -> list[str]:
    sign = {PASS: term.glyphs.ok, FAIL: term.glyphs.error, SKIP: term.glyphs.skip, INCONCLUSIVE: term.glyphs.warn}
    head = term.style(f"{sign[outcome.result]} {outcome.lifecycle:<16} {outcome.result}", _SGR[outcome.result])
    if outcome.result == SKIP:
        return [f"{head}  {outcome.reason}"]
    did = f"{outcome.cycles:,} cycles in {seconds(outcome.seconds)}"
    lines = [f"{head}  {did}{'; ' + outcome.reason if outcome.reason else ''}"]
    lines += _stages(outcome)
    lines += _books(outcome, term)
    lines += [f"    {failure.stage.lstrip('-')} {_verb(failure.stage)} {failure.times:,} times: {failure.error}"
              for failure in outcome.failures]  # fmt: skip
    lines += [f"    still held: {text}" for text in outcome.outstanding[:8]]
    lines += [f"    our mistake: {text}" for text in outcome.mistakes[:8]]
    if outcome.replay is not None:
        lines += [f"    shortest way to see it: {', '.join(outcome.replay.steps)}", f"    {outcome.replay.command}"]
    return lines + [f"    {note}" for note in outcome.notes]


def _verb(stage: str) -> str:
    return "could not be released" if stage.startswith("-") else "was refused"


def _stages(outcome: Outcome) -> list[str]:
    if not outcome.stages:
        return []
    chain = ", ".join(f"{stage.name} {stage.acquired:,}" + (f" ({stage.held} held)" if stage.held else "")
                      for stage in outcome.stages)  # fmt: skip
    return [f"    acquired and released: {chain}"]


def _books(outcome: Outcome, term: Term) -> list[str]:
    verdict = outcome.verdict
    if verdict is None:
        return []
    lines = []
    series = {one.name: one for one in outcome.series}
    for judgement in verdict.judgements:
        if judgement.verdict == CLEAN and judgement.counter not in outcome.census:
            continue
        curve = _curve(series.get(judgement.counter), term)
        lines.append(f"    {judgement.counter:<20} {judgement.why} {curve}")
        if judgement.decides:
            lines.append(f"    {'':<20} to decide it: {judgement.decides}")
    flat = [j.counter for j in verdict.judgements if j.verdict == CLEAN and j.counter not in outcome.census]
    if flat:
        named = ", ".join(flat) if len(flat) <= FLAT else f"{', '.join(flat[:FLAT])} and {len(flat) - FLAT} more"
        lines.append(f"    unchanged: {named}")
    if verdict.unreadable:
        shown = [f"{name} ({reason})" for name, reason in verdict.unreadable[:6]]
        more = len(verdict.unreadable) - len(shown)
        lines.append(f"    not read: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}")
    return [line.rstrip() for line in lines]


def _curve(series: Series | None, term: Term) -> str:
    values = [sample.value for sample in series.samples] if series is not None else []
    return sparkline(values, 24, term.unicode) if len(set(values)) > 1 else ""


def sweep_table(rows: Sequence[PointTotals], term: Term) -> list[str]:
    """Fault points by stage, and the reproducers of those that did not balance."""
    cells = [_HEADS, *(_row(row) for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(_HEADS))]
    lines = [_aligned(line, widths) for line in cells]
    lines.insert(1, term.glyphs.horizontal * len(lines[0]))
    details = [detail for row in rows for detail in row.detail]
    return [f"  {line}" for line in lines] + [f"  {term.glyphs.bullet} {detail}" for detail in details]


def _row(row: PointTotals) -> tuple[str, ...]:
    numbers = (row.points, row.balanced, row.stranded, row.leaked)
    return row.lifecycle, row.stage, _KINDS.get(row.kind, row.kind), *map(str, numbers)


def _aligned(line: Iterable[str], widths: Sequence[int]) -> str:
    return "  ".join(
        f"{cell:<{w}}" if i < 3 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=True))
    )
