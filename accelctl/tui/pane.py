"""The one widget: finished lines on the screen, and of a new picture only the cells that are different."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.ansi import SGR_STYLE_MAP
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from accelctl.render.layout import Line, cells, line_cells
from accelctl.tui.lines import SGR


@cache
def style_of(name: str) -> Style:
    """The style of a role; the terminal's own colours where it has none."""
    return Style.parse(" ".join(SGR_STYLE_MAP[int(code)] for code in SGR.get(name, "").split(";") if code))


class Pane(Widget, can_focus=True):
    """Shows lines. ``show`` compares with what is there."""

    DEFAULT_CSS = "Pane { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> list[Region]:
        """Show these. Returns the regions that are drawn anew."""
        old, self._lines = self._lines, list(lines)
        if len(old) != len(lines):
            self.refresh()
            return [Region(0, 0, self.size.width, len(lines))]
        changed = [Region(*span) for y in range(len(lines)) for span in _difference(old[y], lines[y], y)]
        if changed:
            self.refresh(*changed)
        return changed

    def render_line(self, y: int) -> Strip:
        """One line, for Textual."""
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        segments = [Segment(span.text, style_of(span.style)) for span in self._lines[y] if span.text]
        return Strip(segments).adjust_cell_length(self.size.width)


def _difference(old: Line, new: Line, y: int) -> list[tuple[int, int, int, int]]:
    """The part of a line from the first to the last span that is different: x, y, width, height."""
    if old == new:
        return []
    before, after = list(old), list(new)
    x = 0
    while before and after and before[0] == after[0]:
        x += cells(before.pop(0).text)
        after.pop(0)
    while before and after and before[-1] == after[-1]:
        before.pop()
        after.pop()
    wide = max(line_cells(before), line_cells(after))
    return [(x, y, max(wide, 1), 1)]
