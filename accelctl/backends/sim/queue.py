"""The Queue contract over the simulated driver.

The device keeps the points: how far it is, is asked of it. Waiting takes its time, not ours.
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress

from accelctl.abi.devmem import ask, number
from accelctl.abi.lifecycle import Session
from accelctl.abi.queue import BUSY, CLOSED, FULL, IDLE, LOST, QueueClosed, QueueFull, Ring
from accelctl.backends.sim import uapi
from accelctl.backends.sim.jobs import MOST_DEPTH
from accelctl.backends.sim.memory import FOREVER, TICK_S, SimSession
from accelctl.errors import DeviceUnusable, UsageError
from accelctl.hal.uapi._struct import Struct

WORK = Struct("struct sim_work", "IIQQQ", "op value dst src size")
"""One work: what SUBMIT wants, without the queue. ``dst`` and ``src`` are device addresses."""

_SUBMIT, _WAIT = uapi.CODECS[uapi.SUBMIT.number], uapi.CODECS[uapi.WAIT.number]  # quicker than by name


class SimRing:
    """One queue of the device."""

    def __init__(self, session: SimSession, depth: int) -> None:
        self._file, self._vm, self._session = session.file, session.vm, session
        self.depth = depth
        self._queue = number(session.file, uapi.QUEUE_CREATE, "queue", depth=depth)
        self._submitted = self._passed = 0
        self._due = -1
        """The tick at which the last job takes effect: one latency behind the one before it. -1: nobody asks."""
        self._closed, self._lost = False, ""
        self._lock = threading.RLock()
        session.rings.append(self)

    @property
    def state(self) -> str:
        """One of STATES."""
        with self._lock:
            flying = self._submitted - self.passed()
            if self._closed:
                return CLOSED
            if self._lost:
                return LOST
            return FULL if flying >= self.depth else BUSY if flying else IDLE

    def submit(self, work: bytes) -> int:
        """See Ring."""
        if len(work) != WORK.size:
            raise UsageError(f"a work has {WORK.size} bytes, not {len(work)}")
        with self._lock:
            self._alive()
            return self._hand_over(**WORK.unpack(work))

    def _hand_over(self, op: int, value: int = 0, dst: int = 0, src: int = 0, size: int = 0) -> int:
        argument = bytearray(_SUBMIT.pack(self._queue, self._vm, op, value, dst, src, size, 0))
        try:
            self._file.ioctl(uapi.SUBMIT.number, argument)
        except OSError as error:
            raise self._refused(error) from error
        self._submitted = int(_SUBMIT.unpack(argument)[-1])
        if self._due >= 0:
            now = number(self._file, uapi.INFO, "ticks")
            self._due = max(now, self._due) + self._session.options.latency
        return self._submitted

    def time_points(self) -> None:
        """From now on ``passes_at`` is answered. For a ring that nothing was submitted to."""
        self._due = 0

    def passes_at(self, point: int) -> float:
        """When a point that is in flight will be passed, in seconds of the device's clock: nothing but jobs of this
        ring is in its way."""
        with self._lock:
            return (self._due - (self._submitted - point) * self._session.options.latency) * TICK_S

    def _refused(self, error: OSError) -> Exception:
        if error.errno == errno.EBUSY:
            return QueueFull(f"{self.depth} works are in flight, and the ring holds no more")
        if error.errno in (errno.EINVAL, errno.EFAULT, errno.ENOENT):
            return UsageError(f"the device cannot read this work: {error.strerror}")
        return self._lose(error)

    def _lose(self, error: OSError) -> DeviceUnusable:
        self._lost = self._lost or str(error.strerror)
        return DeviceUnusable(f"the ring is lost: {self._lost}")

    def passed(self) -> int:
        """See Ring. A ring that is closed or lost goes no further."""
        with self._lock:
            if not self._closed and not self._lost:
                try:
                    self._ask(0, 0)
                except OSError as error:
                    self._lose(error)
            return self._passed

    def wait(self, point: int, timeout_s: float) -> bool:
        """See Ring. The device's time is let pass, so this returns at once."""
        with self._lock:
            if not 0 <= point <= self._submitted:
                raise ValueError(f"point {point} was never submitted; the last one is {self._submitted}")
            if point <= self._passed:
                return True
            self._alive()
            try:
                self._ask(point, min(int(max(0.0, timeout_s) / TICK_S), FOREVER))
            except OSError as error:
                raise self._lose(error) from error
            return point <= self._passed

    def close(self) -> None:
        """See Ring."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self in self._session.rings:
                self._session.rings.remove(self)
            if self._file.fd >= 0:
                ask(self._file, uapi.QUEUE_DESTROY, queue=self._queue)

    def _ask(self, point: int, ticks: int) -> None:
        """How far the queue is when the point is passed or time is over. OSError where it never will be."""
        argument = bytearray(_WAIT.pack(self._queue, 0, point, ticks, 0))
        try:
            self._file.ioctl(uapi.WAIT.number, argument)
        except OSError as error:
            if error.errno == errno.EIO and point:  # a job failed; how many passed before it, is told for point 0
                self._lost = self._lost or str(error.strerror)
                self._ask(0, 0)
            raise
        _, dead, _, _, self._passed = _WAIT.unpack(argument)
        if dead and not self._lost:
            with suppress(OSError):  # asked for its reason
                self._ask(self._passed + 1, 0)

    def _alive(self) -> None:
        if self._closed:
            raise QueueClosed("the ring is closed")
        if self._lost:
            raise DeviceUnusable(f"the ring is lost: {self._lost}")


class SimQueue:
    """What the chip offers."""

    def nop(self) -> bytes:
        """Work that does nothing."""
        return bytes(WORK.pack(op=uapi.NOP))

    def open(self, session: Session, depth: int) -> Ring:
        """A ring. UsageError for a depth that the device does not have, or a session of another chip."""
        if not isinstance(session, SimSession):
            raise UsageError("a ring of sim needs a session of sim")
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"a ring of depth {depth}: the device has 1 to {MOST_DEPTH}")
        return SimRing(session, depth)


QUEUE = SimQueue()
