"""The watched reader child: a driver that never answers must not take the program with it.

A read of a kernel file can hang for ever, in a state in which not even SIGKILL ends it (D). So whatever reads runs in
a forked child, which writes the path it is about to touch into a slot shared with its parent. When the same entry stays
for longer than the deadline the parent names that path, sets it aside (quarantine), kills the child, or abandons it
where it cannot die, and starts another child that leaves those paths alone.

:class:`WatchedChild` is the mechanism; :func:`run_watched` runs one job under it. The child shares the parent's memory
as it was at the fork (the work is not pickled), but none of its file descriptors: /dev/null stands in their place, so
that an abandoned child never keeps a pipe, a terminal or a socket of ours open. What it prints is lost, and what has to
be read from outside (standard input, ``/dev/fd/63``) must be read before the fork. Fork before starting threads.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Generic, NamedTuple, TypeVar

from accelctl.errors import AccelError, TimeoutFailure
from accelctl.hal.child import FRAME, MESSAGE, RESULT, Elsewhere, Slot, Watch, child_main
from accelctl.hal.endings import later
from accelctl.hal.procfile import parse_stat

T = TypeVar("T")

_CHUNK = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_GRACE_S = 0.25  # a child that can die is gone in well under this after SIGKILL
_DEEP = 50  # looks, a millisecond apart: whoever ends is in D state for moments as well


class Stuck(NamedTuple):
    """A path that did not come back: for how long, the child's state letter or how it died, where the kernel waits."""

    path: str
    age_s: float
    state: str
    wchan: str


@dataclass(frozen=True)
class Outcome(Generic[T]):  # a NamedTuple cannot be generic before Python 3.11
    """The value of the work, and the paths that were given up on the way to it."""

    value: T
    stuck: list[Stuck]


class Message(NamedTuple):
    """Something the work sent before it ended."""

    value: Any


class Finished(NamedTuple):
    """The value the work returned."""

    value: Any


class Failed(NamedTuple):
    """The exception the work raised."""

    error: BaseException


Event = Message | Finished | Failed | Stuck

_abandoned: dict[int, str] = {}
"""Children that could not be killed, and the path at which each of them hangs."""


def _reap() -> None:
    """Collect children that were given up earlier and have died since."""
    for pid in tuple(_abandoned):
        try:
            gone = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            gone = True
        if gone:
            _abandoned.pop(pid, None)


def hangs_yet(path: str) -> bool:
    """Whether a child that was given up at this path is there still: one more would only join it."""
    _reap()
    return path in _abandoned.values()


