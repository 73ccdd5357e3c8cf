"""The child's side of :mod:`accelctl.hal.reader`: the shared slot, the detaching, the pipe to the parent."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import pickle
import signal
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Any, NoReturn, Protocol

PATH_MAX = 4096  # linux/limits.h; a longer path fails at once, so a path that hangs is never one that was cut here
FRAME = struct.Struct("=cQ")  # kind of a message on the pipe, length of its pickle
MESSAGE, RESULT, ERROR = b"m", b"r", b"e"
_SLOT_BYTES = 8192
_PATH_AT = 32
_PATH_END = _PATH_AT + PATH_MAX
LANES = 64
"""Threads that can beat at one time."""
_LANES_AT = _PATH_END // 8  # index of a 64-bit word


class SlotLike(Protocol):
    """What work may do with its slot."""

    def enter(self, path: str) -> None:
        """Say which path comes next."""

    def leave(self) -> None:
        """Say that no path is being touched."""


class Watch(Protocol):
    """What work receives: the slot to write paths into, and the paths that hung before and must be left alone."""

    @property
    def slot(self) -> SlotLike:
        """Where the work writes the path it is about to touch."""

    @property
    def quarantine(self) -> frozenset[str]:
        """Paths that hung an earlier child."""

    def send(self, message: Any) -> None:
        """Hand something to the parent before the work ends."""


class Slot:
    """One entry that the child writes and the parent reads: which path, since when, and how many came before.

    A loop of many short calls cannot afford an entry for each. It beats: one store of a number that changes from call
    to call, and whose low byte says which of ``names`` the call is (1 is the first; 0: between calls).
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._beats = [0] * LANES
        self._still = [0] * LANES
        self._map = mmap.mmap(-1, _SLOT_BYTES)
        self._words = memoryview(self._map).cast("Q")  # begin, end, monotonic ns, last byte of the path
        self._number = 0

    def enter(self, path: str) -> None:
        """Say which path comes next; about 1 us, no system call. A sequence lock: ``begin`` first, ``end`` last."""
        number = self._number = self._number + 1
        words = self._words
        words[0] = number
        data = path.encode("utf-8", "surrogatepass")  # any text: a name may come from a damaged archive
        last = _PATH_AT + len(data)
        if last > _PATH_END:
            last, data = _PATH_END, data[:PATH_MAX]
        self._map[_PATH_AT:last] = data
        words[2] = monotonic_ns()
        words[3] = last
        words[1] = number

    def leave(self) -> None:
        """Say that no path is being touched: computing, sleeping and sending are nobody's fault."""
        self.enter("")

    def beat(self, lane: int = 0) -> Callable[[int], None]:
        """The store for one thread of the child."""
        words, index = self._words, _LANES_AT + lane

        def store(code: int) -> None:
            words[index] = code

        return store

    def _stillest(self) -> tuple[int, int, str] | None:
        """The beat that has not changed for the most looks; None where nobody beats. The parent's side."""
        best = None
        for lane in range(LANES if self._names else 0):
            code = self._words[_LANES_AT + lane]
            self._still[lane] = self._still[lane] + 1 if code == self._beats[lane] else 0
            self._beats[lane] = code
            if code & 0xFF and (best is None or self._still[lane] > self._still[best]):
                best = lane
        if best is None:
            return None
        code = self._beats[best]
        return code << 6 | best, 0, self._names[(code & 0xFF) - 1]

    def peek(self) -> tuple[int, int, str] | None:
        """(number, monotonic ns, path) of the current entry; None while one is being written (ask again later).

        Of a beat the time is 0: nobody looked at a clock.
        """
        beat = self._stillest()
        if beat is not None:
            return beat
        end, since, last = self._words[1:4]
        path = self._map[_PATH_AT:last].decode("utf-8", "surrogatepass") if last else ""
        return (end, since, path) if self._words[0] == end else None

    def close(self) -> None:
        """Give the pages back."""
        self._words.release()
        self._map.close()


class ChildError(Exception):
    """An exception of the child that could not be carried over as it was; the text holds its type and words."""


class Elsewhere(Exception):
    """Where in the child an exception was raised; shown as its cause in a traceback."""


class _ChildWatch:
    """The child's end of the pipe."""

    def __init__(self, slot: Slot, quarantine: frozenset[str], fd: int) -> None:
        self.slot = slot
        self.quarantine = quarantine
        self._fd = fd

    def send(self, message: Any) -> None:
        """Hand over a message; waits while the pipe is full, raises BrokenPipeError when the parent is gone."""
        self._frame(MESSAGE, message)

    def _frame(self, kind: bytes, value: Any) -> None:
        self.slot.leave()
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        for part in (FRAME.pack(kind, len(body)), body):
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self, work: Callable[[Watch], Any]) -> None:
        """Run the work and send how it ended."""
        try:
            self._frame(RESULT, work(self))
        except BaseException as error:
            self._frame(ERROR, _portable(error))


def _portable(error: BaseException) -> tuple[BaseException, str]:
    """The exception if it survives pickling, else its words; and where it was raised."""
    import traceback

    place = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    with suppress(Exception):  # whatever a foreign exception class does when it is taken apart
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error, place
    return ChildError(f"{type(error).__name__}: {error}"), place


def _above_stdio(fd: int) -> int:
    """The same file under a number above 2: a parent without standard streams gets those numbers from pipe(2)."""
    return fd if fd > 2 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


_WAITING = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")


def _detach(keep: Iterable[int]) -> None:
    """Put /dev/null in the place of every inherited descriptor but ``keep``.

    Replaced instead of closed: an object of the parent that is collected in the child closes its number once more, and
    must not hit a file that the child opened since. Descriptors to wait with are left alone: they keep nothing of the
    parent's open, and a library that starts its threads again after a fork (gRPC) makes and uses one at this moment.
    """
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    kept = {null, *keep}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the descriptor of this very listing is gone by now
                if os.readlink(f"/proc/self/fd/{name}") not in _WAITING:
                    os.dup2(null, int(name), inheritable=int(name) <= 2)
    for fd in (0, 1, 2):  # also where the parent had them closed
        os.dup2(null, fd, inheritable=True)
    if null > 2:
        os.close(null)


def _die_with_parent(life: int, parent: int) -> None:
    """Ask for SIGIO, which ends the process, when the last write end of ``life`` closes: then the parent is gone.

    Works in the middle of a blocking read and needs no thread; prctl is out of reach without ctypes. See O_ASYNC in
    fcntl(2).
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""A library of the parent may have handlers for them that go on, or wait (PoCL has): a child that faults must die."""


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGCHLD,
        signal.SIGTSTP,
        *FAULTS,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def child_main(
    work: Callable[[Watch], Any],
    slot: Slot,
    quarantine: frozenset[str],
    pipe: int,
    life: int,
    parent: int,
    keep: Iterable[int] = (),
) -> NoReturn:
    """What the child does from fork to _exit; it never returns into the parent's code, whatever happens."""
    code = 1
    try:
        _reset_signals()
        gc.freeze()  # to look through what the parent made would cost time, and a copy of each of its pages
        pipe, life = _above_stdio(pipe), _above_stdio(life)
        _detach((pipe, life, *keep))
        _die_with_parent(life, parent)
        _ChildWatch(slot, quarantine, pipe).finish(work)
        code = 0
    except BaseException:  # the parent is gone or the pipe is broken: nobody left to tell
        pass
    finally:
        os._exit(code)
    raise AssertionError("not reached")
