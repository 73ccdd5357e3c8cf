"""Work of one session, done in order by one thread, so that handing over never waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from accelctl.abi.queue import LOST, QueueClosed, Timeline
from accelctl.backends.torch.ops.platform import said


class Line:
    """``finish`` waits for the device after each work: what fails is then known to be that work's failure."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._waiting: deque[tuple[Timeline, int, Callable[[], None]]] = deque()
        self._busy = self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, timeline: Timeline, work: Callable[[], None]) -> int:
        """Its point. QueueFull, QueueClosed, DeviceUnusable."""
        with self._change:
            if self._closed:
                raise QueueClosed("the session is closed")
            point = timeline.take()
            self._waiting.append((timeline, point, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="accelctl-torch", daemon=True)
                self._thread.start()
            self._change.notify_all()
            return point

    def forget(self, timeline: Timeline) -> None:
        """Drop what a ring has waiting."""
        with self._change:
            self._waiting = deque(one for one in self._waiting if one[0] is not timeline)
            self._change.notify_all()

    def settle(self) -> None:
        """Wait until nothing is in flight."""
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._waiting)

    def close(self) -> None:
        """Do what is left, and end the thread. Safe to call twice."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                timeline, point, work = self._waiting.popleft()
                self._busy = True
            if timeline.state != LOST:
                self._do(timeline, point, work)
            del work  # it holds views of memory that may be given back now

    def _do(self, timeline: Timeline, point: int, work: Callable[[], None]) -> None:
        try:
            work()
            self._finish()
        except Exception as error:  # whatever it was, the ring ends with it, and nobody waits for ever
            kind = "" if isinstance(error, Fault) else f"{type(error).__name__}: "
            timeline.lose(f"instruction {point} failed: {kind}{said(error)}")
        else:
            timeline.advance(point)


class Fault(Exception):
    """Numbers in memory that cannot be used; the text names them."""
