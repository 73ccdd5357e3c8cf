"""What watching costs, and how it is kept below a budget: the less often we look, the less it is."""

from __future__ import annotations

import os
import time
from collections import deque

from accelctl.hal.ownmemory import pss_bytes

PERIOD_S = 1.0
BUDGET = 0.02
"""Of one core."""
LONGEST_S = 60.0
_TICKS = 8
"""The mean of so many ticks decides: one dear tick (a rescan) stretches a little, not for ever."""
_MEMORY_NS = 10_000_000_000
"""Between two looks at our memory: that takes milliseconds."""
_LEAST_NS = 100_000_000
"""In less time a share of a core is chance."""
_SECOND = 1_000_000_000


class Budget:
    """Stretches the period so that the work of a tick stays within a share of one core. ``ratio`` 0: no limit."""

    def __init__(self, period_s: float = PERIOD_S, ratio: float = BUDGET) -> None:
        self._asked_ns, self._ratio = round(period_s * _SECOND), ratio
        self._recent: deque[int] = deque(maxlen=_TICKS)

    @property
    def period_ns(self) -> int:
        """Between ticks: what was asked for, or what the budget allows."""
        if not self._recent or self._ratio <= 0:
            return self._asked_ns
        mean = sum(self._recent) / len(self._recent)
        return max(self._asked_ns, min(round(mean / self._ratio), round(LONGEST_S * _SECOND)))

    def spent(self, cpu_ns: int) -> None:
        """A tick took so much processor time."""
        self._recent.append(cpu_ns)


class Meter:
    """Processor time and memory of this process and a child."""

    def __init__(self) -> None:
        self._own_ns = time.process_time_ns()
        self._at_ns = time.monotonic_ns()
        self._ticked_ns = 0
        self._own_ratio = self._child_ratio = 0.0
        self._due_ns, self._memory = 0, 0

    def cpu_ratio(self, child_ns: int, ticked_ns: int) -> float:
        """Share of one core, of both. The child used ``child_ns`` since its tick before; this one was at ``ticked_ns``.

        Each side is measured by its own clock: where we come late, several ticks lie here and are taken at once.
        """
        own, now = time.process_time_ns(), time.monotonic_ns()
        if now - self._at_ns >= _LEAST_NS:
            self._own_ratio = (own - self._own_ns) / (now - self._at_ns)
            self._own_ns, self._at_ns = own, now
        if 0 < self._ticked_ns < ticked_ns:
            self._child_ratio = child_ns / (ticked_ns - self._ticked_ns)
        self._ticked_ns = ticked_ns
        return round(self._own_ratio + self._child_ratio, 4)

    def memory_bytes(self, child: int) -> int:
        """PSS of both; renewed now and then."""
        now = time.monotonic_ns()
        if now >= self._due_ns:
            self._due_ns, self._memory = now + _MEMORY_NS, pss_bytes(os.getpid()) + pss_bytes(child)
        return self._memory
