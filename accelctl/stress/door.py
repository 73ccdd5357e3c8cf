"""Faults at the door: a system call of a stage is not made, or is made and its reply lost.

``@before`` asks whether a failed step undoes the earlier ones. ``@after`` asks harder: the kernel has made the object,
nobody was told its number, and only the kernel's own book can show it (a copy-out fault does that to real programs).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from accelctl.errors import UsageError
from accelctl.hal.devfile import Mapped, Syscalls

T = TypeVar("T")
_FORM = re.compile(r"(-?[A-Za-z][\w-]*):([1-9]\d{0,8})=(\w+)@(before|after)", re.ASCII)
_HINT = "STAGE:nth=ERRNO@before|after, such as cpu_map:3=ENOMEM@before; -STAGE is its release"
_LARGEST_ERRNO = 4095  # MAX_ERRNO of the kernel (include/linux/err.h)


class Fault(NamedTuple):
    """The ``nth`` system call (from 1) of a stage fails with ``errno``; ``after``: the call is made all the same."""

    stage: str
    nth: int
    errno: int
    after: bool

    def __str__(self) -> str:
        name = errno.errorcode.get(self.errno, str(self.errno))
        return f"{self.stage}:{self.nth}={name}@{'after' if self.after else 'before'}"


def parse_fault(text: str) -> Fault:
    """``STAGE:nth=ERRNO@before|after``; ERRNO is a name or a number. Raises UsageError for anything else."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"not a fault: {text[:80]!r}", _HINT)
    return Fault(match[1], int(match[2]), _number(match[3]), match[4] == "after")


def _number(word: str) -> int:
    number = int(word) if word.isdigit() and len(word) < 6 else getattr(errno, word, 0) if word[0] == "E" else 0
    if not isinstance(number, int) or not 0 < number <= _LARGEST_ERRNO:
        raise UsageError(f"no such errno: {word[:40]}", _HINT)
    return number


def check_stages(faults: Sequence[Fault], stages: Collection[str]) -> None:
    """UsageError for a fault in a stage that this lifecycle does not have."""
    for fault in faults:
        if fault.stage.removeprefix("-") not in stages:
            raise UsageError(f"{fault}: no such stage; the lifecycle has {', '.join(stages)}")


class Door(Syscalls):
    """System calls with faults, for one thread. Whoever runs stages sets :attr:`stage` before each: its name, with a
    leading "-" for its release, "" for calls that belong to none (those are neither counted nor failed).

    A lost mapping cannot stay by itself as a lost descriptor does (Python unmaps what nobody refers to), so
    :attr:`lost` keeps what a fault made unreachable; :meth:`recover` gives it back once it has been judged.
    """

    def __init__(self, inner: Syscalls, faults: Sequence[Fault] = ()) -> None:
        self._inner = inner
        self.stage = ""
        self.counts: dict[str, int] = {}
        """Stage -> system calls since the last :meth:`reset`."""
        self.fired: list[Fault] = []
        self.lost: list[int | Mapped] = []
        """Descriptors and mappings whose numbers nobody was told."""
        self._faults: dict[tuple[str, int], Fault] = {(fault.stage, fault.nth): fault for fault in faults}

    def at(self, stage: str) -> None:
        """Set :attr:`stage`; what the engine calls."""
        self.stage = stage

    def arm(self, fault: Fault) -> None:
        """Only this fault from now on; counting begins anew."""
        self._faults = {(fault.stage, fault.nth): fault}
        self.reset()

    def reset(self) -> None:
        """Count anew, forget what fired. Faults stay armed."""
        self.counts.clear()
        self.fired.clear()

    def disarm(self) -> None:
        """No more faults."""
        self._faults.clear()

    def recover(self) -> int:
        """Give back what was lost; how many there were."""
        count = len(self.lost)
        while self.lost:
            thing = self.lost.pop()
            if isinstance(thing, int):
                self._inner.close(thing)
            else:
                self._inner.unmap(thing)
        return count

    # -- the calls --

    def stat(self, path: str) -> os.stat_result:
        """stat(2); never failed."""
        return self._inner.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """fstat(2); never failed."""
        return self._inner.fstat(fd)

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return self._made(lambda: self._inner.open(path, flags))

    def memfd(self, name: str, size: int, seals: int) -> int:
        """memfd_create(2) with its size and seals, as one call."""
        return self._made(lambda: self._inner.memfd(name, size, seals))

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """mmap(2)."""
        return self._made(lambda: self._inner.map(fd, size, offset))

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2). With its reply lost the structure is as it was before."""
        fault = self._due()
        if fault is None:
            return self._inner.ioctl(fd, number, argument)
        if fault.after:
            before = argument if isinstance(argument, int) else bytes(argument)
            try:
                self._inner.ioctl(fd, number, argument)
            finally:
                if isinstance(argument, bytearray) and isinstance(before, bytes):
                    argument[:] = before
        raise self._struck(fault)

    def unmap(self, mapping: Mapped) -> None:
        """munmap(2)."""
        fault = self._due()
        if fault is None or fault.after:
            self._inner.unmap(mapping)
        if fault is not None:
            raise self._struck(fault)

    def close(self, fd: int) -> None:
        """close(2), which releases the descriptor whatever it returns (Linux): before and after are the same."""
        fault = self._due()
        self._inner.close(fd)
        if fault is not None:
            raise self._struck(fault)

    # -- inside --

    def _due(self) -> Fault | None:
        stage = self.stage
        if not stage:
            return None
        count = self.counts[stage] = self.counts.get(stage, 0) + 1
        return self._faults.get((stage, count))

    def _made(self, call: Callable[[], T]) -> T:
        fault = self._due()
        if fault is None:
            return call()
        if fault.after:
            thing = call()
            assert isinstance(thing, (int, Mapped))
            self.lost.append(thing)
        raise self._struck(fault)

    def _struck(self, fault: Fault) -> OSError:
        self.fired.append(fault)
        return OSError(fault.errno, f"{os.strerror(fault.errno)} (fault {fault})")
