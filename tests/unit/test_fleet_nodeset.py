"""Sets of nodes: folding loses nothing, and the notation is that of cluster tools."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.accept.nodeset import MOST, expand, fold, natural
from accelctl.errors import UsageError

TEXT = st.from_regex(r"[a-z._-]{0,4}", fullmatch=True)
NUMBER = st.integers(0, 120).flatmap(lambda n: st.sampled_from([str(n), f"{n:02d}", f"{n:03d}"]))
NAME = st.tuples(TEXT, NUMBER, TEXT, NUMBER | st.just(""), TEXT).map("".join).filter(bool)
NEAR = st.tuples(st.sampled_from(["rack", "r"]), NUMBER, st.just("-node"), NUMBER).map("".join)


@given(st.lists(NAME | NEAR, min_size=1, max_size=60))
def test_folding_loses_and_adds_nothing(names: list[str]) -> None:
    folded = fold(names)
    assert sorted(expand(folded)) == sorted(set(names))
    assert fold(expand(folded)) == folded
    assert fold(reversed(names)) == folded


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([f"node{n:03d}" for n in (*range(1, 17), 20)], "node[001-016,020]"),
        (["node1"], "node1"),
        (["node9", "node10", "node11"], "node[9-11]"),
        (["node099", "node100"], "node[099-100]"),
        (["node99", "node100", "node101"], "node[99-101]"),
        (["node01", "node1"], "node01,node1"),
        (["b", "a", "a"], "a,b"),
        ([f"rack{r}-node{n:02d}" for r in (1, 2) for n in range(1, 5)], "rack[1-2]-node[01-04]"),
        (
            [f"rack{r}-node{n:02d}" for r, most in ((1, 4), (2, 3)) for n in range(1, most + 1)],
            "rack1-node[01-04],rack2-node[01-03]",
        ),
        (["n1.site2.example.org", "n2.site2.example.org"], "n[1-2].site2.example.org"),
        (["001", "002"], "[001-002]"),
    ],
)
def test_notation(names: list[str], folded: str) -> None:
    assert fold(names) == folded
    assert sorted(expand(folded)) == sorted(set(names))


def test_expanding_what_people_write() -> None:
    assert expand("n[1-3],gpu[01,03-04]") == ["n1", "n2", "n3", "gpu01", "gpu03", "gpu04"]
    assert expand("a b") == ["a b"]
    assert expand("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n[1-",
        "n]1[",
        "n[a-b]",
        "n[]",
        "n[1-99999999]",
        "[1-9999][1-9999]",
        "n[[1]]",
        ",",
        "n[1--2]",
        "n[9-1]",
        "n[1-3,2-1],m",
    ],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        expand(text)


@given(st.text(alphabet="n0123456789-,[] x"))
def test_any_text_expands_or_is_refused(text: str) -> None:
    if re.search(r"[0-9]{6}", text):
        return  # fewer names: the limit has its own test
    try:
        assert len(expand(text)) <= MOST
    except UsageError:
        pass


@pytest.mark.parametrize("digits", [18, 19, 36, 5000])
def test_names_with_endless_numbers_are_names(digits: int) -> None:
    """Python turns no more than 4300 digits into a number."""
    names = [f"n{'1' * digits}{end}" for end in ("", "2", "3")]
    folded = fold(names)
    assert sorted(expand(folded)) == sorted(names)
    assert sorted(names, key=natural)[0] == names[0]
    with pytest.raises(UsageError):
        expand(f"n[{'1' * max(digits, 19)}]")


def test_natural_order() -> None:
    assert sorted(["n10", "n9", "n1a2", "n1a10", "m"], key=natural) == ["m", "n1a2", "n1a10", "n9", "n10"]


def test_a_big_cluster_is_folded_in_one_go() -> None:
    names = [f"rack{r:02d}-node{n:03d}" for r in range(100) for n in range(1, 101)]
    assert fold(names) == "rack[00-99]-node[001-100]"
