"""Whether there is a terminal to draw on, and whose it is while something is drawn there."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from accelctl.errors import UsageError
from accelctl.hal.endings import later

DUMB = ("", "dumb", "unknown")
ONCE = "accelctl top --once"
STALLED_S = 0.5
"""So long a terminal may take no output; then it gets none any more from here."""
PIECE = 512
"""Bytes that a terminal takes whole as soon as it says that it takes any (pty(7): 4 KiB at least)."""
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HANDLED = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
"""Signals that mean something else while the terminal is ours; Textual does not put them back."""


def check(env: Mapping[str, str], streams: tuple[IO[str] | None, IO[str] | None]) -> None:
    """UsageError, one line, where nothing can be drawn or no key can come. ``streams``: standard input and output."""
    for stream, name in zip(streams, ("input", "output"), strict=True):
        if not _isatty(stream):
            raise UsageError(f"top needs a terminal, and standard {name} is none", ONCE)
    kind = env.get("TERM", "").lower()
    if kind in DUMB:
        raise UsageError(f"top needs a terminal that can place its cursor, and TERM is {kind or 'not set'}", ONCE)


def _isatty(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class Held:
    """The terminal while it is ours: how it was before the first picture, and what has to be undone. The early pictures
    and Textual's driver draw one after the other; between them, and where one of them breaks off, the way back is
    here."""

    def __init__(self) -> None:
        assert sys.__stdin__ is not None
        assert sys.__stdout__ is not None
        self.input, self.output = sys.__stdin__.fileno(), sys.__stdout__.fileno()
        self.encoding = sys.__stdout__.encoding
        self.before = settings(self.input)
        """None where it has none."""
        self.drawn = self.stalled = False
        """Whether the alternate screen is on."""
        self.leaving = LEAVE
        """What switches off all that was switched on."""
        self.stops = 0
        """Times that somebody wanted it to stop, who waits until there is a good moment."""

    def quiet(self) -> None:
        """Keys are not shown from now on."""
        if self.before is not None:
            with suppress(termios.error):
                wanted = [*self.before[:3], self.before[3] & ~termios.ECHO, *self.before[4:]]
                termios.tcsetattr(self.input, termios.TCSANOW, wanted)

    def enter(self, text: str) -> None:
        """Write this on the alternate screen."""
        enter, self.drawn = "" if self.drawn else ENTER, True
        self.write(enter + text)

    def release(self) -> None:
        """As it was before; nothing where that is so already."""
        if self.drawn:
            self.drawn = False
            self.write(self.leaving)
        if self.before is not None and self.foreground and settings(self.input) not in (self.before, None):
            with suppress(termios.error):
                termios.tcsetattr(self.input, termios.TCSANOW, self.before)

    def pause(self) -> None:
        """A good moment to stop, where somebody wanted it to."""
        if self.stops:
            self.stops = 0
            self.release()
            signal.raise_signal(signal.SIGSTOP)  # the kernel drops the other one where no shell could go on
            self.quiet()

    @property
    def foreground(self) -> bool:
        """Whether its settings are ours to change: a shell that has taken it back has its own. 0: who has it is of
        another container."""
        try:
            return os.tcgetpgrp(self.input) in (0, os.getpgrp())
        except OSError:  # not the terminal of this session
            return True

    def write(self, text: str) -> None:
        """As far as the terminal takes it: one that is stalled or gone is Textual's driver's to notice."""
        data = text.encode(self.encoding, "replace")
        with suppress(OSError):
            for start in range(0, len(data), PIECE):
                self.stalled = self.stalled or not select.select((), (self.output,), (), STALLED_S)[1]
                if self.stalled:
                    return
                os.write(self.output, data[start : start + PIECE])

    def note_stop(self, *_: object) -> None:
        """Handler of SIGTSTP until Textual's driver has one."""
        self.stops += 1


@contextmanager
def held() -> Iterator[Held]:
    """Around all that draws. Nothing is changed before whoever has it does so, and whatever ends it gives all back."""
    one = Held()
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        signal.signal(signal.SIGTSTP, one.note_stop)
        yield one
    finally:
        with later():
            one.release()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if one.stops:
                signal.raise_signal(signal.SIGSTOP)


def settings(fd: int) -> list[Any] | None:
    """A terminal's settings; None where it has none, or is gone."""
    try:
        return termios.tcgetattr(fd)
    except termios.error:
        return None
