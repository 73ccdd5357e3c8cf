"""The Schedule contract over the simulated driver: instructions are read once, and a list is one job of its queue."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from accelctl.abi.queue import Ring
from accelctl.abi.schedule import ListClosed, Recorded
from accelctl.backends.sim.ops.contract import SimOpsRing
from accelctl.errors import UsageError


class SimRecorded:
    """A list of one queue."""

    def __init__(self, ring: SimOpsRing, number: int, works: int) -> None:
        self._ring, self._number, self.works = ring, number, works
        self._closed = False
        self._lock = threading.Lock()

    def replay(self) -> int:
        """See Recorded."""
        with self._lock:
            if self._closed:
                raise ListClosed("the list is closed")
            return self._ring.replay(self._number)

    def close(self) -> None:
        """See Recorded."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ring.forget(self._number)


class SimSchedule:
    """What the chip offers."""

    def record(self, ring: Ring, blobs: Sequence[bytes]) -> Recorded:
        """See Schedule."""
        if not isinstance(ring, SimOpsRing):
            raise UsageError("a list of sim needs a ring of sim that takes instructions")
        if not blobs:
            raise UsageError("a list of no instructions")
        return SimRecorded(ring, ring.record(blobs), len(blobs))


SCHEDULE = SimSchedule()
