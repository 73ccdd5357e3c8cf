"""Intervals: exact where they can be, and right as often as they say."""

import random
from itertools import permutations
from math import comb, exp
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept.bench import statistics

POSITIVE = st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=40)


@given(POSITIVE)
def test_an_interval_holds_its_median_and_lies_among_the_samples(samples: list[float]) -> None:
    found = statistics.spread(samples)
    assert found.low <= found.median <= found.high
    assert found.median == median(samples)
    assert found.low in samples
    assert found.high in samples
    assert found.n == len(samples)


def test_no_samples_are_no_figure() -> None:
    with pytest.raises(ValueError, match="no samples"):
        statistics.spread([])


@pytest.mark.parametrize(("n", "k", "coverage"), [(5, 1, 0.9375), (6, 1, 0.96875), (9, 2, 0.9609375), (1, 1, 0.0)])
def test_coverage_is_that_of_the_binomial_distribution(n: int, k: int, coverage: float) -> None:
    """Tables of the sign test have these numbers."""
    assert statistics.covers(n, k) == coverage
    found = statistics.spread([float(one) for one in range(n)])
    assert (found.low, found.high, found.coverage) == (k - 1, n - k, coverage)


def test_the_narrowest_pair_that_covers_enough() -> None:
    for n in range(6, 60):
        k = statistics._rank(n, 0.95)
        assert statistics.covers(n, k) >= 0.95
        assert k == n // 2 or statistics.covers(n, k + 1) < 0.95


@pytest.mark.parametrize("n", [5, 9, 21])
def test_intervals_cover_as_often_as_they_say(n: int) -> None:
    """On a lognormal with a heavy tail, whose median is 1."""
    rng = random.Random(n)
    runs = 4000
    inside = 0
    for _ in range(runs):
        samples = [exp(rng.gauss(0, 0.05)) * (3 if rng.random() < 0.05 else 1) for _ in range(n)]
        found = statistics.spread(samples)
        inside += found.low <= _true_median() <= found.high
    assert inside / runs == pytest.approx(statistics.covers(n, statistics._rank(n, 0.95)), abs=0.015)


def _true_median() -> float:
    """Of that mixture: where 95 % of a narrow lognormal and 5 % above it have half on either side."""
    return exp(0.05 * 0.06603)  # the standard normal's quantile 0.5 / 0.95


def test_rank_counts_are_those_of_all_orders() -> None:
    for n, m in ((1, 1), (2, 3), (4, 3), (3, 5)):
        found = [0] * (n * m + 1)
        for chosen in {tuple(sorted(one[:n])) for one in permutations(range(n + m))}:
            u = sum(one - place for place, one in enumerate(chosen))
            found[u] += 1
        assert statistics.rank_counts(n, m) == tuple(found)
        assert sum(found) == comb(n + m, n)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (9, 7), (21, 21), (41, 41)])
def test_rank_counts_agree_with_scipy(n: int, m: int) -> None:
    scipy = pytest.importorskip("scipy.stats")
    counts = statistics.rank_counts(n, m)
    whole = sum(counts)
    for u in (0, n * m // 4, n * m // 3):
        above = [0.0] * n
        # n samples of which u pairs are above: made by places among m others
        rest = u
        for place in range(n - 1, -1, -1):
            step = min(m, rest)
            above[place] = step + 0.25 + place / (4 * n)
            rest -= step
        said = scipy.mannwhitneyu(above, [float(one) + 0.9 for one in range(m)], method="exact", alternative="less")
        assert said.pvalue == pytest.approx(sum(counts[: int(said.statistic) + 1]) / whole)


@given(POSITIVE, POSITIVE, st.floats(0.01, 100))
def test_a_quotient_scales(above: list[float], below: list[float], factor: float) -> None:
    found = statistics.quotient(above, below)
    scaled = statistics.quotient([one * factor for one in above], below)
    if found is None:
        assert scaled is None
        return
    assert scaled is not None
    assert found.low <= found.median <= found.high
    assert scaled.median == pytest.approx(found.median * factor)
    assert scaled.low == pytest.approx(found.low * factor)


def test_a_quotient_turned_round_is_its_inverse() -> None:
    one, other = [1.0, 1.1, 0.9, 1.2, 1.05], [2.0, 2.2, 1.8, 2.1, 2.3, 1.9]
    found, back = statistics.quotient(one, other), statistics.quotient(other, one)
    assert found is not None
    assert back is not None
    assert (found.low, found.high) == pytest.approx((1 / back.high, 1 / back.low))


def test_too_few_samples_say_nothing() -> None:
    """Of 4 and 4 samples the most extreme order alone has 2 in 70."""
    assert statistics.quotient([1.0] * 4, [1.0] * 4, 0.99) is None
    assert statistics.quotient([1.0, 2.0, 3.0, 4.0], [1.0] * 4, 0.95) is not None
    assert statistics.quotient([], [1.0]) is None
    assert statistics.quotient([0.0] * 9, [1.0] * 9) is None


def test_quotients_cover_as_often_as_they_say() -> None:
    rng = random.Random(5)
    runs, inside, said = 1500, 0, 0.0
    for _ in range(runs):
        above = [1.1 * rng.lognormvariate(0, 0.04) for _ in range(11)]
        below = [rng.lognormvariate(0, 0.04) for _ in range(11)]
        found = statistics.quotient(above, below)
        assert found is not None
        inside += found.low <= 1.1 <= found.high
        said = found.coverage
    assert 0.95 <= said < 0.97
    assert inside / runs == pytest.approx(said, abs=0.015)
