"""What a sweep found, folded: no point is lost, and the words follow from the books."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.stress import sweepmodel
from accelctl.stress.sweepmodel import (
    BALANCED,
    DOOR_AFTER,
    KERNEL,
    KINDS,
    LEAKED,
    NOT_REACHED,
    OUTCOMES,
    STRANDED,
    Point,
    Row,
    as_dict,
    fold,
    judge,
    point,
    table,
    total,
)  # fmt: skip

POINTS = st.builds(
    point,
    st.sampled_from(["qxl", "vgem"]),
    st.sampled_from(["dumb", "bo"]),
    st.sampled_from(["object", "-object"]),
    st.sampled_from(KINDS),
    st.integers(1, 40),
    st.sampled_from(OUTCOMES),
)


@pytest.mark.parametrize(
    ("after", "closed", "outcome", "detail"),
    [
        ({"handles": 0, "fds": 5}, {"fds": 5}, BALANCED, ""),
        ({"handles": 1, "fds": 5}, {"fds": 5}, STRANDED, "handles +1"),
        ({"handles": 1, "fds": 7}, {"fds": 6}, LEAKED, "fds +1"),
        ({"handles": 0, "fds": 4}, {"fds": 4}, BALANCED, ""),
        ({"handles": 2, "fds": 6}, {"fds": 5}, STRANDED, "handles +2, fds +1"),
    ],
)
def test_three_readings_give_the_outcome(
    after: dict[str, int], closed: dict[str, int], outcome: str, detail: str
) -> None:
    assert judge({"handles": 0, "fds": 5}, after, closed) == (outcome, detail)


def test_the_table() -> None:
    found = [
        *(point("qxl", "dumb", "object", KERNEL, n, BALANCED) for n in range(1, 22)),
        point("qxl", "dumb", "object", KERNEL, 22, STRANDED, "gem-handles +1"),
        point("qxl", "dumb", "object", KERNEL, 23, NOT_REACHED),
        point("qxl", "bo", "object", DOOR_AFTER, 1, LEAKED, "fds-dmabuf +1"),
    ]
    rows = fold(found)
    assert rows == (
        Row("qxl", "object", KERNEL, 22, 21, 1, 0),
        Row("qxl", "object", DOOR_AFTER, 1, 0, 0, 1),
    )
    assert table(rows) == [
        "| driver | stage  | fault      | points | balanced | stranded | leaked |",
        "| ------ | ------ | ---------- | -----: | -------: | -------: | -----: |",
        "| qxl    | object | kernel     |     22 |       21 |        1 |      0 |",
        "| qxl    | object | door-after |      1 |        0 |        0 |      1 |",
        "| all    |        |            |     23 |       21 |        1 |      1 |",
    ]
    document = json.loads(json.dumps(as_dict(found)))
    assert document["total"] == {"points": 23, "balanced": 21, "stranded": 1, "leaked": 1}
    assert [entry["n"] for entry in document["points"]] == [22, 1]
    assert document["points"][0]["detail"] == "gem-handles +1"


def test_an_empty_sweep_has_a_table_too() -> None:
    assert fold([]) == ()
    assert table(())[-1].split() == ["|", "all", "|", "|", "|", "0", "|", "0", "|", "0", "|", "0", "|"]


@given(st.lists(POINTS))
def test_every_point_is_counted_once(points: list[Point]) -> None:
    rows = fold(points)
    assert len({row[:3] for row in rows}) == len(rows)
    reached = [one for one in points if one.outcome != NOT_REACHED]
    everything = total(rows)
    assert everything.points == len(reached) == everything.balanced + everything.stranded + everything.leaked
    for row in rows:
        mine = [one.outcome for one in points if (one.driver, one.stage, one.kind) == row[:3]]
        assert (row.balanced, row.stranded, row.leaked) == tuple(map(mine.count, (BALANCED, STRANDED, LEAKED)))
    assert len({len(line) for line in table(rows)}) == 1
    bad = as_dict(points)["points"]
    assert isinstance(bad, list)
    assert len(bad) == everything.stranded + everything.leaked


@pytest.mark.parametrize("wrong", [("nowhere", BALANCED, 1), (KERNEL, "fine", 1), (KERNEL, BALANCED, 0)])
def test_records_are_checked(wrong: tuple[str, str, int]) -> None:
    kind, outcome, n = wrong
    with pytest.raises(ValueError, match="no such fault point"):
        point("qxl", "dumb", "object", kind, n, outcome)
    assert sweepmodel.KERNEL == "kernel"