def _proc(pid: int, name: str) -> str:
    """A file of our own child; "" where the kernel does not show it."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", "replace").strip("\0\n ")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal between SIGRTMIN and SIGRTMAX
        return f"signal {number}"


def _wait_channel(pid: int) -> str:
    """The kernel function a process sleeps in: wchan, else the top of its kernel stack (root only), else ""."""
    name = _proc(pid, "wchan")
    if name not in ("", "0"):
        return name
    top = _proc(pid, "stack").partition("\n")[0]
    return top.partition("] ")[2].partition("+")[0]


class WatchedChild:
    """One child at a time that runs ``work`` under watch: ``start``, ``poll``, and after Stuck ``restart``.

    Call ``close`` in every case, or use it as a context manager. The deadline is for one slot entry that stays while
    the child sleeps in the kernel or spins there; computing, waiting for a processor and being stopped do not count.
    """

    def __init__(
        self,
        work: Callable[[Watch], Any],
        *,
        deadline_s: float = 5.0,
        quarantine: Iterable[str] = (),
        names: Sequence[str] = (),
        keep: Iterable[int] = (),
    ) -> None:
        """``names``: what the child's beats stand for; ``keep``: descriptors that it inherits."""
        self.deadline_s = deadline_s
        self.quarantine = set(quarantine)
        self.pid = 0
        self._work = work
        self._names, self._keep = tuple(names), tuple(keep)
        self._slot: Slot | None = None
        self._pipe = self._life = -1
        self._buffer = bytearray()
        self._tick_s = min(0.25, deadline_s / 8)
        self._credit_s = min(1.0, deadline_s / 2)  # what one look counts at most: a single late look condemns nobody
        self._poller = select.poll()

    def __enter__(self) -> WatchedChild:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def start(self) -> None:
        """Fork the child."""
        with later():
            self._fork()

    def _fork(self) -> None:
        _reap()
        self._slot = Slot(self._names)
        parent = os.getpid()
        read_end, write_end = os.pipe()
        life_read, self._life = os.pipe()
        self._pipe = read_end
        with suppress(OSError):  # fewer turns for a big result; not allowed everywhere
            fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _CHUNK)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                quarantine = frozenset(self.quarantine)
                child_main(self._work, self._slot, quarantine, write_end, life_read, parent, self._keep)
        finally:
            os.close(write_end)
            os.close(life_read)
        os.set_blocking(read_end, False)
        self._poller.register(read_end, select.POLLIN)
        self._seen, self._waited_s = -1, 0.0
        self._looked = time.monotonic()

    def restart(self) -> None:
        """A new child that leaves the quarantined paths alone."""
        self.close()
        self.start()

    def fileno(self) -> int:
        """The descriptor that becomes readable when the child has something to say."""
        return self._pipe

    # -- waiting --

    def poll(self, timeout_s: float) -> Event | None:
        """What happened next, or None after ``timeout_s``. The child is gone when it is Stuck, Finished or Failed."""
        end = time.monotonic() + timeout_s
        while True:
            event = self._unframe()
            if event is not None:
                return event
            left = end - time.monotonic()
            ready = self._poller.poll(max(0.0, min(left, self._tick_s)) * 1000)
            if ready:
                if not self._fill():
                    return self._died()
                continue
            stuck = self._look()
            if stuck is not None:
                return stuck
            if left <= 0:
                return None

    def _fill(self) -> bool:
        """Take what is in the pipe; False at its end."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return True
        self._buffer += data
        self._seen = -1  # it works
        return bool(data)

    def _unframe(self) -> Event | None:
        if len(self._buffer) < FRAME.size:
            return None
        kind, size = FRAME.unpack_from(self._buffer)
        end = FRAME.size + size
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer)[FRAME.size : end] as body:
            value = pickle.loads(body)
        del self._buffer[:end]
        if kind == MESSAGE:
            return Message(value)
        self.close()
        if kind == RESULT:
            return Finished(value)
        error, place = value
        error.__cause__ = Elsewhere(f"in the reader child:\n{place}")
        return Failed(error)

    def _look(self) -> Stuck | None:
        """Compare the slot with the last look; Stuck when the same path has stayed beyond the deadline."""
        now = time.monotonic()
        elapsed_s, self._looked = min(now - self._looked, self._credit_s), now
        entry = self._slot.peek() if self._slot is not None else None
        if entry is None:
            return None
        number, since, path = entry
        state, system_s = self._load()
        if number != self._seen:
            self._seen, self._waited_s, self._system_at_entry_s = number, 0.0, system_s
        elif path and state not in ("T", "t"):
            self._waited_s += elapsed_s
        if not path or self._waited_s < self.deadline_s:
            return None
        spinning = system_s - self._system_at_entry_s > self._waited_s / 2
        if state == "R" and not spinning:  # it computes, or waits for a processor
            return None
        return self._give_up(path, since, state, _wait_channel(self.pid))

    def _load(self) -> tuple[str, float]:
        """State letter of the child, and the seconds it has spent in the kernel."""
        try:
            facts = parse_stat(_proc(self.pid, "stat"))
        except ValueError:
            return "?", 0.0
        return facts.state, facts.system_ticks / _TICKS

    def _died(self) -> Stuck:
        """The pipe ended without a result: say how, and blame the path it was at."""
        entry = self._slot.peek() if self._slot is not None else None
        _, since, path = entry or (0, monotonic_ns(), "")
        return self._give_up(path, since, self._end(), "")

    def _give_up(self, path: str, since_ns: int, state: str, wchan: str) -> Stuck:
        age_s = round((monotonic_ns() - since_ns) / 1e9 if since_ns else self._waited_s, 3)
        if path:
            self.quarantine.add(path)
        self.close()
        return Stuck(path, age_s, state, wchan)

    # -- the end --

    def _end(self) -> str:
        """Kill the child if it still runs and wait a moment; how it ended, in words. One in D state is left behind."""
        pid, self.pid = self.pid, 0
        if pid == 0:
            return "gone"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        limit, deep = time.monotonic() + _GRACE_S, 0
        while True:
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # somebody else's waitpid took it
                return "gone"
            if done == pid:
                code = os.waitstatus_to_exitcode(status)
                return f"exit status {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
            deep = deep + 1 if _proc(pid, "stat").rpartition(")")[2].strip().startswith("D") else 0
            if time.monotonic() > limit or deep > _DEEP:
                entry = self._slot.peek() if self._slot is not None else None
                _abandoned[pid] = entry[2] if entry is not None else ""
                return "abandoned"
            time.sleep(0.001)

    def close(self) -> None:
        """Kill the child and release pipe and slot; safe to call twice. A child that cannot die is not waited for."""
        self._end()
        if self._pipe >= 0:
            with suppress(KeyError):
                self._poller.unregister(self._pipe)
            os.close(self._pipe)
            os.close(self._life)
            self._pipe = self._life = -1
        if self._slot is not None:
            self._slot.close()
            self._slot = None
        self._buffer.clear()


def run_watched(
    work: Callable[[Watch], T],
    *,
    deadline_s: float = 5.0,
    max_restarts: int = 8,
    total_s: float = 60.0,
    stuck: list[Stuck] | None = None,
) -> Outcome[T]:
    """Run ``work`` in a watched child, again without the path that hung, until it returns.

    Raises what the work raised; TimeoutFailure naming all paths when ``max_restarts`` further children or ``total_s``
    seconds were not enough; AccelError when the child ended while it touched no path. ``stuck`` is filled as paths are
    given up: work that holds it sees in each child what hung in those before.
    """
    stuck = [] if stuck is None else stuck
    end = time.monotonic() + total_s
    with WatchedChild(work, deadline_s=deadline_s) as child:
        child.start()
        while True:
            event = child.poll(max(0.0, end - time.monotonic()))
            if isinstance(event, Finished):
                return Outcome(event.value, stuck)
            if isinstance(event, Failed):
                raise event.error
            if event is None:
                raise _gave_up(stuck, f"after {total_s:g} s")
            if isinstance(event, Stuck):
                if not event.path:
                    hint = "sudo dmesg | tail"
                    raise AccelError(f"the reader child ended without an answer ({event.state})", hint)
                stuck.append(event)
                if len(stuck) > max_restarts:
                    raise _gave_up(stuck, f"after {len(stuck)} attempts")
                child.restart()


def _gave_up(stuck: list[Stuck], when: str) -> TimeoutFailure:
    if not stuck:
        return TimeoutFailure(f"reading the machine was given up {when}: no single file hung, but all together did")
    names = ", ".join(f"{item.path} ({item.state}{' in ' + item.wchan if item.wchan else ''})" for item in stuck)
    return TimeoutFailure(
        f"reading the machine was given up {when}; these did not come back: {names}",
        hint="sudo dmesg | tail; a hanging driver keeps processes in state D until it recovers or the machine restarts",
    )


class _NoSlot:
    """For work that nobody watches."""

    def enter(self, path: str) -> None:
        """Nobody looks."""

    def leave(self) -> None:
        """Nobody looks."""


class _InlineWatch:
    """Work in this process: nothing is watched, nothing can be sent."""

    def __init__(self, quarantine: frozenset[str]) -> None:
        self.slot = _NoSlot()
        self.quarantine = quarantine

    def send(self, message: Any) -> None:
        """There is no other side."""
        raise RuntimeError("work that sends messages needs a WatchedChild")


def run_inline(work: Callable[[Watch], T], *, quarantine: Iterable[str] = ()) -> Outcome[T]:
    """Run ``work`` here and now: for tests, for library users, and for captured machines, which cannot hang."""
    return Outcome(work(_InlineWatch(frozenset(quarantine))), [])
