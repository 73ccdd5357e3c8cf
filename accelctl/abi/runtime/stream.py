"""Streams and events over rings.

A ring runs work in order and knows of no other ring, and a host call must not wait. So a stream keeps what its ring may
not have yet: work behind a wait for another stream, and what does not fit the ring. It is handed over by whatever call
comes next; nothing here starts a thread for it, and on a simulated chip no time passes by itself.

Every item of a stream has a number, counted from 1. ``done`` is the last one that is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from accelctl.abi.queue import LOST, QueueFull, Ring
from accelctl.abi.runtime.failure import fail, fault_kind
from accelctl.errors import AccelError, DeviceUnusable

if TYPE_CHECKING:
    from accelctl.abi.runtime.capture import Graph, Node


class Mark(NamedTuple):
    """So far had a stream come when an event was recorded."""

    stream: Stream
    number: int

    def reached(self) -> bool:
        """Whether all work before it is done."""
        return self.stream.done >= self.number or self.stream.look() >= self.number


class Work(NamedTuple):
    """An instruction."""

    blob: bytes


class Hold(NamedTuple):
    """What follows starts only after this mark."""

    mark: Mark


class Do(NamedTuple):
    """Something that the host does between two works."""

    run: Callable[[], None]


Item = Work | Hold | Do


@dataclass
class Stamp:
    """When a mark was reached, in seconds of the device's clock; None: not yet."""

    number: int
    at: float | None = None


class Stream:
    """A first-in first-out queue of one device. The runtime locks."""

    def __init__(self, device: int, generation: int, ring: Ring, clock: Callable[[], float]) -> None:
        self.device, self.generation, self.ring = device, generation, ring
        self.alive = True
        self.last = 0
        self.graph: Graph | None = None
        """What records it at the moment."""
        self.slow = False
        """Somebody else's thread must look for stamps: the ring does not tell when a point passes."""
        self._clock = clock
        self._pending: deque[tuple[int, Item]] = deque()
        self._flying: deque[tuple[int, int]] = deque()
        """(number, point) of what the ring has."""
        self._stamps: deque[Stamp] = deque()
        self._late: AccelError | None = None
        """Why the ring refused a work that had been accepted."""
        self.passes_at: Callable[[int], float] | None = getattr(ring, "passes_at", None)
        """When a point in flight will be passed, where the ring can tell (a simulated one)."""
        if self.passes_at is not None:
            ring.time_points()  # type: ignore[attr-defined]

    @property
    def done(self) -> int:
        """The last number that is complete, as far as was looked."""
        if self._flying:
            return self._flying[0][0] - 1
        return self._pending[0][0] - 1 if self._pending else self.last

    @property
    def waiting(self) -> int:
        """Items that the ring does not have."""
        return len(self._pending)

    @property
    def stamping(self) -> bool:
        """Whether marks are to be timed."""
        return bool(self._stamps)

    def put(self, item: Item) -> None:
        """Behind all that is there. What the ring refuses at once is not in the stream."""
        if isinstance(item, Work) and not self._pending and len(self._flying) < self.ring.depth:
            try:
                self._submit(self.last + 1, item)
            except QueueFull:
                self._pending.append((self.last + 1, item))
        else:
            self._pending.append((self.last + 1, item))
        self.last += 1
        if self._pending:  # else nothing waits, and a fault of this very work is for a later call to tell
            self.advance()

    def _submit(self, number: int, work: Work) -> None:
        point = self._asked(lambda: self.ring.submit(work.blob))
        self._flying.append((number, point))
        if self.passes_at is not None:
            for stamp in self._stamps:
                if stamp.number == number:
                    stamp.at = self.passes_at(point)

    def _asked(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except DeviceUnusable as error:
            raise fail(fault_kind(error.message), error.message) from error

    def look(self) -> int:
        """Ask the ring how far it is; the last number that is complete. A lost ring is a fault."""
        if self._flying:
            passed = self.ring.passed()
            while self._flying and self._flying[0][1] <= passed:
                self._flying.popleft()
            if self._flying and self.ring.state == LOST:
                point = self._flying[0][1]
                self._asked(lambda: int(self.ring.wait(point, 0.0)))
        if self._stamps:
            self._stamp()
        return self.done

    def _stamp(self) -> None:
        while self._stamps and (self._stamps[0].at is not None or self._stamps[0].number <= self.done):
            stamp = self._stamps.popleft()
            stamp.at = self._clock() if stamp.at is None else stamp.at

    def advance(self) -> bool:
        """Hand over what may be handed over; whether that was anything."""
        self.look()
        moved = False
        while self._pending and self._next(*self._pending[0]):
            self._pending.popleft()
            moved = True
        if moved and self._stamps:
            self._stamp()
        return moved

    def _next(self, number: int, item: Item) -> bool:
        if isinstance(item, Hold):
            return item.mark.reached()
        if isinstance(item, Do):
            if self._flying:
                return False
            item.run()
            return True
        if len(self._flying) >= self.ring.depth:
            return False
        try:
            self._submit(number, item)
        except QueueFull:
            return False
        except AccelError as error:
            if error.kind != "invalid_argument":
                raise
            self._late = self._late or error  # it takes no place; who waits for the stream is told
        return True

    def complain(self) -> None:
        """Raise, once, what was refused after its call had returned."""
        late, self._late = self._late, None
        if late is not None:
            raise late

    def blocker(self, number: int) -> tuple[Stream, int] | None:
        """Whose ring must come to which point before an item of this stream may be complete; None where that has
        changed since it was looked at."""
        stream, seen = self, set[tuple[int, int]]()
        while (id(stream), number) not in seen:
            seen.add((id(stream), number))
            found = stream._awaited(number)
            if not isinstance(found, Mark):
                return None if found is None else (stream, found)
            stream, number = found.stream, found.number
        return None

    def _awaited(self, number: int) -> int | Mark | None:
        """A point of this ring, or another stream's mark. What is behind a full ring needs room there, and half of it
        makes enough."""
        if self._flying and self._flying[-1][0] >= number:
            return next(point for mine, point in self._flying if mine >= number)
        following = self._pending[0][1] if self._pending else None
        if isinstance(following, Hold):
            return following.mark
        if not self._flying:
            return None
        return self._flying[-1 if isinstance(following, Do) else len(self._flying) // 2][1]

    def mark(self) -> Mark:
        """All work so far."""
        return Mark(self, self.last)

    def timed(self) -> Stamp:
        """A stamp for all work so far."""
        stamp = Stamp(self.last)
        if self.look() >= self.last:
            stamp.at = self._clock()
            return stamp
        known = self._flying and self._flying[-1][0] == self.last and self.passes_at is not None
        if known and self.passes_at is not None:
            stamp.at = self.passes_at(self._flying[-1][1])
        else:
            self._stamps.append(stamp)
            self.slow = self.passes_at is None
        return stamp

    def close(self) -> None:
        """Give the ring back."""
        self.alive = False
        self.ring.close()


@dataclass
class Event:
    """A mark that can be moved. ``timing`` off: it cannot be asked for times."""

    device: int
    generation: int
    timing: bool
    mark: Mark | None = None
    stamp: Stamp | None = None
    alive: bool = True
    node: Node | None = field(default=None, repr=False)
    """Where it was recorded in a capture."""
