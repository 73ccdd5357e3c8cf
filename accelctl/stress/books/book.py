"""What one book is, and how its file becomes a number."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

from accelctl.abi.lifecycle import Counter, Target
from accelctl.errors import ABSENCES
from accelctl.hal.root import SysRoot

T = TypeVar("T")
LIMIT = 32 << 20
"""Bytes; maps of a process with 65536 mappings have about 8 MiB."""
DEBUGFS = "sys/kernel/debug"


class Unreadable(NamedTuple):
    """A book that cannot be read here, and why."""

    name: str
    reason: str


class NotApplicable(OSError):
    """This device can have no such book: it is left out, not named as unreadable."""


class Place:
    """Where books are read: a root, a device, a process (None: whoever reads)."""

    def __init__(self, root: SysRoot, target: Target, pid: int | None = None) -> None:
        self.root, self.target, self.pid = root, target, pid
        self._shared: dict[str, tuple[int, Any]] = {}

    def text(self, path: str) -> str:
        """A file's text. OSError where it cannot be read, ValueError where it is too long to be read whole."""
        reading = self.root.read(path, str, limit=LIMIT)
        if reading.absence is not None:
            kind = reading.absence.kind
            code = getattr(errno, reading.absence.errno or "", errno.EACCES if kind == "not_allowed" else errno.EIO)
            raise OSError(code, ABSENCES[kind][1], path)
        text = str(reading.value)
        if len(text) >= LIMIT - 4096:
            raise ValueError(f"{path}: longer than {LIMIT} bytes")
        return text

    def shared(self, path: str, parse: Callable[[str], T]) -> T:
        """The numbers of a file that many counters read, once a pass: slabinfo takes 0.4 ms, maps 1.5."""
        return self.once(path, lambda: parse(self.text(path)))

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` says; within :func:`one_pass` it is asked once."""
        number = _passes[-1]
        known = self._shared.get(key)
        if known is None or not number or known[0] != number:
            known = self._shared[key] = (number, make())
        found: T = known[1]
        return found


_passes = [0]
_numbers = count(1)


@contextmanager
def one_pass() -> Iterator[None]:
    """Counters that are read in here are of one moment: what several of them rest on is read once."""
    _passes.append(next(_numbers))
    try:
        yield
    finally:
        _passes.pop()


class Book(NamedTuple):
    """One book. ``catches`` says for people what shows in it, ``source`` where it is read.

    ``kind``: the kind of stage that moves it (abi.lifecycle), empty where several do. ``drivers``: those that have it;
    empty: it is not the driver's. ``read`` makes the number, ``find`` makes the counters where their names or number
    are only known on the spot; a book has one of the two.
    """

    name: str
    unit: str
    scope: str
    source: str
    catches: str
    read: Callable[[Place], int] | None = None
    exact: bool = True
    settle_s: float = 0.0
    kind: str = ""
    drivers: tuple[str, ...] = ()
    find: Callable[[Book, Place], tuple[Counter, ...]] | None = None

    def fits(self, target: Target) -> bool:
        """Does this device have such a book?"""
        return not self.drivers or target.driver in self.drivers


def as_counter(book: Book, place: Place) -> Counter:
    """The counter of a book with one number."""
    read = book.read
    assert read is not None
    return Counter(
        book.name, book.unit, book.scope, book.source, lambda: read(place), book.exact, book.settle_s, 0, book.kind
    )


def reason(book: Book, place: Place, error: OSError | ValueError) -> str:
    """Why a book cannot be read, in words that say what would help."""
    if isinstance(error, OSError) and book.source.startswith(DEBUGFS):
        if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
            return "debugfs is root's"
        if error.errno == errno.ENOENT and not place.root.listdir(DEBUGFS):
            return "debugfs is not mounted" if os.geteuid() == 0 else "debugfs is root's, or not mounted"
    if isinstance(error, OSError):
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"no permission for {book.source}" + ("" if os.geteuid() == 0 else ": root may")
        if error.errno == errno.ENOENT and error.filename:  # a file that is not there; else the message says more
            if book.scope == "process" and place.pid is not None:
                return f"process {place.pid} has ended, or is hidden"
            whose = f"the driver {place.target.driver}" if book.scope == "device" else "this kernel"
            return f"not offered by {whose}"
        return (error.strerror or str(error)) + (f" ({book.source})" if error.filename else "")
    return str(error) or "not understood"
