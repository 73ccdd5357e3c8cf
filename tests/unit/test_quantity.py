"""Sizes, times and counts from a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.model import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4096), ("256MiB", 268435456), ("256 MB", 268435456), ("1.5G", 1610612736), ("0", 0)],
)
def test_sizes(text: str, value: int) -> None:
    assert quantity.size_bytes("--x", text) == value


@pytest.mark.parametrize(("text", "value"), [("30", 30), ("30s", 30), ("250ms", 0.25), ("5m", 300), ("2h", 7200)])
def test_times(text: str, value: float) -> None:
    assert quantity.seconds("--x", text) == value


@pytest.mark.parametrize(("text", "value"), [("2000", 2000), ("20k", 20000), ("1M", 1000000), ("1.5k", 1500)])
def test_counts(text: str, value: int) -> None:
    assert quantity.count("--x", text) == value


@pytest.mark.parametrize("text", ["", "-1", "x", "1x", "1e9", "١", "0x10", "1.5", "9" * 39])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="--cycles"):
        quantity.count("--cycles", text)


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_one_clear_line(text: str) -> None:
    message = "--x "
    try:
        value = quantity.size_bytes("--x", text)
    except UsageError as error:
        value, message = 0, error.message
    assert value >= 0
    assert message.startswith("--x ")
