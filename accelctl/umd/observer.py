"""What the service tells while it works: to metrics, to a trace, to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

STAGES = ("validate", "route", "lower", "infer", "instantiate", "submit")
"""Of the pipeline, in order; timings come in this order."""


class Observer(Protocol):
    """Called from any thread, on the hot path: be quick, raise nothing."""

    def translated(self, op: str, stage_ns: Sequence[int], hit: bool, session: int = 0) -> None:
        """An op of a session became instructions, just now: nanoseconds per stage, and whether they came from the
        session's cache."""

    def failed(self, kind: str, op: str) -> None:
        """Something was refused or went wrong; ``op`` is empty where it was about none."""

    def launched(self, op: str, count: int) -> None:
        """So many instructions of a kernel for this op went to a queue."""

    def moved(self, direction: str, count: int) -> None:
        """Bytes of tensors, by whatever way: ``in`` to the service, or ``out`` of it."""

    def answered(self, method: str, ns: int, code: int) -> None:
        """A call of the protocol ended, after so long, with this gRPC status code (0: success)."""


class Silent:
    """Nobody listens."""

    def translated(self, op: str, stage_ns: Sequence[int], hit: bool, session: int = 0) -> None:
        """Nothing."""

    def failed(self, kind: str, op: str) -> None:
        """Nothing."""

    def launched(self, op: str, count: int) -> None:
        """Nothing."""

    def moved(self, direction: str, count: int) -> None:
        """Nothing."""

    def answered(self, method: str, ns: int, code: int) -> None:
        """Nothing."""


class Both:
    """Tells two."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._all = (first, second)

    def translated(self, op: str, stage_ns: Sequence[int], hit: bool, session: int = 0) -> None:
        """See Observer."""
        for one in self._all:
            one.translated(op, stage_ns, hit, session)

    def failed(self, kind: str, op: str) -> None:
        """See Observer."""
        for one in self._all:
            one.failed(kind, op)

    def launched(self, op: str, count: int) -> None:
        """See Observer."""
        for one in self._all:
            one.launched(op, count)

    def moved(self, direction: str, count: int) -> None:
        """See Observer."""
        for one in self._all:
            one.moved(direction, count)

    def answered(self, method: str, ns: int, code: int) -> None:
        """See Observer."""
        for one in self._all:
            one.answered(method, ns, code)
