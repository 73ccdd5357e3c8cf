"""Faults inside the kernel: every allocation and user copy of one call fails once, one after the other.

That walks each error path that a driver has for a call, which no argument from outside reaches. What to look for is
what the failed call left behind; the books say it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from accelctl.hal.devfile import Mapped, Syscalls
from accelctl.hal.failnth import FailNth, path_of_thread
from accelctl.hal.root import SysRoot

T = TypeVar("T")
MOST_POINTS = 2000
"""In one call; iommufd's selftest gives up at 1000."""
_DEBUGFS = "sys/kernel/debug"
_WANTED = (
    ("failslab/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/verbose", "0"),
    ("fail_usercopy/verbose", "0"),
)


def available(root: SysRoot) -> str | None:
    """Why this kernel cannot do it; None: it can."""
    path = path_of_thread()[1:]
    if root.exists(path):
        return None
    return "this kernel was built without CONFIG_FAULT_INJECTION: it has no fail-nth"


def knobs(root: SysRoot) -> str:
    """One line to type as root where debugfs is set so that faults are left out (ignore-gfp-wait; single pages and
    those of user memory, by default) or each one prints a call trace (verbose); empty where all is well. Nothing here
    writes to debugfs. Kernel mm/fail_page_alloc.c, Documentation/fault-injection/fault-injection.rst."""
    wrong: list[str] = []
    for name, wanted in _WANTED:
        reading = root.read(f"{_DEBUGFS}/{name}", str)
        if reading.absence is not None and reading.absence.kind == "no_permission":
            return "sudo: debugfs is root's, so its fault knobs cannot be checked"
        if reading.absence is None and reading.value != wanted:
            wrong.append(f"echo {wanted} > /{_DEBUGFS}/{name}")
    return "; ".join(wrong)


class FailNthCalls(Syscalls):
    """System calls of which one is failed from within: the ``call``-th ioctl, mmap or memfd of the armed stage.

    For one thread, like :class:`~accelctl.hal.failnth.FailNth`. Everything else passes unharmed.
    """

    def __init__(self, inner: Syscalls, fail: FailNth) -> None:
        self._inner, self._fail = inner, fail
        self.stage = ""
        self.counts: dict[str, int] = {}
        """Stage -> calls since the last :meth:`arm` or :meth:`disarm`."""
        self.struck: bool | None = None
        """Of the armed call: did the fault strike in it? None: it has not been made."""
        self.errno = 0
        """With what it failed; 0: it succeeded all the same."""
        self._armed: tuple[str, int] = ("", 0)
        self._n = 0

    def at(self, stage: str) -> None:
        """What comes next belongs to this stage; what the engine calls."""
        self.stage = stage

    def arm(self, stage: str, n: int, call: int = 1) -> None:
        """The ``n``-th fault point of the stage's ``call``-th call from now on."""
        self._armed, self._n = (stage, call), n
        self.counts.clear()
        self.struck, self.errno = None, 0

    def disarm(self) -> None:
        """No faults; counting begins anew."""
        self.arm("", 0)

    def stat(self, path: str) -> os.stat_result:
        """stat(2)."""
        return self._inner.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """fstat(2)."""
        return self._inner.fstat(fd)

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return self._inner.open(path, flags)

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2)."""
        self._inner.unmap(mapping)

    def close(self, fd: int) -> None:
        """close(2)."""
        self._inner.close(fd)

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2)."""
        return self._around(lambda: self._inner.ioctl(fd, number, argument))

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """mmap(2)."""
        return self._around(lambda: self._inner.map(fd, size, offset))

    def memfd(self, name: str, size: int, seals: int) -> int:
        """memfd_create(2)."""
        return self._around(lambda: self._inner.memfd(name, size, seals))

    def _around(self, call: Callable[[], T]) -> T:
        stage = self.stage
        if not stage:
            return call()
        count = self.counts[stage] = self.counts.get(stage, 0) + 1
        if self._armed != (stage, count):
            return call()
        self._fail.arm(self._n)
        try:
            return call()
        except OSError as error:
            self.errno = error.errno or 0
            raise
        finally:
            self.struck = self._fail.stop()


class Struck(NamedTuple):
    """A fault point that was reached; ``errno``: how the call failed, 0 if it did not."""

    n: int
    errno: int

    @property
    def name(self) -> str:
        """For people."""
        return errno.errorcode.get(self.errno, str(self.errno)) if self.errno else "succeeded"


def sweep(
    calls: FailNthCalls, stage: str, run: Callable[[], object], *, call: int = 1, most: int = MOST_POINTS
) -> Iterator[Struck]:
    """Run again and again, each time with the next fault point of that call failing, until none is left.

    ``run`` is one cycle that passes the stage and stands OSError. The books are to be read between two results. Ends
    without a result when the call is not made at all. Raises OSError (EOVERFLOW) after ``most`` points.
    """
    try:
        for n in range(1, most + 1):
            calls.arm(stage, n, call)
            run()
            if not calls.struck:
                return
            error = calls.errno
            calls.disarm()
            yield Struck(n, error)
    finally:
        calls.disarm()
    raise OSError(errno.EOVERFLOW, f"{stage}: more than {most} fault points in one call")
