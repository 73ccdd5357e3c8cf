"""Stage 6: a session's queue. Instructions of one op go in together, in order; a full queue is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock, RLock
from typing import NamedTuple

from accelctl.abi.queue import QueueFull, Ring
from accelctl.abi.schedule import Recorded
from accelctl.errors import AccelError
from accelctl.umd.memory import Allocation
from accelctl.umd.refusal import Refusal, refusal_of


class Times(NamedTuple):
    """Nanoseconds: that works spent in the queue, summed over them; in which there were any; since when there are some
    and none was finished. As far as it was noticed: when somebody waits, when the queue seems full, and when asked."""

    flown: int
    busy: int
    stalled: int


class Line:
    """A ring, and how far it is. ``lock`` is the session's: nothing of its memory changes while instructions go in.
    ``touch`` is told every ``slice_s`` of a wait for room that its client is there; it raises once it is closed."""

    def __init__(self, ring: Ring, lock: RLock, touch: Callable[[], None], slice_s: float) -> None:
        self.ring, self._lock, self._touch, self.slice_s = ring, lock, touch, slice_s
        self._turn = Lock()
        """Of who hands over: instructions of one op stay together, also where they do not fit in at once."""
        self.submitted = 0
        self._passed = 0
        self._book = Lock()
        self._noted = self._moved = time.monotonic_ns()
        self._flown = self._busy = 0

    @property
    def depth(self) -> int:
        """Instructions that may be in flight."""
        return self.ring.depth

    def passed(self) -> int:
        """How far the ring has come, as of now."""
        self._note(self.submitted, self.ring.passed())
        return self._passed

    def _note(self, submitted: int, passed: int) -> None:
        """It is there now: until now as many as before were in flight."""
        with self._book:
            now, flying = time.monotonic_ns(), self.submitted - self._passed
            if flying > 0:
                self._flown += flying * (now - self._noted)
                self._busy += now - self._noted
            if passed > self._passed or flying <= 0:
                self._moved = now
            self._noted = now
            self.submitted, self._passed = max(self.submitted, submitted), max(self._passed, passed)

    def times(self) -> Times:
        """The account of time, as of now."""
        self.passed()
        with self._book:
            stalled = self._noted - self._moved if self.submitted > self._passed else 0
            return Times(self._flown, self._busy, stalled)

    def idle_at(self, fence: int) -> bool:
        """Whether that point is passed; the device is asked only where it is not known."""
        return fence <= self._passed or fence <= self.passed()

    def run(
        self,
        recorded: Recorded | None,
        blobs: Sequence[bytes],
        allocations: Sequence[Allocation],
        patience_s: float,
    ) -> int:
        """Hand over a list: as one work where the chip has it, otherwise one instruction after the other. See send."""
        if recorded is None:
            return self.send(blobs, allocations, patience_s)
        return self.send((b"",), allocations, patience_s, lambda _: recorded.replay())

    def send(
        self,
        blobs: Sequence[bytes],
        allocations: Sequence[Allocation],
        patience_s: float,
        submit: Callable[[bytes], int] | None = None,
    ) -> int:
        """Hand them over; the point that is passed when all are done. Waits up to ``patience_s`` for room, and keeps
        nobody but other senders from the session meanwhile. Refusal."""
        if not blobs:
            return self.submitted
        end = time.monotonic() + patience_s
        if not self._turn.acquire(timeout=max(0.0, patience_s)):
            raise self._no_room(0, len(blobs))
        try:
            done = 0
            while True:
                with self._lock:
                    if done or self._room(len(blobs)):
                        done = self._hand_over(blobs, done, allocations, submit or self.ring.submit)
                        if done == len(blobs):
                            return self.submitted
                    oldest = self.passed() + 1
                if time.monotonic() >= end:
                    raise self._no_room(done, len(blobs))
                self._wait_for(oldest, end)
        finally:
            self._turn.release()

    def _room(self, count: int) -> bool:
        """Room for all of them; what needs more than the whole queue goes in piece by piece, from an idle one on."""
        limit = max(self.depth - count, 0)
        return self.submitted - self._passed <= limit or self.submitted - self.passed() <= limit

    def _hand_over(
        self, blobs: Sequence[bytes], done: int, allocations: Sequence[Allocation], submit: Callable[[bytes], int]
    ) -> int:
        """As many as there is room for, behind the ``done`` ones; how many are in then."""
        for one in allocations:
            if not one.alive:
                raise Refusal("", "a tensor of this op was freed before it was submitted", "invalid_state")
        point = self.submitted
        try:
            for made in blobs[done:] if done else blobs:
                point = submit(made)
                done += 1
        except QueueFull:
            pass
        except AccelError as error:
            raise refusal_of(error, "instructions" if error.kind == "invalid_argument" else "") from None
        finally:
            self._note(point, self._passed)
            for one in allocations:
                one.fence = self.submitted
        return done

    def _no_room(self, done: int, count: int) -> Refusal:
        flying = self.submitted - self._passed
        text = f"{flying} instructions are in flight, and there was no room for more before the deadline"
        if done:
            text = f"{done} of {count} instructions were handed over before the deadline"
        return Refusal("", text, "timeout", "wait for a fence, or open the session with a deeper queue")

    def _wait_for(self, oldest: int, end: float) -> None:
        """Until that point is passed, or for a while. One that was never given out is not waited for: all is done."""
        self._touch()
        if oldest > self.submitted:
            return
        try:
            self.ring.wait(oldest, min(max(0.0, end - time.monotonic()), self.slice_s))
        except AccelError as error:
            raise refusal_of(error) from None

    def wait(self, fence: int, timeout_s: float) -> bool:
        """Whether that point was passed in time. Refusal for a point that was never given."""
        if not 0 <= fence <= self.submitted:
            raise Refusal("fence", f"{fence}: the last one of this session is {self.submitted}")
        if fence <= self._passed:
            return True
        try:
            done = self.ring.wait(fence, timeout_s)
        except AccelError as error:
            raise refusal_of(error) from None
        if done:
            self._note(self.submitted, fence)
        return done

    def close(self) -> None:
        """Give the ring back; whoever waits is told so."""
        self.ring.close()
