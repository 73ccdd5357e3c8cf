"""The device's side of a queue: jobs in order, each done some ticks after the one before it."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from accelctl.backends.sim.tables import Object, Vram, fault

MOST_DEPTH = 1024


class Job(NamedTuple):
    """``done``: the tick at which it takes effect. It holds its objects until then."""

    done: int
    things: tuple[Object, ...]
    effect: Callable[[], None] | None


class Jobs:
    """One queue: ``passed`` of ``submitted`` jobs are done."""

    def __init__(self, vram: Vram, depth: int, latency: int) -> None:
        if not 1 <= depth <= MOST_DEPTH:
            raise fault(errno.EINVAL, f"a queue of depth {depth}")
        self._vram, self._depth, self._latency = vram, depth, latency
        self.flying: deque[Job] = deque()
        self.submitted = self.passed = 0
        self._last = 0

    def advance(self, now: int) -> None:
        """Let everything take effect that is done by now."""
        flying = self.flying
        while flying and flying[0].done <= now:
            job = flying.popleft()
            self.passed += 1
            try:
                if job.effect is not None:
                    job.effect()
            finally:
                self._drop(job)

    def submit(self, now: int, things: tuple[Object, ...], effect: Callable[[], None] | None) -> int:
        """The job's point. EBUSY when the queue is full."""
        self.advance(now)
        if len(self.flying) >= self._depth:
            raise fault(errno.EBUSY, f"{self._depth} jobs are in flight")
        self._last = max(now, self._last) + self._latency
        for thing in things:
            self._vram.hold(thing)
        self.flying.append(Job(self._last, things, effect))
        self.submitted += 1
        return self.submitted

    def done_at(self, point: int) -> int:
        """The tick at which a point is passed; 0: it is. EINVAL for one that nobody was given."""
        if point > self.submitted:
            raise fault(errno.EINVAL, f"point {point} of {self.submitted}")
        return 0 if point <= self.passed else self.flying[point - self.passed - 1].done

    def stop(self) -> None:
        """Forget what is in flight."""
        while self.flying:
            self._drop(self.flying.popleft())

    def _drop(self, job: Job) -> None:
        for thing in job.things:
            self._vram.drop(thing)
