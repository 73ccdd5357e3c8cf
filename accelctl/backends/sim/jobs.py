"""The device's side of a queue: jobs in order, each done some ticks after the one before it."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from accelctl.backends.sim.tables import JobFault, Numbers, Object, PageTable, Vram, fault

MOST_DEPTH = 1024
MOST_LISTS, MOST_LISTED = 1024, 4096
"""Lists of one queue, and instructions of one list."""
Placed = tuple[tuple[Object, ...], Callable[[], None]]
"""The objects that something uses, and what it does."""


class Job(NamedTuple):
    """``done``: the tick at which it takes effect. It holds its objects until then."""

    done: int
    things: tuple[Object, ...]
    effect: Callable[[], None] | None


class JobList:
    """Instructions that were read once. ``place``: where the operands of one lie, now. Where nothing was mapped or
    unmapped since, that is known."""

    def __init__(self) -> None:
        self.instructions: list[Callable[[], Placed]] = []
        self._changes = -1
        self._placed: Placed = ((), lambda: None)

    def placed(self, table: PageTable) -> Placed:
        """All of them as one job. EFAULT for memory that is not mapped any more."""
        if self._changes != table.changes:
            found = [place() for place in self.instructions]
            things = {id(thing): thing for used, _ in found for thing in used}
            effects = [effect for _, effect in found]
            self._placed = tuple(things.values()), lambda: _in_order(effects)
            self._changes = table.changes
        return self._placed

    def add(self, place: Callable[[], Placed]) -> None:
        """One more, at the end. EINVAL, EFAULT, ENOSPC; nothing is added then."""
        if len(self.instructions) >= MOST_LISTED:
            raise fault(errno.ENOSPC, f"a list has at most {MOST_LISTED} instructions")
        place()
        self.instructions.append(place)
        self._changes = -1


def _in_order(effects: Sequence[Callable[[], None]]) -> None:
    for number, effect in enumerate(effects):
        try:
            effect()
        except Exception as error:
            kind = "" if isinstance(error, JobFault) else f"{type(error).__name__}: "
            raise JobFault(f"instruction {number} of its list: {kind}{error}".removesuffix(": ")) from None


class Jobs:
    """One queue: ``passed`` of ``submitted`` jobs are done. A job that fails ends it, as a page fault of a GPU's
    context does: ``dead`` says why."""

    def __init__(self, vram: Vram, depth: int, latency: int) -> None:
        if not 1 <= depth <= MOST_DEPTH:
            raise fault(errno.EINVAL, f"a queue of depth {depth}")
        self._vram, self.depth, self._latency = vram, depth, latency
        self.flying: deque[Job] = deque()
        self.lists: Numbers[JobList] = Numbers()
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

    def submit(
        self, now: int, things: tuple[Object, ...], effect: Callable[[], None] | None, *, instructions: int = 1
    ) -> int:
        """The job's point. EBUSY when the queue is full, EIO when it is dead."""
        self.advance(now)
        self.check_alive()
        if len(self.flying) >= self.depth:
            raise fault(errno.EBUSY, f"{self.depth} jobs are in flight")
        self._last = max(now, self._last) + self._latency * instructions
        for thing in things:
            self._vram.hold(thing)
        self.flying.append(Job(self._last, things, effect))
        self.submitted += 1
        return self.submitted

    def list_of(self, number: int) -> tuple[int, JobList]:
        """A list and its number; 0: a new one. ENOENT, ENOSPC."""
        if number:
            return number, self.lists.get(number, "list")
        if len(self.lists.things) >= MOST_LISTS:
            raise fault(errno.ENOSPC, f"a queue has at most {MOST_LISTS} lists")
        made = JobList()
        return self.lists.add(made), made

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
