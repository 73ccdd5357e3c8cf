"""What went through the door to the kernel, as Chrome trace JSON: for chrome://tracing, Perfetto and jq.

Written call by call, so that a run that hangs or is killed leaves a file that can be read: both viewers accept an array
that is not closed (Trace Event Format, "JSON Array Format").
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from accelctl.errors import AccelError, UsageError, unwritable
from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.uapi._struct import Ioctl

T = TypeVar("T")
LIMIT = 1_000_000
"""Events; a trace beyond that opens in no viewer. The last event says that it was cut."""


def calls_of(modules: Iterable[ModuleType]) -> dict[int, Ioctl]:
    """Number -> call, of everything these modules (of hal.uapi) define. Numbers are only unique within a driver."""
    found: dict[int, Ioctl] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Ioctl):
                found.setdefault(value.number, value)
    return found


class Trace:
    """An open trace file. Several processes and threads may write: each event is one write(2) to an O_APPEND file.

    A file that takes no more (a full disk) ends the trace and not the work that is traced: ``lost`` says why.
    """

    def __init__(self, path: str, *, join: bool = False) -> None:
        """``join``: write into a trace that another process has begun and will close."""
        self._path, self._count = path, 0
        self.lost = ""
        """Why nothing more is written; empty: all is well."""
        new = 0 if join else os.O_CREAT | os.O_EXCL
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | new, 0o644)
        except FileExistsError:
            raise UsageError(f"{path}: there is such a file already") from None
        except OSError as error:
            raise unwritable(path, error) from None
        if not join:
            self._write("[")
        if self.lost:
            os.close(self._fd)
            os.unlink(path)
            raise AccelError(self.lost, kind="os_error")

    def fileno(self) -> int:
        """For children that keep it open."""
        return self._fd

    def event(self, name: str, begin_ns: int, arguments: dict[str, Any]) -> None:
        """One call that ended just now."""
        self.put([span(name, begin_ns, time.perf_counter_ns(), arguments)])

    def put(self, events: Sequence[dict[str, Any]]) -> bool:
        """Events of this thread, with one write. False, once: these were lost, and so will be all that come."""
        room = LIMIT - self._count
        self._count += len(events)
        if room <= 0 or self.lost:
            return True
        if len(events) >= room:
            events = [*events[: room - 1], {**events[room - 1], "name": "trace cut: too many events", "args": {}}]
        here = {"pid": os.getpid(), "tid": threading.get_native_id()}
        self._write("\n".join(json.dumps(event | here) + "," for event in events))
        return not self.lost

    def close(self, *, quiet: bool = False) -> None:
        """Close the array. AccelError where anything could not be written; ``quiet``: that was told."""
        self._write(json.dumps({"name": "end", "ph": "i", "ts": time.perf_counter_ns() / 1000, "pid": os.getpid()}))
        self._write("]")
        os.close(self._fd)
        if self.lost and not quiet:
            raise AccelError(self.lost, kind="os_error")

    def _write(self, line: str) -> None:
        data = line.encode() + b"\n"
        try:
            while data and not self.lost:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.lost = f"{self._path}: cannot be written ({(error.strerror or str(error)).lower()})"


def span(name: str, begin_ns: int, end_ns: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Something that took its time, on the clock of time.perf_counter_ns."""
    return {"name": name, "ph": "X", "ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000, "args": arguments}


class TracedSyscalls(Syscalls):
    """System calls that are written down, with the structure before and after, decoded where it is known."""

    def __init__(self, inner: Syscalls, trace: Trace, known: dict[int, Ioctl]) -> None:
        self._inner, self._trace, self._known = inner, trace, known

    def stat(self, path: str) -> os.stat_result:
        """stat(2)."""
        return self._inner.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """fstat(2)."""
        return self._inner.fstat(fd)

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return self._timed("open", {"path": path}, lambda: self._inner.open(path, flags))

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2)."""
        call = self._known.get(number)
        facts = {"fd": fd, "number": f"{number:#x}", "in": _shown(call, argument)}
        return self._timed(
            call.name if call else f"ioctl {number:#x}",
            facts,
            lambda: self._inner.ioctl(fd, number, argument),
            lambda: {"out": _shown(call, argument)},
        )

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """mmap(2)."""
        facts = {"fd": fd, "size": size, "offset": f"{offset:#x}"}
        return self._timed("mmap", facts, lambda: self._inner.map(fd, size, offset))

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2)."""
        size = len(mapping)
        self._timed("munmap", {"size": size}, lambda: self._inner.unmap(mapping))

    def memfd(self, name: str, size: int, seals: int) -> int:
        """memfd_create(2)."""
        return self._timed("memfd_create", {"name": name, "size": size}, lambda: self._inner.memfd(name, size, seals))

    def close(self, fd: int) -> None:
        """close(2)."""
        self._timed("close", {"fd": fd}, lambda: self._inner.close(fd))

    def _timed(
        self, name: str, facts: dict[str, Any], call: Callable[[], T], after: Callable[[], dict[str, Any]] = dict
    ) -> T:
        begin = time.perf_counter_ns()
        result: T | None = None
        try:
            result = call()
        except OSError as error:
            facts["error"] = errno.errorcode.get(error.errno or 0, str(error))
            raise
        finally:
            if isinstance(result, int):
                facts["result"] = result
            self._trace.event(name, begin, facts | after())
        return result


def _shown(call: Ioctl | None, argument: bytearray | int) -> Any:
    if isinstance(argument, int):
        return argument
    if call is None or call.struct is None or len(argument) < call.struct.size:
        return bytes(argument[:256]).hex()
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in call.struct.unpack(argument).items()}
