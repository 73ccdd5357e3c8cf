"""A Tree that writes down what it was asked, for ``--trace``: paths, times and outcomes.

Contents are left out on purpose: a trace is made to be shown to others, and files hold serial numbers and host names.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any, TypeVar

from accelctl.hal.trace import Trace
from accelctl.hal.tree import NodeStat, Tree

T = TypeVar("T")


class TracedTree:
    """Wraps another tree; all answers are that tree's own."""

    def __init__(self, inner: Tree, trace: Trace) -> None:
        self._inner, self._trace = inner, trace
        self.live = inner.live
        self.name = inner.name

    def read(self, path: str, limit: int) -> bytes:
        """A file; the event tells how many bytes came."""
        return self._timed("read", path, lambda: self._inner.read(path, limit), lambda data: {"bytes": len(data)})

    def listdir(self, path: str) -> list[str]:
        """A folder; the event tells how many names it holds."""
        return self._timed("listdir", path, lambda: self._inner.listdir(path), lambda names: {"names": len(names)})

    def readlink(self, path: str) -> str:
        """A link; the event tells its target."""
        return self._timed("readlink", path, lambda: self._inner.readlink(path), lambda target: {"target": target})

    def resolve(self, path: str) -> str:
        """A path; the event tells where it ends."""
        return self._timed("resolve", path, lambda: self._inner.resolve(path), lambda real: {"real": real})

    def stat(self, path: str) -> NodeStat:
        """stat(2); the event tells kind and mode."""
        return self._timed(
            "stat", path, lambda: self._inner.stat(path), lambda found: {"kind": found.kind, "mode": f"{found.mode:o}"}
        )

    def _timed(self, name: str, path: str, call: Callable[[], T], tell: Callable[[T], dict[str, Any]]) -> T:
        begin = time.perf_counter_ns()
        try:
            answer = call()
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, str(error))
            self._trace.event(f"{name} {path}", begin, {"path": path, "error": code})
            raise
        self._trace.event(f"{name} {path}", begin, {"path": path, **tell(answer)})
        return answer
