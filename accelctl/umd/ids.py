"""Numbers of sessions: 32 bits of the service's start in seconds, 16 of a sequence, 16 random.

A number says which run of the service gave it, so a client of an earlier run is told so instead of meeting somebody
else's session. The random bits keep a client from guessing another's.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from accelctl.umd.refusal import Refusal

_SEQUENCES = 1 << 16
REMEMBERED = 4096
"""Sessions that have ended and can still be told from ones that never were."""


class Ids:
    """Gives out numbers, none twice, and says of one that is not alive what became of it."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._start = int(now()) & 0xFFFFFFFF
        self._starts = {self._start}
        self._given: list[int] = []
        """The numbers of the newest start, by sequence."""
        self._ended: OrderedDict[int, str] = OrderedDict()

    @property
    def start(self) -> int:
        """Seconds since the epoch, of this run's first numbers."""
        return min(self._starts)

    def new(self) -> int:
        """A number. After 65,536 of one start the next start is taken: a later second, in which none was given."""
        if len(self._given) == _SEQUENCES:
            self._start = max(int(self._now()), self._start + 1) & 0xFFFFFFFF
            self._starts.add(self._start)
            self._given = []
        self._given.append(self._start << 32 | len(self._given) << 16 | secrets.randbits(16))
        return self._given[-1]

    def end(self, number: int, why: str) -> None:
        """That session is gone: ``why`` is what its client will be told."""
        self._ended[number] = why
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def gone(self, number: int) -> Refusal:
        """Why this number names no session."""
        if why := self._ended.get(number):
            return Refusal("session_id", why, "invalid_state", "open a new session")
        start, sequence = number >> 32, number >> 16 & 0xFFFF
        newest = start == self._start
        if (newest and number in self._given[sequence : sequence + 1]) or (start in self._starts and not newest):
            return Refusal("session_id", "this session is gone", "invalid_state", "open a new session")
        if 0 < start < self._start and not newest:
            return Refusal(
                "session_id", "the service was restarted, this session is gone", "invalid_state", "open a new session"
            )
        text = f"no session has the number {number}"
        if start >= self._start > 0:  # of a run in the same second, or before the clock was set back: who knows
            text += ", or the service was restarted since"
        return Refusal("session_id", text, "not_found", "open one: CreateSession")
