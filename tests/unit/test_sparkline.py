"""One line, bounded, whatever comes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.render.sparkline import ASCII, GAP, UNICODE, sparkline


def test_heights() -> None:
    assert sparkline(range(8)) == UNICODE
    assert sparkline(range(8), unicode=False) == ASCII
    assert sparkline([100, 164, 228, 260, 260]) == "▁▄▇██"
    assert sparkline([7, 7, 7]) == "▁▁▁"
    assert sparkline([]) == ""


def test_more_values_than_signs_are_averaged() -> None:
    assert sparkline([0, 2, 10, 12], width=2) == "▁█"
    assert len(sparkline(range(10_000), width=33)) == 33


def test_gaps_show() -> None:
    assert sparkline([0, math.nan, 7, math.inf]) == f"▁{GAP}█{GAP}"
    assert sparkline([math.nan] * 3) == GAP * 3
    assert sparkline([math.nan, 1, 9, 9], width=2) == "▁█"


def test_no_width() -> None:
    with pytest.raises(ValueError, match="width"):
        sparkline([1], width=0)


@given(st.lists(st.floats(), max_size=80), st.integers(1, 50), st.booleans())
def test_any_numbers_fit(values: list[float], width: int, unicode: bool) -> None:
    line = sparkline(values, width, unicode)
    assert len(line) == min(width, len(values))
    assert set(line) <= {*(UNICODE if unicode else ASCII), GAP}


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=40), st.integers(-1000, 1000))
def test_shift_does_not_change_the_picture(values: list[int], shift: int) -> None:
    assert sparkline(values) == sparkline([value + shift for value in values])
    assert sparkline(values) == sparkline([4 * value for value in values])


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=40))
def test_higher_is_never_lower(values: list[int]) -> None:
    heights = [UNICODE.index(sign) for sign in sparkline(values)]
    pairs = sorted(zip(values, heights, strict=True))
    assert [height for _, height in pairs] == sorted(heights)
