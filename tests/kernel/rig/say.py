"""Progress for a person who waits minutes: what is being done now and how long the last step took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Print one line at once, also when the output is a pipe."""
    print(f"kernel rig: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a step and then its cost in seconds, so that a slow one can be told from a stuck one."""
    say(f"{text} ...")
    start = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - start:.1f} s")
