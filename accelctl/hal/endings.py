"""Ways to end a run from outside, other than Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from accelctl.exits import SIGNAL_BASE

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a program to end: Ctrl-C, somebody, a terminal that closes."""


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], numbers: Sequence[signal.Signals] = ENDINGS
) -> Iterator[None]:
    """These are the handler's until the end of the block. Ignored ones (nohup) stay ignored; Python lets only the main
    thread ask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) raise SystemExit with the shells' status, so that a run gives back what it
    holds."""
    with handled(_ended, (signal.SIGTERM, signal.SIGHUP)):
        yield


def _ended(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(SIGNAL_BASE + number)


GRACE_S = 10.0
"""To tell what was done, from the first signal on; writing a report takes a fraction of a second."""


@contextmanager
def once() -> Iterator[None]:
    """As :func:`in_order`, and Ctrl-C too; but only the first signal ends the run. Further ones within ``GRACE_S`` are
    ignored, also after the block: the rest of the program tells what was done until then, and a second Ctrl-C of an
    impatient hand must not cost that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    until: list[float] = []

    def end(number: int, frame: FrameType | None) -> None:
        if until and time.monotonic() < until[0]:
            return
        until[:] = [time.monotonic() + GRACE_S]
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        _ended(number, frame)

    numbers = [one for one in ENDINGS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items() if not until else ():
            signal.signal(number, handler)


@contextmanager
def later() -> Iterator[None]:
    """What asks the program to end waits until the block is over. For a fork: Python would run the handler in one of
    the functions that modules have called around it, where what it raises is swallowed and what they hold (logging's
    lock) stays held. Masking the signals would not do: another thread takes them, and the handler runs in this one."""
    if threading.current_thread() is not threading.main_thread():  # whose handlers run elsewhere
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda found, frame: came.append(found))
        for number in ENDINGS
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)
