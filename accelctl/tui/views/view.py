"""What every dashboard is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from accelctl.render.layout import Line, Span
from accelctl.tui.lines import beside
from accelctl.tui.moment import Moment
from accelctl.tui.table import Column

TALLEST = 12
"""Lines of a chart: more of them show little more."""

Below = Callable[[Moment, Any, int, int], Sequence[Line]]
"""(moment, chosen row, columns, lines) -> what stands below the table: at most so many lines."""


class View(NamedTuple):
    """One dashboard."""

    name: str
    """As on the command line: --screen NAME."""
    title: str
    table: str
    """The field of Snapshot that its rows come from."""
    columns: tuple[Column, ...]
    below: Below
    nothing: str
    """What it says where there is no row."""
    wants: int = 9
    """Lines that the part below the table is worth."""
    rows: Callable[[Moment], Sequence[Any]] | None = None
    """Default: the field as it is."""


def tallest(height: int) -> int:
    """Lines of a chart where there are so many."""
    return min(height, max(TALLEST, height * 2 // 3))


def side_by_side(
    drawers: Sequence[Callable[[tuple[int, int]], list[list[Span]]]], width: int, height: int, least: int = 34
) -> list[list[Span]]:
    """Charts of equal size in as many columns as there is room for; those that find no room are left out."""
    across = max(min(len(drawers), (width + 3) // (least + 3)), 1)
    each = (width - 3 * (across - 1)) // across
    rows = min(-(-len(drawers) // across), max(height // 4, 1))
    tall = min(height // rows, tallest(height))
    found: list[list[Span]] = []
    for row in range(rows):
        group = drawers[row * across : (row + 1) * across]
        blank = 1 if tall > 4 else 0
        blocks = [draw((each, tall - blank)) for draw in group]
        found += beside(blocks, [each] * len(blocks))
        found += [[]] * blank
    return found[:height]
