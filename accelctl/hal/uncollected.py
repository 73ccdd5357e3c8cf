"""Python's cycle collector, where it only costs: while modules are loaded nothing is garbage, and each full round looks
through all of them (40 to 100 ms with Textual)."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, keep: bool = False) -> Iterator[None]:
    """Without it. ``keep``: what came meanwhile stays until the end, and is not looked through later either."""
    collects = gc.isenabled()
    gc.disable()
    atexit.unregister(gc.freeze)  # what is frozen is not looked through at the exit
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        if keep:
            gc.freeze()
        if collects:
            gc.enable()
