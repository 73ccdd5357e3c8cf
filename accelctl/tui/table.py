"""A table of fixed columns that fits any width: what matters least goes first, what is left over makes bars longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from accelctl.render.layout import Line, Span
from accelctl.tui.lines import chosen, fit
from accelctl.tui.moment import Moment, row_id

GAP = 2
MARK = 2
"""Columns of the cursor's sign."""


class Column(NamedTuple):
    """One column. ``cell`` draws a row's in so many columns; ``value`` is what it is sorted by."""

    title: str
    low: int
    cell: Callable[[Moment, Any, int], Line]
    value: Callable[[Moment, Any], Any] | None = None
    high: int = 0
    """As wide as it may become; 0: ``low``."""
    right: bool = True
    drop: int = 0
    """Where there is no room the highest goes first; 0 stays."""
    falling: bool = True
    """Sorted from the largest at first."""
    least: int = 0
    """Only in a table of so many columns: others are worth more in a narrower one."""


@dataclasses.dataclass
class Place:
    """Where somebody is in one table, and how it is sorted."""

    row: str = ""
    """Id of the chosen row: it stays chosen when others move."""
    seen: str = ""
    """Id of the row that the cursor stood on last: as long as nobody has chosen any it stays there while that row is in
    sight, since whoever presses Enter means the row that they saw."""
    room: int = 0
    """So many rows were in sight then."""
    first: int = 0
    """The first row in sight."""
    column: str = ""
    """Title of the column that it is sorted by; "": as the Snapshot has it."""
    falling: bool = True


def ordered(rows: Sequence[Any], columns: Sequence[Column], place: Place, moment: Moment) -> list[Any]:
    """Rows as sorted. What has no value stands last in both directions."""
    by = next((column for column in columns if column.title == place.column), None)
    if by is None or by.value is None:
        return list(rows)
    told = [(by.value(moment, row), row) for row in rows]
    with_value = sorted(((v, r) for v, r in told if v is not None), key=lambda pair: pair[0], reverse=place.falling)
    return [row for _, row in with_value] + [row for value, row in told if value is None]


def next_sort(columns: Sequence[Column], place: Place) -> None:
    """Sort by the next column that can be sorted by; after the last one as the Snapshot has it."""
    titles = ["", *(column.title for column in columns if column.value is not None)]
    at = titles.index(place.column) if place.column in titles else 0
    place.column = titles[(at + 1) % len(titles)]
    place.falling = next((column.falling for column in columns if column.title == place.column), True)


def chosen_at(rows: Sequence[Any], place: Place) -> int:
    """The number of the chosen row; without it of the one that the cursor stood on, and the first where that is gone or
    would be out of sight."""
    for wanted, most in ((place.row, len(rows)), (place.seen, place.room)):
        if wanted and (at := next((at for at, row in enumerate(rows[:most]) if row_id(row) == wanted), -1)) >= 0:
            return at
    return 0


def move(rows: Sequence[Any], place: Place, steps: int) -> None:
    """Choose another row."""
    if rows:
        place.row = row_id(rows[min(max(chosen_at(rows, place) + steps, 0), len(rows) - 1)])


def layout(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that have room, and how wide each is."""
    shown = [column for column in columns if column.least <= width]
    while len(shown) > 1 and _need(shown) > width and any(column.drop for column in shown):
        shown.remove(max(shown, key=lambda column: column.drop))
    spare = max(width - _need(shown), 0)
    wide = []
    for column in shown:
        more = min(max(column.high - column.low, 0), spare)
        wide.append((column, column.low + more))
        spare -= more
    return wide


def _need(columns: Sequence[Column]) -> int:
    return MARK + sum(column.low for column in columns) + GAP * (len(columns) - 1)


def draw(
    rows: Sequence[Any], columns: Sequence[Column], place: Place, moment: Moment, size: tuple[int, int]
) -> list[list[Span]]:
    """Exactly ``size`` (columns, lines): the header and the rows that have room, the chosen one among them."""
    width, height = size
    shown = layout(columns, width)
    more = moment.signs.glyphs.ellipsis
    place.room = room = max(height - 1, 0)
    at = chosen_at(rows, place)
    place.seen = row_id(rows[at]) if rows else ""
    place.first = max(min(place.first, at, max(len(rows) - room, 0)), at - room + 1, 0)
    found = [fit(_header(shown, place, moment), width)]
    for number in range(place.first, min(place.first + room, len(rows))):
        line: list[Span] = [Span(f"{moment.signs.cursor} " if number == at else "  ")]
        for column, wide in shown:
            line += [Span(" " * GAP)] if len(line) > 1 else []
            line += fit(column.cell(moment, rows[number], wide), wide, right=column.right, more=more)
        found.append(chosen(fit(line, width)) if number == at else fit(line, width))
    return found[:height] + [[Span(" " * width)]] * (height - len(found))


def _header(shown: Sequence[tuple[Column, int]], place: Place, moment: Moment) -> list[Span]:
    line = [Span(" " * MARK)]
    for column, wide in shown:
        sorted_by = column.title == place.column
        sign = (moment.signs.down if place.falling else moment.signs.up) if sorted_by else ""
        style = "bold" if sorted_by else "dim"
        line += [Span(" " * GAP)] if len(line) > 1 else []
        line += fit((Span(column.title + sign, style),), wide, right=column.right, more="")
    return line
