"""Queues, engines and sessions: how much is in flight, and whether it moves."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from accelctl.model.snapshot import QueueLevel, key
from accelctl.render.layout import Line, Span
from accelctl.tui.charts import Words, bar, chart
from accelctl.tui.lines import fit
from accelctl.tui.moment import Moment, count, per_second, percent, span_of
from accelctl.tui.table import Column
from accelctl.tui.views.view import View, side_by_side

Row = QueueLevel
STALLED_NS = 2_000_000_000
"""Work in flight for so long without any being finished is worth a word."""


def _rate(moment: Moment, row: Row) -> float | None:
    return moment.past.rate(key("queues", row.id, "finished"))


def _finished(moment: Moment, row: Row, width: int) -> Line:
    rate = _rate(moment, row)
    return (Span(moment.dash, "dim") if rate is None else Span(per_second(rate)),)


def _running(moment: Moment, row: Row, width: int) -> Line:
    if row.running is None:
        return (moment.gone("queues", row, "running"),)
    words = f"{count(row.running)} of {count(row.depth)}" if row.depth else count(row.running)
    ratio = row.running / row.depth if row.depth else 0.0
    room = width - 10
    drawn = bar(ratio, room, moment.signs) if row.depth and room > 3 else []
    return (*drawn, Span(words.rjust(10 if drawn else 0)))


def _busy(moment: Moment, row: Row, width: int) -> Line:
    if row.busy_ratio is None:
        return (moment.gone("queues", row, "busy_ratio"),)
    room = width - 6
    drawn = bar(row.busy_ratio, room, moment.signs) if room > 3 else []
    return (*drawn, Span(percent(row.busy_ratio).rjust(6)))


def _stalled(moment: Moment, row: Row, width: int) -> Line:
    if row.stalled_ns is None:
        return (moment.gone("queues", row, "stalled_ns"),)
    if row.stalled_ns < STALLED_NS:
        return (Span("moves", "ok"),) if row.running else (Span("idle", "dim"),)
    return (Span(f"{moment.signs.glyphs.warn} {span_of(row.stalled_ns)}", "warn"),)


COLUMNS = (
    Column("QUEUE", 19, lambda m, r, w: (Span(r.id),), lambda m, r: r.id, high=32, right=False, falling=False),
    Column("KIND", 7, lambda m, r, w: (Span(r.kind),), lambda m, r: r.kind, right=False, drop=3, falling=False),
    Column("STATE", 8, lambda m, r, w: (Span(r.state or m.dash),), lambda m, r: r.state or None, right=False, drop=2),
    Column("IN FLIGHT", 10, _running, lambda m, r: r.running, high=24),
    Column("BUSY", 6, _busy, lambda m, r: r.busy_ratio, high=18),
    Column("FINISHED", 8, _finished, _rate),
    Column("WAIT", 7, lambda m, r, w: m.cell("queues", r, "wait_ns", span_of), lambda m, r: r.wait_ns),
    Column("SUBMITTED", 9, lambda m, r, w: m.cell("queues", r, "submitted", count), lambda m, r: r.submitted, drop=1),
    Column("STALLED FOR", 11, _stalled, lambda m, r: r.stalled_ns, high=16, right=False),
)


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """How deep it was, and how fast."""
    title = [Span(row.id, "bold"), Span(f"  {row.kind}", "dim"), Span(f"  {row.state}" if row.state else "", "dim")]
    stalled = row.stalled_ns is not None and row.stalled_ns >= STALLED_NS
    if stalled and row.stalled_ns is not None:
        words = f"  {moment.signs.glyphs.warn} {count(row.running or 0)} in flight and none finished for "
        title.append(Span(words + span_of(row.stalled_ns), "warn"))
    past, span = moment.past, moment.past.span_s()

    def values(name: str) -> list[float]:
        return past.values(key("queues", row.id, name))

    drawers = [
        partial(_chart, moment, "In flight", values("running"), count, float(row.depth) if row.depth else None, span),
        partial(_chart, moment, "Finished", _steps(values("finished"), span), per_second, None, span),
        partial(_chart, moment, "Waiting time", values("wait_ns"), span_of, None, span),
        partial(_chart, moment, "Busy", values("busy_ratio"), percent, 1.0, span),
    ]
    return [fit(title, width), *side_by_side(drawers, width, height - 1)]


def _chart(
    moment: Moment,
    title: str,
    values: list[float],
    words: Words,
    top: float | None,
    span: float,
    size: tuple[int, int],
) -> list[list[Span]]:
    return chart(title, values, size, moment.signs, words, top=top, span_s=span)


def _steps(values: list[float], span_s: float) -> list[float]:
    """Rates out of a rising count; where it starts anew there is none."""
    each = span_s / max(len(values) - 1, 1)
    if not each:
        return []
    return [(b - a) / each if b >= a else float("nan") for a, b in pairwise(values)]


QUEUES = View(
    "queues",
    "Queues",
    "queues",
    COLUMNS,
    below,
    "No queue is told by any driver or service here.",
)
