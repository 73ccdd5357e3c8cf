"""The sessions of a service: opened, found by number, reclaimed when nobody speaks for them any more."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from accelctl.errors import AccelError
from accelctl.umd.blocks import Budget
from accelctl.umd.chip import Chip
from accelctl.umd.ids import Ids
from accelctl.umd.lists import Lists
from accelctl.umd.refusal import Refusal, refusal_of
from accelctl.umd.session import Counts, Session, no_counts

LOG = logging.getLogger("accelctl.umd")
_REAP_S = 0.25


class Limits(NamedTuple):
    """What a service lets its clients have."""

    sessions: int = 256
    memory_bytes: int = 0
    """Device memory of all sessions together; 0: what the device has."""
    keepalive_s: float = 30.0
    most_keepalive_s: float = 3600.0
    least_keepalive_s: float = 0.1
    depth: int = 64
    most_depth: int = 1024
    pool_bytes: int = 0
    """Device memory of one session; 0: of all together."""
    message_bytes: int = 64 << 20
    """Of one message, either way."""
    batch: int = 1 << 16
    """Ops in one message."""
    lists: int = 64
    list_bytes: int = 16 << 20
    """Pinned lists of one session, and what they may take."""
    patience_s: float = 10.0
    """How long a call without a deadline waits for the queue."""


class Past(NamedTuple):
    """What is kept of sessions that are gone: how often, by op and by size class."""

    counts: Counts
    allocations: Counter[str]
    frees: Counter[str]
    classes: dict[int, tuple[int, int]]
    """Bytes of a size class -> allocations, frees."""
    lists: Counter[str]
    """See umd.lists.Lists.counts."""

    def add(self, session: Session) -> None:
        """The session's as well. Copies first: one that is being closed is not locked for this."""
        for mine, theirs in zip(self.counts, session.counts, strict=True):
            mine.update(dict(theirs))
        self.allocations.update(dict(session.memory.allocations))
        self.frees.update(dict(session.memory.frees))
        self.lists.update(dict(session.lists.counts))
        for size, (made, freed) in classes_of(session).items():
            before = self.classes.get(size, (0, 0))
            self.classes[size] = (before[0] + made, before[1] + freed)

    def copy(self) -> Past:
        """The same, to be added to."""
        counts = Counts(*(Counter(one) for one in self.counts))
        return Past(counts, Counter(self.allocations), Counter(self.frees), dict(self.classes), Counter(self.lists))


class Registrar:
    """All methods may be called by any thread. ``ended`` is told of a session before its memory goes."""

    def __init__(self, chip: Chip, limits: Limits, ended: Callable[[int], None]) -> None:
        self.chip, self.limits = chip, limits
        self.ids = Ids()
        self.budget = Budget(limits.memory_bytes)
        self.past = Past(no_counts(), Counter(), Counter(), {}, Counter())
        self.created = self.expired = 0
        self._ended = ended
        self._sessions: dict[int, Session] = {}
        self._closing: list[Session] = []
        """No longer open, and not yet in ``past``."""
        self.by_wire: dict[bytes, Session] = {}
        """The same, by the number as a request says it."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        chip.watchers.append(self._renew)
        self._reaper = threading.Thread(target=self._reap, name="umd-sessions", daemon=True)
        self._reaper.start()

    def open(self, client: str, keepalive_s: float, depth: int) -> Session:
        """A new session. Refusal."""
        with self._lock:
            if self._stop.is_set():
                raise Refusal("", "the service is stopping", "busy")
            if len(self._sessions) >= self.limits.sessions:
                raise Refusal(
                    "", f"{self.limits.sessions} sessions are open, and there may be no more", "out_of_resources"
                )
            number = self.ids.new()
            try:
                made = Session(
                    number,
                    self.chip,
                    self.budget,
                    self._pressure,
                    client=client,
                    keepalive_s=keepalive_s,
                    depth=depth,
                    pool_bytes=self.limits.pool_bytes,
                    lists=Lists(self.limits.lists, self.limits.list_bytes),
                )
            except (AccelError, OSError) as error:
                wrong = isinstance(error, AccelError) and error.kind == "invalid_argument"
                raise refusal_of(error, "queue_depth" if wrong else "") from error
            self._sessions[number] = self.by_wire[made.wire] = made
            self.created += 1
            return made

    def get(self, number: int) -> Session:
        """An open session, which counts as spoken for from now. Refusal saying what became of it."""
        found = self._sessions.get(number)
        if found is None:
            with self._lock:
                raise self.ids.gone(number)
        found.touch()
        return found

    def _renew(self, reason: str, why: str) -> None:
        for session in self.all():
            session.renew(reason, why)

    def all(self) -> list[Session]:
        """Those that are open."""
        with self._lock:
            return list(self._sessions.values())

    def counted(self) -> tuple[Past, list[Session]]:
        """Counts of all sessions that are not open, and those that are: each is in one of the two, so no count ever
        goes back."""
        with self._lock:
            past = self.past.copy()
            for session in self._closing:
                past.add(session)
            return past, list(self._sessions.values())

    def close(self, session: Session, why: str) -> tuple[int, int]:
        """End one; bytes and tensors that it still held. Raises what went wrong with that; it is gone all the same."""
        with self._lock:
            if self._sessions.get(session.number) is not session:
                raise self.ids.gone(session.number)
            del self._sessions[session.number], self.by_wire[session.wire]
            self._closing.append(session)
            self.ids.end(session.number, why)
        session.end(why)  # so that nobody waits for its queue any longer, also not who uses its memory
        try:
            self._ended(session.number)
        finally:
            try:
                found = session.close(why)
            finally:
                self._remember(session)
        return found

    def _remember(self, session: Session) -> None:
        with self._lock:
            self.past.add(session)
            self._closing.remove(session)

    def _pressure(self, asking: Session) -> int:
        """The device is full: whatever sessions keep idle goes back. A session that is busy now is passed over."""
        asking.settle()
        returned = asking.memory.trim()
        for session in list(self._sessions.values()):
            if session is not asking and session.lock.acquire(blocking=False):
                try:
                    if not session.closed:
                        session.settle()
                        returned += session.memory.trim()
                finally:
                    session.lock.release()
        return returned

    def _reap(self) -> None:
        while not self._stop.wait(_REAP_S):
            for session in self.all():
                if session.remaining_s() < 0:
                    self._expire(session)

    def _expire(self, session: Session) -> None:
        why = f"session expired: nothing was heard of it for {session.keepalive_s:g} s"
        try:
            self.close(session, why)
            self.expired += 1
        except Refusal:
            pass  # its client closed it meanwhile
        except Exception as error:  # whatever it is, the other sessions must still be looked after
            self.expired += 1
            LOG.error("session %d expired, and its device did not take everything back: %s", session.number, error)

    def stop(self) -> None:
        """End all sessions. Raises the first failure when all are tried."""
        with self._lock:
            self._stop.set()
        self._reaper.join()
        if self._renew in self.chip.watchers:
            self.chip.watchers.remove(self._renew)
        wrong: Exception | None = None
        for session in self.all():
            try:
                self.close(session, "the service was stopped, this session is gone")
            except Exception as error:  # whatever it is, the other sessions still go
                wrong = wrong or error
        if wrong is not None:
            raise wrong


def classes_of(session: Session) -> dict[int, tuple[int, int]]:
    """Bytes of a size class -> allocations, frees."""
    return {
        size: (one.hits + one.misses, one.hits + one.misses - one.in_use // size)
        for size, one in session.memory.stats().classes.items()
        if one.hits + one.misses
    }
