"""Robust slopes and ranks against scipy, and what no shift, scale or wild value may change."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.stress.trend import MOST, block_means, mann_kendall, median, spread, t_999, theil_sen

stats = pytest.importorskip("scipy.stats")

SAWTOOTH = [100.0, 120.0, 140.0, 160.0] * 3
COUNTS = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=25)
"""Few distinct values: ties are the rule."""


def x_of(values: list[float]) -> list[float]:
    return [float(number) for number in range(len(values))]


@given(COUNTS, st.lists(st.integers(0, 6).map(float), min_size=25, max_size=25))
def test_theil_sen_is_scipys(y: list[float], some: list[float]) -> None:
    """Slope and Sen's interval, with ties in both x and y."""
    x = some[: len(y)]
    ours = theil_sen(x, y, 0.9)
    if len(set(x)) == 1:
        assert ours is None
        return
    theirs = stats.theilslopes(y, x, 0.9)
    assert ours is not None
    assert ours.slope == pytest.approx(float(theirs.slope))
    if math.isnan(float(theirs.low_slope)):  # no variance at all: scipy has no interval, ours is the slope itself
        assert ours.low == ours.high == ours.slope
        return
    assert (ours.low, ours.high) == pytest.approx((float(theirs.low_slope), float(theirs.high_slope)))


@given(COUNTS)
def test_mann_kendall_is_kendalls_tau(values: list[float]) -> None:
    """S from tau-b, and p from the normal approximation with Kendall's variance for ties."""
    ours = mann_kendall(values)
    tau = stats.kendalltau(range(len(values)), values).statistic
    pairs = len(values) * (len(values) - 1) / 2
    tied = sum(math.comb(values.count(value), 2) for value in set(values))
    if tied == pairs:
        assert ours == (0, 1.0)
        return
    assert ours.s == round(float(tau) * math.sqrt(pairs * (pairs - tied)))
    assert 0 <= ours.p <= 1


def test_p_of_mann_kendall_near_the_exact_one() -> None:
    rng = random.Random(4)
    for _ in range(20):
        values = [rng.gauss(0, 1) + 0.1 * at for at in range(20)]
        exact = stats.kendalltau(range(20), values, method="exact").pvalue
        assert mann_kendall(values).p == pytest.approx(float(exact), abs=0.02)


@given(COUNTS, st.integers(-(10**6), 10**6), st.integers(1, 1000))
def test_shift_and_scale(values: list[float], shift: int, scale: int) -> None:
    base, moved = theil_sen(x_of(values), values), theil_sen(x_of(values), [v * scale + shift for v in values])
    assert base is not None
    assert moved is not None
    assert moved == pytest.approx([scale * number for number in base])
    assert mann_kendall([v * scale + shift for v in values]) == mann_kendall(values)
    assert mann_kendall([-v for v in values]).s == -mann_kendall(values).s


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=3, max_size=20), st.randoms())
def test_order_of_the_points_does_not_matter(points: list[tuple[int, int]], rng: random.Random) -> None:
    """Permuting points (tied ones among them) changes nothing: a slope belongs to pairs, not to an order."""
    shuffled = points[:]
    rng.shuffle(shuffled)
    first, second = ([theil_sen([float(p[0]) for p in row], [float(p[1]) for p in row])] for row in (points, shuffled))
    assert first == second


def test_a_sawtooth_has_no_slope_where_a_line_finds_one() -> None:
    last = SAWTOOTH[4:]
    assert stats.linregress(range(8), last).slope == pytest.approx(4.76, abs=0.01)  # the wrong answer of MEM-06 B
    line = theil_sen(x_of(SAWTOOTH), SAWTOOTH)
    assert line is not None
    assert line.low <= 0 <= line.high


def test_a_quarter_of_wild_values_moves_nothing_far() -> None:
    y = [2.0 * at for at in range(40)]
    for at in range(0, 40, 4):
        y[at] = 1e9 if at % 8 else -1e9
    slope = theil_sen(x_of(y), y)
    assert slope is not None
    assert slope.slope == pytest.approx(2.0)


def test_many_points_are_thinned_evenly_and_always_alike() -> None:
    y = [3.0 * at for at in range(50 * MOST)]
    slope = theil_sen(x_of(y), y)
    assert slope is not None
    assert slope.slope == pytest.approx(3.0)
    assert mann_kendall(y).s == MOST * (MOST - 1) // 2


def test_medians_means_and_their_refusals() -> None:
    assert (median([3, 1, 2]), median([4, 1, 2, 3]), spread([5, 5, 5, 9])) == (2, 2.5, 0)
    assert median([1.7e308, 1.7e308]) == 1.7e308
    rng = random.Random(1)
    assert spread([rng.gauss(0, 7) for _ in range(20_000)]) == pytest.approx(7, rel=0.03)
    assert block_means([1, 2, 3, 4, 5], 2) == [1.5, 4]
    with pytest.raises(ValueError, match="no values"):
        median([])
    for blocks in (0, 6):
        with pytest.raises(ValueError, match="more blocks"):
            block_means([1, 2, 3, 4, 5], blocks)
    with pytest.raises(ValueError, match="differ in length"):
        theil_sen([1], [1, 2])


@pytest.mark.parametrize("freedom", [4, 5, 6.5, 7, 8, 9, 10, 12, 14.9, 15, 20, 30, 59, 60])
def test_the_t_table_is_right_or_careful(freedom: float) -> None:
    exact = float(stats.t.ppf(0.999, freedom))
    assert exact - 6e-4 <= t_999(freedom) <= exact * 1.09 + 6e-4


def test_the_t_table_below_its_first_row() -> None:
    """Four degrees are the least that the fit leaves: stated here, because below it the table would be too bold."""
    assert t_999(1) == t_999(4)
