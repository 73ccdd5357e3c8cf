"""A thread between a feed and the dashboards: whatever a feed waits for, keys and drawing never wait with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.feed import Feed

WAIT_S = 0.2
"""How long a feed may wait at a time, and so how late a seek or the end can be noticed."""

BACK_TICKS = 120
"""After a jump in a recording so many ticks before it are read as well, for the charts."""

_SECOND_NS = 1_000_000_000


class Delivery(NamedTuple):
    """What came: Snapshots, or why none will come any more."""

    snapshots: tuple[Snapshot, ...] = ()
    anew: bool = False
    """They do not follow on those before: somebody jumped."""
    error: Exception | None = None
    ended: bool = False
    """A recording is over; somebody may still go back in it."""


class Pump:
    """Polls a feed from its own thread. ``deliver`` is called there, and may be called again after ``taken``."""

    def __init__(self, feed: Feed, deliver: Callable[[Delivery], object]) -> None:
        self._feed, self._deliver = feed, deliver
        self._lock = threading.Lock()
        self._go, self._free = threading.Event(), threading.Event()
        self._go.set()
        self._free.set()
        self._ended = self._held = False
        self._over = False
        """It was told that the recording is over."""
        self._jump: float | None = None
        """Seconds to go, from the moment that is shown."""
        self._first_ns = self._at_ns = 0
        self._thread = threading.Thread(target=self._run, name="accelctl-feed", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def hold(self, held: bool) -> None:
        """Stop and go on: for recordings, which would run on otherwise. A jump is made all the same."""
        with self._lock:
            self._held = held
            if held and self._jump is None:
                self._go.clear()
            else:
                self._go.set()

    def jump(self, seconds: float) -> None:
        """Go so many seconds on, or (negative) back; several jumps add up."""
        with self._lock:
            self._jump = (self._jump or 0.0) + seconds
            self._go.set()

    def taken(self) -> None:
        """The last delivery was dealt with."""
        self._free.set()

    def close(self, wait_s: float = 1.0) -> None:
        """End the thread, as far as the feed lets it, and the feed."""
        self._ended = True
        self._go.set()
        self._free.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)
        self._feed.close()

    def _run(self) -> None:
        try:
            while not self._ended:
                self._step()
        except Exception as error:  # whatever it was: it is told on the screen, or after it
            if not self._ended:
                self._deliver(Delivery(error=error))

    def _step(self) -> None:
        self._go.wait()
        self._free.wait()
        with self._lock:
            jump, self._jump = self._jump, None
            held = self._held
            if held:
                self._go.clear()
        if self._ended or (held and jump is None):
            return
        if jump is not None:
            self._give(Delivery(self._jumped(jump), anew=True))
            return
        found = self._feed.poll(WAIT_S)
        if found is not None and not self._ended:
            self._first_ns = self._first_ns or found.monotonic_ns
            self._over = False
            self._give(Delivery((found,)))
        elif getattr(self._feed, "ended", False) and not self._over:
            self._over = True
            self._deliver(Delivery(ended=True))

    def _give(self, delivery: Delivery) -> None:
        if delivery.snapshots:
            self._at_ns = delivery.snapshots[-1].monotonic_ns
            self._free.clear()
            self._deliver(delivery)

    def _jumped(self, seconds: float) -> tuple[Snapshot, ...]:
        """The moment there, behind some of those before it. A feed knows only how to go to a second."""
        here = (self._at_ns - self._first_ns) / _SECOND_NS
        last = self._feed.seek(max(here + seconds, 0.0))
        if last is None:
            return ()
        there = (last.monotonic_ns - self._first_ns) / _SECOND_NS
        step = max(last.cost.period_ns / _SECOND_NS, 0.1)
        found: list[Snapshot] = []
        for back in range(min(BACK_TICKS, int(there / step)), 0, -1):
            one = self._feed.seek(there - back * step)
            if one is not None and (not found or one.monotonic_ns > found[-1].monotonic_ns):
                found.append(one)
        last = self._feed.seek(there) or last
        return (*(one for one in found if one.monotonic_ns < last.monotonic_ns), last)
