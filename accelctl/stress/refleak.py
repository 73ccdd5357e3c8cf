"""CPython's rule for hunting reference leaks (Lib/test/libregrtest/refleak.py), for counters that are quiet but not
only ours.

After the warm-up a few rounds are enough: something lost in every round leaks, and something that comes and goes does
not. Counts of descriptors are so quiet that any difference counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

WARMUPS, ROUNDS = 3, 3
"""Rounds that do not count, and those that do: CPython's own numbers (regrtest -R 3:3)."""


def deltas(values: Sequence[float], warmups: int = WARMUPS) -> list[float]:
    """What each round after the warm-up added. ``values`` are readings after each round."""
    rest = values[warmups:]
    return [after - before for before, after in itertools.pairwise(rest)]


def leaks(changes: Sequence[float]) -> bool:
    """References and blocks: every round added at least one. [5, 5, 6] leaks; [3, 0, 0] and [8, -8, 1] do not."""
    return bool(changes) and min(changes) >= 1


def leaks_descriptors(changes: Sequence[float]) -> bool:
    """Descriptors: any change at all."""
    return any(changes)
