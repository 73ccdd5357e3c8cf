"""The Queue contract: rings that take work, and fence points that say how far the device has come.

A point is a number on one ring's timeline. ``submit`` returns the point that is passed when that work *and everything
before it* is done, so waiting for the newest point is waiting for all, and a block may be given back once the point of
its last use is passed. Points rise by one from 1; 0 is passed from the start.

A ring is in one of five states::

            submit              submit (depth reached)
     idle --------> busy ---------------------------> full
      ^              | ^                                |
      |  all passed  | |            one passed          |
      +--------------+ +--------------------------------+
     any of these -- the device dies --> lost -- close --> closed <-- close -- any of these

idle    nothing in flight: every submitted point is passed
busy    0 < in flight < depth
full    in flight == depth: submit raises QueueFull at once, it never waits
lost    nothing more will pass: submit and wait raise DeviceUnusable with the reason
closed  submit and wait raise QueueClosed; what was in flight is the driver's, not the caller's, to end

:class:`Timeline` is that state machine without a device, for chips and for the service to build on.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from accelctl.abi.lifecycle import Session
from accelctl.errors import AccelError, DeviceUnusable

IDLE, BUSY, FULL, LOST, CLOSED = STATES = ("idle", "busy", "full", "lost", "closed")


class QueueFull(AccelError):
    """``depth`` works are in flight; it fits again after the oldest point has passed."""

    default_kind = "out_of_resources"


class QueueClosed(AccelError):
    """The ring was closed, by its owner or with its session."""

    default_kind = "cancelled"


class Ring(Protocol):
    """One queue of one session. May be used by several threads."""

    @property
    def depth(self) -> int:
        """Works that may be in flight."""

    @property
    def state(self) -> str:
        """One of STATES, as of now."""

    def submit(self, work: bytes) -> int:
        """Hand over one work; its fence point. Never waits.

        QueueFull, QueueClosed, DeviceUnusable; UsageError for work that the device cannot read, which then has no
        point.
        """

    def passed(self) -> int:
        """The last point that is passed; never falls."""

    def wait(self, point: int, timeout_s: float) -> bool:
        """Whether the point was passed within so many seconds (0: now).

        ValueError for a point that was never given out: it would be waited for without end. QueueClosed and
        DeviceUnusable unless it is passed already.
        """

    def close(self) -> None:
        """Give the ring back; safe to call twice."""


class Queue(Protocol):
    """What a chip with queues offers."""

    def nop(self) -> bytes:
        """Work that does nothing but pass its point: every ring has it, and checks need nothing else."""

    def open(self, session: Session, depth: int) -> Ring:
        """A ring of a session of the same chip; the session's ``close`` closes it too. UsageError for a depth that the
        device does not have (below 1, too large)."""


class Timeline:
    """Points of one ring: given out by the submitting side, passed by the device's. All methods lock."""

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"a ring of depth {depth}")
        self.depth = depth
        self._submitted = self._passed = 0
        self._lost = ""
        self._closed = False
        self._change = threading.Condition()

    @property
    def state(self) -> str:
        """One of STATES."""
        with self._change:
            return self._state()

    def _state(self) -> str:
        if self._closed:
            return CLOSED
        if self._lost:
            return LOST
        flying = self._submitted - self._passed
        return IDLE if not flying else FULL if flying >= self.depth else BUSY

    def take(self) -> int:
        """The next point. QueueFull, QueueClosed, DeviceUnusable."""
        with self._change:
            self._alive()
            if self._submitted - self._passed >= self.depth:
                raise QueueFull(f"{self.depth} works are in flight, and the ring holds no more")
            self._submitted += 1
            return self._submitted

    def passed(self) -> int:
        """The last point that is passed."""
        return self._passed

    def advance(self, point: int) -> None:
        """The device has come so far. ValueError when it goes back or ahead of what was submitted: the device (or who
        reads it) is wrong, and every block freed on its word would be in use."""
        with self._change:
            if not self._passed <= point <= self._submitted:
                raise ValueError(f"point {point} passed, of {self._passed}..{self._submitted} that can be")
            self._passed = point
            self._change.notify_all()

    def wait(self, point: int, timeout_s: float) -> bool:
        """As Ring.wait."""
        end = time.monotonic() + timeout_s
        with self._change:
            if not 0 <= point <= self._submitted:
                raise ValueError(f"point {point} was never submitted; the last one is {self._submitted}")
            while self._passed < point:
                self._alive()
                if not self._change.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    return self._passed >= point
            return True

    def lose(self, reason: str) -> None:
        """The device died: whoever waits is told so."""
        with self._change:
            self._lost = self._lost or reason
            self._change.notify_all()

    def close(self) -> None:
        """No more submissions; whoever waits is told so. Safe to call twice."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def check_alive(self) -> None:
        """QueueClosed, DeviceUnusable once nothing more is taken."""
        with self._change:
            self._alive()

    def _alive(self) -> None:
        if self._closed:
            raise QueueClosed("the ring is closed")
        if self._lost:
            raise DeviceUnusable(f"the ring is lost: {self._lost}")
