"""A series as one short line of text: what a column of numbers hides, eight heights show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

UNICODE = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""Eight heights, lowest first. The ASCII ones gain ink with height."""

GAP = " "
"""Stands for a value that is missing (not finite)."""


def sparkline(values: Sequence[float], width: int = 40, unicode: bool = True) -> str:
    """At most ``width`` signs; of more values each sign is the mean of its share. A flat series is all lowest.

    ValueError for a width below 1.
    """
    if width < 1:
        raise ValueError("a sparkline needs a width of at least 1")
    points = _squeezed(values, width)
    real = [point for point in points if math.isfinite(point)]
    if not real:
        return GAP * len(points)
    low, high = min(real), max(real)
    signs = UNICODE if unicode else ASCII
    return "".join(signs[_step(point, low, high, len(signs))] if math.isfinite(point) else GAP for point in points)


def _squeezed(values: Sequence[float], width: int) -> list[float]:
    """One number per sign; gaps do not take part in a mean."""
    if len(values) <= width:
        return [float(value) for value in values]
    cuts = [number * len(values) // width for number in range(width + 1)]
    return [_mean([v for v in values[a:b] if math.isfinite(v)]) for a, b in itertools.pairwise(cuts)]


def _mean(values: Sequence[float]) -> float:
    # Each share is divided before it is added: the sum of finite numbers need not be finite.
    return math.fsum(value / len(values) for value in values) if values else math.nan


def _step(value: float, low: float, high: float, steps: int) -> int:
    # Halved, because the distance of two finite numbers need not be finite either.
    span = high / 2 - low / 2
    return min(steps - 1, int((value / 2 - low / 2) / span * steps)) if span > 0 else 0
