"""`accelctl export`: the newest Snapshot, for whoever asks."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accelctl.errors import TimeoutFailure
from accelctl.hal.scrape import Endpoint, Page, plain
from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.merge import patience_ns

SLICE_S = 0.1
"""How long a request waits at most."""
START_S = 30.0
"""Until the first Snapshot."""
SECOND_S = 15.0
"""From the first to the second."""


class Stop(threading.Event):
    """Set by a signal, and by which."""

    number = 0


def snapshots(feed: Feed, count: int, stop: threading.Event) -> Iterator[Snapshot]:
    """So many (0: without end). The first one is kept back until there is a second, which has rates, or until there
    will be none; what a source has not started for yet does not count. TimeoutFailure where none comes at all."""
    first: Snapshot | None = None
    end, given = time.monotonic() + START_S, 0
    while not stop.is_set() and (not count or given < count):
        found, late = feed.poll(SLICE_S), time.monotonic() > end
        if found is not None and starting(found):
            found = None
        if found is not None and (first is not None or given):
            first, given = None, given + 1
            yield found
        elif found is not None:
            first, end = found, time.monotonic() + SECOND_S
        elif late and first is not None:
            found, first, given = first, None, given + 1
            yield found
        elif late and not given:
            raise TimeoutFailure(f"{feed.title}: no numbers came within {START_S:g} s")


def starting(found: Snapshot) -> bool:
    """A source has not begun yet: what is not there is not missing."""
    return any(one.state == "starting" for one in found.health)


def listen(
    feed: Feed, endpoint: Endpoint, text: Callable[[Snapshot], str], kind: str, count: int, stop: threading.Event
) -> None:
    """Answer requests with the newest Snapshot until ``stop``, or until ``count`` Snapshots were seen (0: for ever)."""
    newest: Snapshot | None = None
    seen, came, most_s = 0, 0.0, 0.0

    def produce() -> Page:
        if newest is None:
            return plain("503 Service Unavailable", "the first numbers are not there yet")
        if time.monotonic() - came > most_s:  # a collector would take them for today's
            return plain("503 Service Unavailable", f"no numbers came for {most_s:g} s")
        return Page("200 OK", kind, text(newest).encode())

    while not stop.is_set() and (not count or seen < count):
        found = feed.poll(0.0)
        if found is not None:
            newest, seen = found, seen + 1
            came, most_s = time.monotonic(), patience_ns(found) / 1e9
        endpoint.attend(SLICE_S, produce)


@contextmanager
def stopping() -> Iterator[Stop]:
    """SIGINT and SIGTERM ask to stop; a second one ends the process at once."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        stop.number = number
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
