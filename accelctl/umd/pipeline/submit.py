"""Stage 6: a session's queue. Instructions of one op go in together, in order; a full queue is waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import RLock

from accelctl.abi.queue import QueueFull, Ring
from accelctl.errors import AccelError
from accelctl.umd.memory import Allocation
from accelctl.umd.refusal import Refusal, refusal_of


class Line:
    """A ring, and how far it is. ``lock`` is the session's: nothing of its memory changes while instructions go in."""

    def __init__(self, ring: Ring, lock: RLock) -> None:
        self.ring, self._lock = ring, lock
        self.submitted = 0
        self._passed = 0

    @property
    def depth(self) -> int:
        """Instructions that may be in flight."""
        return self.ring.depth

    def passed(self) -> int:
        """How far the ring has come, as of now."""
        self._passed = max(self._passed, self.ring.passed())
        return self._passed

    def idle_at(self, fence: int) -> bool:
        """Whether that point is passed; the device is asked only where it is not known."""
        return fence <= self._passed or fence <= self.passed()

    def send(self, blobs: Sequence[bytes], allocations: Sequence[Allocation], patience_s: float) -> int:
        """Hand them over; the point that is passed when all are done. Waits up to ``patience_s`` for room. Refusal."""
        if not blobs:
            return self.submitted
        end = time.monotonic() + patience_s
        while True:
            with self._lock:
                if self._room(len(blobs)):
                    return self._hand_over(blobs, allocations)
                oldest = self._passed + 1
            self._wait_for_room(oldest, end)

    def _room(self, count: int) -> bool:
        """Room for all of them; what needs more than the whole queue goes in piece by piece, from an idle one on."""
        limit = max(self.depth - count, 0)
        return self.submitted - self._passed <= limit or self.submitted - self.passed() <= limit

    def _hand_over(self, blobs: Sequence[bytes], allocations: Sequence[Allocation]) -> int:
        for one in allocations:
            if not one.alive:
                raise Refusal("", "a tensor of this op was freed before it was submitted", "invalid_state")
        point = self.submitted
        try:
            for made in blobs:
                point = self._one(made)
        except AccelError as error:
            raise refusal_of(error, "instructions" if error.kind == "invalid_argument" else "") from None
        finally:
            self.submitted = max(self.submitted, point)
            for one in allocations:
                one.fence = self.submitted
        return point

    def _one(self, made: bytes) -> int:
        while True:
            try:
                return self.ring.submit(made)
            except QueueFull:  # more instructions than the queue holds
                self.ring.wait(self.ring.passed() + 1, _SLICE_S)

    def _wait_for_room(self, oldest: int, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            text = f"{self.depth} instructions are in flight, and none ended before the deadline"
            raise Refusal("", text, "timeout", "wait for a fence, or open the session with a deeper queue")
        try:
            self.ring.wait(oldest, min(left, _SLICE_S))
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
            self._passed = max(self._passed, fence)
        return done

    def close(self) -> None:
        """Give the ring back; whoever waits is told so."""
        self.ring.close()


_SLICE_S = 0.5
"""How long one wait for the device lasts before the deadline is looked at again."""
