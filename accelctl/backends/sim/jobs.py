"""The device's side of a queue: jobs in order, each done some ticks after the one before it."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from accelctl.backends.sim.tables import JobFault, Object, Vram, fault

MOST_DEPTH = 1024


class Job(NamedTuple):
    """``done``: the tick at which it takes effect. It holds its objects until then."""

    done: int
    things: tuple[Object, ...]
    effect: Callable[[], None] | None


class Jobs:
    """One queue: ``passed`` of ``submitted`` jobs are done. A job that fails ends it, as a page fault of a GPU's
    context does: ``dead`` says why."""

    def __init__(self, vram: Vram, depth: int, latency: int) -> None:
        if not 1 <= depth <= MOST_DEPTH:
            raise fault(errno.EINVAL, f"a queue of depth {depth}")
        self._vram, self.depth, self._latency = vram, depth, latency
        self.flying: deque[Job] = deque()
        self.submitted = self.passed = 0
        self.dead = ""
        self._last = 0

    def advance(self, now: int) -> None:
        """Let everything take effect that is done by now."""
        flying = self.flying
        while flying and flying[0].done <= now:
            job = flying.popleft()
            try:
                if job.effect is not None:
                    job.effect()
            except Exception as error:  # text only: its traceback would keep views of VRAM alive
                kind = "" if isinstance(error, JobFault) else f"{type(error).__name__}: "
                self.dead = f"job {self.passed + 1} failed: {kind}{error}".removesuffix(": ")
                self.stop()
                return
            finally:
                self._drop(job)
            self.passed += 1

    def submit(self, now: int, things: tuple[Object, ...], effect: Callable[[], None] | None) -> int:
        """The job's point. EBUSY when the queue is full, EIO when it is dead."""
        self.advance(now)
        self.check_alive()
        if len(self.flying) >= self.depth:
            raise fault(errno.EBUSY, f"{self.depth} jobs are in flight")
        self._last = max(now, self._last) + self._latency
        for thing in things:
            self._vram.hold(thing)
        self.flying.append(Job(self._last, things, effect))
        self.submitted += 1
        return self.submitted

    def check_alive(self) -> None:
        """EIO with the reason, when a job has failed."""
        if self.dead:
            raise fault(errno.EIO, self.dead)

    def done_at(self, point: int) -> int:
        """The tick at which a point is passed; 0: it is, or never will be. EINVAL for one that nobody was given."""
        if point > self.submitted:
            raise fault(errno.EINVAL, f"point {point} of {self.submitted}")
        return 0 if self.dead or point <= self.passed else self.flying[point - self.passed - 1].done

    def stop(self) -> None:
        """Forget what is in flight."""
        while self.flying:
            self._drop(self.flying.popleft())

    def _drop(self, job: Job) -> None:
        for thing in job.things:
            self._vram.drop(thing)
