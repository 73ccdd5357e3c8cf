"""Who tells a run to end, and what it does then: the cycle's end, everything released, and what was seen until then."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from accelctl.exits import SIGNAL_BASE
from accelctl.hal.endings import ENDINGS, handled

NAMES = frozenset(number.name for number in ENDINGS)
INTERRUPTED = "interrupted"
"""Why a lifecycle ended early, where somebody wished it."""
ECHO_S = 1.0
"""A second signal within it is the first one's echo: timeout(1) tells the process and then its whole group."""


class Told:
    """Which signal asked the run to end; true once one did."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> bool:
        """Whether it is to end."""
        return self.number != 0

    @property
    def status(self) -> int:
        """The exit status that shells expect; 0: nobody asked."""
        return SIGNAL_BASE + self.number if self.number else 0

    def by_proxy(self, name: str) -> None:
        """A worker was ended by this signal: the run was meant, whether or not its own one comes yet."""
        self.number = self.number or signal.Signals[name].value


@contextmanager
def interruptible() -> Iterator[Told]:
    """Ctrl-C, SIGTERM and SIGHUP end the run in order instead of at once; a second one is taken literally."""
    told = Told()
    since = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if not since:
            told.number, since = told.number or number, time.monotonic()
        elif time.monotonic() - since > ECHO_S:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(SIGNAL_BASE + number)

    with handled(note):
        yield told


def left_to_parent() -> None:
    """For a worker: what the terminal or timeout(1) sends to the whole group is the parent's to answer. A worker that
    died of it would look like one that crashed."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
