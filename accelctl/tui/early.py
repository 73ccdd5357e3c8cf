"""The first pictures, before Textual is there: its import takes longer than to learn the numbers.

It is imported in pieces, and between two of them the feed is asked and the picture drawn, by the code that draws all
others. No thread does this: a feed forks, and a fork in the middle of an import leaves a child with half a module.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import import_module

from accelctl.render import term
from accelctl.render.layout import Line
from accelctl.telemetry.feed import Feed
from accelctl.tui import frame
from accelctl.tui.lines import SGR
from accelctl.tui.state import State
from accelctl.tui.terminal import Held

PIECES = (
    "asyncio", "rich.segment", "rich.text", "rich.console", "textual", "textual.color", "textual.dom",
    "textual.widget", "textual.screen", "textual.command", "textual.theme", "textual.app",
)  # fmt: skip
"""What takes long, in the order in which it is needed."""
LONG, WAIT_S = "textual", 0.08
"""The longest piece, and so long the first numbers may keep it waiting: they come just before it."""


def load(feed: Feed, state: State, held: Held) -> None:
    """Import what the dashboards need, and show what there is of a live machine meanwhile. Keys that come are not
    shown, and Textual's to read; Ctrl-Z waits until the end of this."""
    if feed.seekable:
        return
    held.quiet()
    screen = Screen(held)
    for name in PIECES:
        wait_s = WAIT_S if name == LONG and state.snapshot is None else 0.0
        if (found := feed.poll(wait_s)) is not None:
            state.take(found)
            screen.show(frame.draw(state, *shutil.get_terminal_size()))
        import_module(name)
    held.pause()


class Screen:
    """Draws as long as no driver of Textual's does."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self._styles = term.current().colors is not None

    def show(self, lines: Sequence[Line]) -> None:
        """All lines from the top."""
        rows = (f"\x1b[{number};1H{self._row(line)}" for number, line in enumerate(lines, 1))
        self.held.enter("".join(rows))

    def _row(self, line: Line) -> str:
        if not self._styles:
            return "".join(span.text for span in line)
        return "".join(f"\x1b[{sgr}m{text}\x1b[0m" if (sgr := SGR.get(style)) else text for text, style in line)
