"""Slopes and trends that a few wild values cannot carry away.

A least-squares line through eight values of a sawtooth says "+4.76 per iteration" where every low is the same
(giampaolo/psutil#1757). Medians of slopes and ranks do not, and need no distribution. Pure Python,
because this command loads no numpy; scipy is the oracle in the tests.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

MOST = 600
"""Points that take part in a Theil-Sen slope: 180,000 pairs. Of more, evenly spaced ones are taken."""

CONSISTENT = 1.4826
"""Makes the median absolute deviation of normal noise its standard deviation."""


def median(values: Sequence[float]) -> float:
    """Middle value, of an even number the mean of both. ValueError for none."""
    if not values:
        raise ValueError("no values")
    ordered, half = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return ordered[half - 1] / 2 + ordered[half] / 2  # halves first: the sum of two finite numbers need not be finite


def spread(values: Sequence[float]) -> float:
    """Standard deviation estimated from the median absolute deviation; 0 where more than half are equal."""
    middle = median(values)
    return CONSISTENT * median([abs(value - middle) for value in values])


def block_means(values: Sequence[float], blocks: int) -> list[float]:
    """Means of ``blocks`` runs of values, as equal in length as whole numbers allow. ValueError: more blocks than
    values, or none."""
    if not 0 < blocks <= len(values):
        raise ValueError("more blocks than values")
    cuts = [number * len(values) // blocks for number in range(blocks + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]


class Slope(NamedTuple):
    """Rise per unit of x, and the interval in which it lies with the confidence asked for."""

    slope: float
    low: float
    high: float


def theil_sen(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Slope | None:
    """Median of the slopes between all pairs with different x; None where there is no such pair.

    The interval is Sen's (1968, JASA 63): slopes at the ranks that Kendall's statistic allows, its variance corrected
    for ties in x and y. It takes the samples as independent: with correlated ones it is too narrow, which is why it
    never decides alone about a noisy counter (accelctl.stress.contrast does).
    """
    if len(x) != len(y):
        raise ValueError("x and y differ in length")
    x, y = _thin(x), _thin(y)
    slopes = sorted((y[j] - y[i]) / (x[j] - x[i]) for i in range(len(x)) for j in range(i + 1, len(x)) if x[i] != x[j])
    if not slopes:
        return None
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(_variance(x, y))
    upper = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    lower = max(round((len(slopes) - reach) / 2) - 1, 0)
    return Slope(median(slopes), slopes[lower], slopes[upper])


class Trend(NamedTuple):
    """Kendall's S (pairs that rise less pairs that fall) and its two-sided p."""

    s: int
    p: float


def mann_kendall(values: Sequence[float]) -> Trend:
    """Do values rise or fall more than chance lets them (Mann 1945)? A gate, never a verdict: memory that is merely
    correlated in time passes it far too often (Machida et al. 2013, doi 10.1109/ISSREW.2013.6688905)."""
    values = _thin(values)
    s = sum(_sign(b - a) for i, a in enumerate(values) for b in values[i + 1 :])
    variance = _variance(range(len(values)), values)
    if variance <= 0 or s == 0:
        return Trend(s, 1.0)
    z = (abs(s) - 1) / math.sqrt(variance)
    return Trend(s, math.erfc(z / math.sqrt(2)))


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _thin(values: Sequence[float]) -> Sequence[float]:
    """At most MOST values, evenly spaced: the same ones every time."""
    if len(values) <= MOST:
        return values
    return [values[number * (len(values) - 1) // (MOST - 1)] for number in range(MOST)]


def _variance(x: Sequence[float], y: Sequence[float]) -> float:
    """Of Kendall's S, corrected for ties in x and in y as Sen has it."""
    n = len(x)
    ties = [count for values in (x, y) for count in Counter(values).values()]
    return max(0.0, (_term(n) - math.fsum(_term(count) for count in ties)) / 18)


def _term(n: int) -> float:
    return float(n * (n - 1) * (2 * n + 5))


_T = (
    (4, 7.173), (5, 5.893), (6, 5.208), (7, 4.785), (8, 4.501), (9, 4.297), (10, 4.144), (12, 3.930), (15, 3.733),
    (20, 3.552), (30, 3.385), (60, 3.232),
)  # fmt: skip
"""Degrees of freedom, and what Student's t exceeds with probability 1/1000."""


def t_999(freedom: float) -> float:
    """What Student's t exceeds once in 1000; between the rows of the table the larger value, so never too bold."""
    return next((value for degrees, value in reversed(_T) if freedom >= degrees), _T[0][1])
