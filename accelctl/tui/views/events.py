"""What happened, newest first, on the same clock as everything else."""

from __future__ import annotations

import time
from typing import NamedTuple

from accelctl.model.snapshot import EventMark
from accelctl.render.layout import Line, Span
from accelctl.tui.lines import fit, wrapped
from accelctl.tui.moment import Moment
from accelctl.tui.table import Column
from accelctl.tui.views.view import View

GRADES = ("info", "warn", "error", "critical")


class Row(NamedTuple):
    """An event with a number, by which it stays chosen while new ones come."""

    id: str
    mark: EventMark


def _level(moment: Moment, row: Row, width: int) -> Line:
    grade = row.mark.level
    return (Span(f"{getattr(moment.signs.glyphs, grade, '')} {grade}", grade if grade in GRADES else ""),)


def clock(at_ns: int) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))


COLUMNS = (
    Column("TIME", 8, lambda m, r, w: (Span(clock(r.mark.at_ns)),), lambda m, r: r.mark.at_ns, right=False),
    Column("LEVEL", 11, _level, lambda m, r: GRADES.index(r.mark.level) if r.mark.level in GRADES else -1, right=False),
    Column("DEVICE", 12, lambda m, r, w: (Span(r.mark.device or m.dash),), lambda m, r: r.mark.device, high=14,
           right=False, falling=False),
    Column("KIND", 8, lambda m, r, w: (Span(r.mark.kind),), lambda m, r: r.mark.kind, right=False, falling=False),
    Column("WHAT", 20, lambda m, r, w: (Span(r.mark.text),), None, high=400, right=False),
)  # fmt: skip


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """The whole text of the chosen one."""
    return [fit((Span(line),), width) for line in wrapped(row.mark.text, width)[:height]]


def rows(moment: Moment) -> list[Row]:
    """Newest first."""
    return [Row(str(number), mark) for number, mark in reversed(moment.happened)]


EVENTS = View(
    "events", "Events", "events", COLUMNS, below, "Nothing has happened since this began.", wants=3, rows=rows
)
