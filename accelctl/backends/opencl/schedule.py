"""The Schedule contract on OpenCL: kernels and their arguments are made ready once, and a list is enqueued in one go.

OpenCL 1.2 has no command buffers (cl_khr_command_buffer is an extension of 3.0), so the device sees single commands;
reading, checking and packing arguments is what a list spares.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from accelctl.abi.queue import Ring
from accelctl.abi.schedule import ListClosed, Recorded
from accelctl.backends.opencl.contract import ClRing, Prepared
from accelctl.errors import AccelError, UsageError

MOST_LISTED = 4096
"""Instructions of one list."""


class ClRecorded:
    """A list of one ring. Arguments hold buffers, and buffers the pages below them: when memory goes, the session says
    so, and the list lets go of everything."""

    def __init__(self, ring: ClRing, prepared: tuple[Prepared, ...]) -> None:
        self._ring, self._prepared = ring, prepared
        self._buffers = frozenset(id(buffer) for one in prepared for buffer in one.uses)
        self.works = len(prepared)
        self._why: tuple[type[AccelError], str] | None = None
        self._lock = threading.Lock()
        ring.lists.add(self)

    def replay(self) -> int:
        """See Recorded."""
        with self._lock:
            if self._why is not None:
                self._ring.check_open()  # that is what is told of a ring that is closed
                kind, text = self._why
                raise kind(text)
            return self._ring.hand_over(self._prepared)

    def forget(self, buffer: Any) -> None:
        """The session is about to release it."""
        if id(buffer) in self._buffers:
            self._end(UsageError, "the list cannot be run: memory that it names is gone")

    def close(self) -> None:
        """See Recorded."""
        self._end(ListClosed, "the list is closed")

    def _end(self, kind: type[AccelError], text: str) -> None:
        with self._lock:
            self._prepared, self._buffers = (), frozenset()
            self._why = kind, text


class ClSchedule:
    """What the chip offers."""

    def record(self, ring: Ring, blobs: Sequence[bytes]) -> Recorded:
        """See Schedule."""
        if not isinstance(ring, ClRing):
            raise UsageError("a list of opencl needs a ring of opencl")
        if not blobs:
            raise UsageError("a list of no instructions")
        if len(blobs) > MOST_LISTED:
            raise AccelError(f"{len(blobs)} instructions: a list has at most {MOST_LISTED}", kind="out_of_resources")
        ring.check_open()
        return ClRecorded(ring, tuple(_prepared(ring, number, one) for number, one in enumerate(blobs)))


def _prepared(ring: ClRing, number: int, work: bytes) -> Prepared:
    try:
        return ring.prepare(work)
    except UsageError as error:
        raise UsageError(f"blobs[{number}]: {error.message}") from None


SCHEDULE = ClSchedule()
