"""An observer that writes a trace: calls of the protocol on the rows of their threads, stages of the pipeline below
them, and ops once more on the rows of their sessions.

A thread's row nests: what a call did lies below it. Sessions are no threads, and ops of one may overlap, so their rows
are of events that begin and end by a number ("b", "e": Trace Event Format, "Async Events").
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from time import perf_counter_ns as now
from typing import Any

from accelctl.hal.trace import Trace, span
from accelctl.umd.observer import STAGES

LOG = logging.getLogger("accelctl.umd")


class Tracing:
    """See Observer. A trace that cannot be written is told once, and the service works on."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._numbers = itertools.count(1)
        self._threads: set[int] = set()

    def translated(self, op: str, stage_ns: Sequence[int], hit: bool, session: int = 0) -> None:
        """The op, and the stages that took time: they ran one behind the other, and the last has just ended."""
        end = now()
        at = begin = end - sum(stage_ns)
        facts = {"session": f"{session:016x}", "cache": "hit" if hit else "miss"}
        events = [span(op, begin, end, facts)]
        for stage, took in zip(STAGES, stage_ns, strict=True):
            if took:
                events.append(span(stage, at, at + took, {"op": op}))
            at += took
        same = {"name": op, "cat": f"session {session:016x}", "id": next(self._numbers), "args": facts}
        events += [same | {"ph": "b", "ts": begin / 1000}, same | {"ph": "e", "ts": end / 1000}]
        self._put(events)

    def failed(self, kind: str, op: str) -> None:
        """A point in time."""
        self._put([_instant(f"failed: {kind}", {"op": op})])

    def launched(self, op: str, count: int) -> None:
        """Nothing: the stage submit says it."""

    def moved(self, direction: str, count: int) -> None:
        """A point in time: the end of the transfer, or of its piece."""
        self._put([_instant(f"bytes {direction}", {"bytes": count})])

    def answered(self, method: str, ns: int, code: int) -> None:
        """The whole call."""
        end = now()
        self._put([span(method, end - ns, end, {"code": code})])

    def _put(self, events: list[dict[str, Any]]) -> None:
        me = threading.get_native_id()
        if me not in self._threads:
            self._threads.add(me)
            events.insert(0, {"name": "thread_name", "ph": "M", "args": {"name": threading.current_thread().name}})
        if not self._trace.put(events):
            LOG.warning("no more is traced: %s", self._trace.lost)


def _instant(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "i", "s": "t", "ts": now() / 1000, "args": facts}
