"""What bars, charts and maps are drawn with, in Unicode and in plain ASCII."""

from __future__ import annotations

from typing import NamedTuple

from accelctl.render.term import ASCII, UNICODE, Glyphs


class Signs(NamedTuple):
    """One set of signs. ``glyphs`` are those that every command uses."""

    unicode: bool
    glyphs: Glyphs
    full: str
    """One whole cell of a bar."""
    parts: str
    """Parts of a cell of a bar, smallest first; none in ASCII."""
    track: str
    """The empty part of a bar."""
    heights: str
    """Parts of a cell of a chart, lowest first; the last is a whole cell."""
    mapped: str
    some: str
    """Mapped in part."""
    reserved: str
    free: str
    cursor: str
    up: str
    down: str


RICH = Signs(True, UNICODE, "━", "╸", "─", "▁▂▃▄▅▆▇█", "█", "▒", "░", "·", "▸", "▲", "▼")
PLAIN = Signs(False, ASCII, "#", "", ".", ".:|", "#", "+", "=", ".", ">", "^", "v")


def signs_for(unicode: bool) -> Signs:
    """The set that a terminal can show."""
    return RICH if unicode else PLAIN
