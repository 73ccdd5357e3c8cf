"""The first pictures, before Textual is there: its import takes longer than to learn the numbers.

It is imported in pieces, and between two of them the feed is asked and the picture drawn, by the code that draws all
others. No thread does this: a feed forks, and a fork in the middle of an import leaves a child with half a module.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from accelctl.render import term
from accelctl.render.layout import Line
from accelctl.telemetry.feed import Feed
from accelctl.tui import frame
from accelctl.tui.lines import SGR
from accelctl.tui.state import State

PIECES = (
    "asyncio", "rich.segment", "rich.text", "rich.console", "textual", "textual.color", "textual.dom",
    "textual.widget", "textual.screen", "textual.command", "textual.theme", "textual.app",
)  # fmt: skip
"""What takes long, in the order in which it is needed."""
LONG, WAIT_S = "textual", 0.08
"""The longest piece, and so long the first numbers may keep it waiting: they come just before it."""
STALLED_S = 0.5
"""So long a terminal may take no output; then it gets no early picture any more."""
PIECE = 512
"""Bytes that a terminal takes whole as soon as it says that it takes any (pty(7): 4 KiB at least)."""
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def load(feed: Feed, state: State) -> None:
    """Import what the dashboards need, and show what there is of a live machine meanwhile. Textual finds the terminal's
    settings as they were, and the alternate screen where there was a picture; whatever ends this leaves none."""
    if feed.seekable:
        return
    with _screen() as screen:
        for name in PIECES:
            wait_s = WAIT_S if name == LONG and state.snapshot is None else 0.0
            if (found := feed.poll(wait_s)) is not None:
                state.take(found)
                screen.show(frame.draw(state, *shutil.get_terminal_size()))
            import_module(name)


class Screen:
    """Standard output as long as no driver of Textual's has it."""

    def __init__(self) -> None:
        assert sys.__stdout__ is not None
        self.output = sys.__stdout__.fileno()
        self.drawn = self.stalled = False
        self._styles = term.current().colors is not None
        self._encoding = sys.__stdout__.encoding

    def show(self, lines: Sequence[Line]) -> None:
        """All lines from the top."""
        rows = (f"\x1b[{number};1H{self._row(line)}" for number, line in enumerate(lines, 1))
        enter, self.drawn = "" if self.drawn else ENTER, True
        self.write(enter + "".join(rows))

    def leave(self) -> None:
        """As it was before the first picture."""
        if self.drawn:
            self.write(LEAVE)

    def write(self, text: str) -> None:
        """As far as the terminal takes it: one that is stalled or gone is Textual's driver's to notice."""
        data = text.encode(self._encoding, "replace")
        with suppress(OSError):
            for start in range(0, len(data), PIECE):
                self.stalled = self.stalled or not select.select((), (self.output,), (), STALLED_S)[1]
                if self.stalled:
                    return
                os.write(self.output, data[start : start + PIECE])

    def _row(self, line: Line) -> str:
        if not self._styles:
            return "".join(span.text for span in line)
        return "".join(f"\x1b[{sgr}m{text}\x1b[0m" if (sgr := SGR.get(style)) else text for text, style in line)


@contextmanager
def _screen() -> Iterator[Screen]:
    """Keys that come are not shown, and Textual's to read; Ctrl-Z waits until the screen can be given back for it."""
    screen, stops = Screen(), list[int]()
    before = _quiet(sys.stdin.fileno())
    handler = signal.signal(signal.SIGTSTP, lambda number, frame: stops.append(number))
    try:
        yield screen
    except BaseException:
        screen.leave()
        raise
    finally:
        signal.signal(signal.SIGTSTP, handler)
        if stops:
            screen.leave()
        if before is not None:
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
        if stops:
            signal.raise_signal(signal.SIGSTOP)  # the kernel drops the other one where no shell could go on


def _quiet(fd: int) -> list[Any] | None:
    """The terminal's settings as they were; no echo from now on. None where it has none."""
    try:
        before = termios.tcgetattr(fd)
        wanted = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        termios.tcsetattr(fd, termios.TCSANOW, wanted)
    except termios.error:
        return None
    return before
