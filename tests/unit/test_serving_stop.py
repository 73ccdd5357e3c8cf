"""A signal that asks a service to stop is never lost, at whatever moment of waiting it comes."""

import os
import random
import signal
import threading
import time

from accelctl.umd import serving

TIMES = 200


def ask_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_ends_the_wait_at_any_moment() -> None:
    """Some come before the wait, some as it begins, some within: a handler that took a lock of the wait would hang
    here, and a wait without an end would miss those that come just before it."""
    noise = random.Random(1)
    for _ in range(TIMES):
        with serving._signals() as stop:
            delay_s = noise.choice((0.0, 1e-5, 1e-4, 1e-3))
            sender = threading.Thread(target=ask_after, args=(delay_s,))
            sender.start()
            serving._wait(stop)
            sender.join()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one ends the process at once"
