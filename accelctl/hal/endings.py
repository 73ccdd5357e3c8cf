"""Ways to end a run from outside, other than Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from accelctl.exits import SIGNAL_BASE


@contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) raise SystemExit with the shells' status, so that a run gives back what it
    holds. Ignored ones (nohup) stay ignored; Python lets only the main thread ask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _ended) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(SIGNAL_BASE + number)
