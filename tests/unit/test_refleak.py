"""CPython's rule, with CPython's own examples (Lib/test/test_regrtest.py and libregrtest/refleak.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.stress.refleak import deltas, leaks, leaks_descriptors


@pytest.mark.parametrize(
    ("changes", "leak"),
    [
        ([5, 5, 6], True), ([1, 1, 1], True), ([10, 1, 1], True),
        ([3, 0, 0], False), ([8, -8, 1], False), ([0, 0, 0], False), ([0, 1, 1], False), ([], False),
    ],
)  # fmt: skip
def test_references(changes: list[float], leak: bool) -> None:
    assert leaks(changes) is leak


@pytest.mark.parametrize(
    ("changes", "leak"), [([0, 0, 0], False), ([0, 1, 0], True), ([1, -1, 0], True), ([-1, 0, 0], True), ([], False)]
)
def test_descriptors(changes: list[float], leak: bool) -> None:
    assert leaks_descriptors(changes) is leak


def test_warm_up_is_cut() -> None:
    assert deltas([100, 164, 228, 260, 260, 261]) == [0, 1]
    assert deltas([100, 164, 228], 0) == [64, 64]
    assert deltas([1, 2]) == []


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(-1000, 1000))
def test_a_level_does_not_matter(values: list[float], level: int) -> None:
    assert deltas([value + level for value in values]) == deltas(values)
