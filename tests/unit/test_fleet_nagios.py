"""The line for Nagios keeps to its guidelines, whatever stands in a report."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.model.finding import LEVELS
from accelctl.render.nagios import line

FORM = re.compile(r"NAME (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]*( \| ('[^'|=\n]*(''[^'|=\n]*)*'|[\w/]+)=[^ |]+( .*)?)?")


@pytest.mark.parametrize(
    ("level", "word", "status"),
    [
        ("ok", "OK", 0),
        ("info", "OK", 0),
        ("warn", "WARNING", 1),
        ("error", "CRITICAL", 2),
        ("critical", "CRITICAL", 2),
        ("unknown", "UNKNOWN", 3),
        ("what?", "UNKNOWN", 3),
    ],
)
def test_levels(level: str, word: str, status: int) -> None:
    assert line("ACCELCTL", level, "text") == (f"ACCELCTL {word} - text", status)


def test_figures_and_what_may_not_stand_in_a_line() -> None:
    text, _ = line("A", "ok", "a | b\nc\x1b[2J", [("h2d", 25.5, "B"), ("a b'=c", 1e6, "")])
    assert text == "A OK - a / b c?[2J | h2d=25.5B 'a b''_c'=1e+06"
    assert len(line("A", "ok", "x" * 5000)[0]) < 1024


@given(
    st.sampled_from([*LEVELS, "?"]),
    st.text(),
    st.lists(st.tuples(st.text(min_size=1), st.floats(0, 1e9), st.just("")), max_size=3),
)
def test_any_text_is_one_line(level: str, text: str, figures: list[tuple[str, float, str]]) -> None:
    found, status = line("NAME", level, text, figures)
    assert FORM.fullmatch(found), found
    assert status in (0, 1, 2, 3)
