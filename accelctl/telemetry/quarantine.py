"""What hung is left alone for a while, longer each time, and then tried again: it comes back by itself."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, MOST_S = 5.0, 300.0
_SECOND = 1_000_000_000


@dataclass
class Held:
    """One path that hung. Times are monotonic nanoseconds, but for ``since_ns`` (wall clock)."""

    path: str
    source: str
    """Whose path it is."""
    since_ns: int
    wchan: str
    wait_s: float
    retry_at: int
    passed_at: int = 0
    """When it last came back; it stays here, unblocked, for as long as it was held, so that one that hangs again
    goes on where it was instead of at the first wait."""


class Quarantine:
    """The paths that are held."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._held: dict[str, Held] = {}

    def add(self, path: str, source: str, wchan: str, now_ns: int, wall_ns: int) -> Held:
        """It hung: for the first time, or again (then it is held twice as long)."""
        known = self._held.get(path)
        wait_s = self._first_s if known is None else min(2 * known.wait_s, self._most_s)
        since = wall_ns if known is None or known.passed_at else known.since_ns
        held = self._held[path] = Held(path, source, since, wchan, wait_s, now_ns + round(wait_s * _SECOND))
        return held

    def blocked(self, but: str = "") -> frozenset[str]:
        """Paths that must not be touched now; all of them but one that is tried."""
        return frozenset(path for path, held in self._held.items() if not held.passed_at and path != but)

    def held(self) -> list[Held]:
        """Those that are blocked."""
        return [held for held in self._held.values() if not held.passed_at]

    def due(self, now_ns: int) -> Held | None:
        """The one that has waited longest beyond its time, if any has; forgets those that have proven themselves."""
        for path, held in list(self._held.items()):
            if held.passed_at and now_ns - held.passed_at > held.wait_s * _SECOND:
                del self._held[path]
        waiting = [held for held in self.held() if held.retry_at <= now_ns]
        return min(waiting, key=lambda held: held.retry_at, default=None)

    def passed(self, path: str, now_ns: int) -> None:
        """It came back when it was tried."""
        self._held[path].passed_at = now_ns

    def forget(self) -> None:
        """Nothing is held any more: other devices, other paths."""
        self._held.clear()
