"""Forking a watched child, and signals: of the parent while it forks, and of a child that faults."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import pytest

from accelctl.errors import AccelError
from accelctl.hal.endings import in_order
from accelctl.hal.reader import WatchedChild, run_watched


def test_a_child_that_faults_dies_whatever_a_library_of_its_parent_does_then() -> None:
    """PoCL's handler of SIGSEGV returns, and the process goes on."""
    before = signal.signal(signal.SIGSEGV, lambda number, frame: None)
    try:
        with pytest.raises(AccelError, match="killed by SIGSEGV"):
            run_watched(lambda _: os.kill(os.getpid(), signal.SIGSEGV))
    finally:
        signal.signal(signal.SIGSEGV, before)


def test_a_signal_that_comes_while_it_forks_is_not_lost_and_leaves_no_lock() -> None:
    """Python runs handlers at the next chance, which may be in what modules do around a fork: what a handler raises is
    swallowed there, and a lock that such a function was about to release (logging's) stays taken."""

    def ended_by_its_child() -> None:
        with in_order(), WatchedChild(lambda _: os.kill(os.getppid(), signal.SIGTERM)) as child:
            child.start()
            time.sleep(20)

    for _ in range(60):
        with pytest.raises(SystemExit):
            ended_by_its_child()
    free: list[bool] = []
    log = logging.getLogger("accelctl.test")
    thread = threading.Thread(target=lambda: free.append(log.isEnabledFor(7)), daemon=True)
    thread.start()
    thread.join(10)
    assert free, "somebody left with logging's lock"
