"""Medians with intervals that assume nothing about the noise, and how two sets of samples compare.

Times on a machine with other work have a long tail: a mean and a standard deviation describe nothing of it, and with a
dozen samples no normal distribution can be appealed to. So everything here counts ranks.

- The median of one set lies between two of its order statistics. How many of n samples are below the true median is
  binomial (n, 1/2), whatever the distribution, so the probability is exact: 1 - 2 * P(Bin(n, 1/2) < k) for the kth
  smallest and the kth largest.
- How many times as long one thing takes as another: the median of all quotients of a sample of one by a sample of the
  other (Hodges and Lehmann, 1963), in the interval that belongs to the rank sum test (Mann and Whitney, 1947). Exact
  for noise that multiplies and is alike on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, exp, log
from statistics import median

from accelctl.model.benchreport import Spread

COVERAGE = 0.95


def spread(samples: Sequence[float], coverage: float = COVERAGE) -> Spread:
    """Median and the narrowest symmetric pair of order statistics that covers it so often; all of the samples where
    there are too few, and ``coverage`` then says how little that covers. ValueError of no samples."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples")
    k = _rank(len(ordered), coverage)
    return Spread(median(ordered), ordered[k - 1], ordered[-k], covers(len(ordered), k), len(ordered))


def covers(n: int, k: int) -> float:
    """Probability that the true median lies between the kth smallest and the kth largest of n samples."""
    return 1 - sum(comb(n, below) for below in range(k)) / float(1 << (n - 1))


@lru_cache(maxsize=256)
def _rank(n: int, coverage: float) -> int:
    return max([k for k in range(1, n // 2 + 1) if covers(n, k) >= coverage], default=1)


def quotient(above: Sequence[float], below: Sequence[float], coverage: float = COVERAGE) -> Spread | None:
    """How many times as large ``above`` is as ``below``; both positive. None where there are too few samples for that
    coverage, or one is not positive: nothing can be said then."""
    if not above or not below or min(*above, *below) <= 0:
        return None
    n, m = len(above), len(below)
    counts = rank_counts(n, m)
    at, tail = _cut(counts, (1 - coverage) / 2)
    if at == 0:
        return None
    logs = [log(one) for one in below]
    all_of_them = sorted(log(one) - other for one in above for other in logs)
    low, middle, high = all_of_them[at - 1], median(all_of_them), all_of_them[-at]
    return Spread(exp(middle), exp(low), exp(high), 1 - 2 * tail, min(n, m))


def _cut(counts: Sequence[int], tail: float) -> tuple[int, float]:
    """The largest c with P(U < c) <= tail, and that probability."""
    whole, below = sum(counts), 0
    for at, count in enumerate(counts):
        if (below + count) / whole > tail:
            return at, below / whole
        below += count
    return 0, 0.0


@lru_cache(maxsize=256)
def rank_counts(n: int, m: int) -> tuple[int, ...]:
    """Of all orders of n and m samples, in how many the rank sum statistic U is 0, 1, ... n*m: coefficients of the
    Gaussian binomial, of which each factor (1 - q^(m+i)) / (1 - q^i) is multiplied in."""
    most = n * m
    found = [1] + [0] * most
    for i in range(1, n + 1):
        for at in range(most, m + i - 1, -1):
            found[at] -= found[at - m - i]
        for at in range(i, most + 1):
            found[at] += found[at - i]
    return tuple(found)
