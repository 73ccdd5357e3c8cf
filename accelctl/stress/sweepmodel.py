"""What a sweep found: one record for each fault point, and the table over drivers and stages that they fold into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

DOOR_BEFORE, DOOR_AFTER, KERNEL = "door-before", "door-after", "kernel"
KINDS = (DOOR_BEFORE, DOOR_AFTER, KERNEL)

BALANCED, STRANDED, LEAKED, NOT_REACHED = "balanced", "stranded", "leaked", "not reached"
OUTCOMES = (BALANCED, STRANDED, LEAKED, NOT_REACHED)
"""balanced: the books are as before. stranded: something is alive that nobody knows of, and gone at close. leaked: it
outlives the close. not reached: the call had fewer fault points, so the sweep of it ends."""


class Point(NamedTuple):
    """One fault point: the ``n``-th one inside the ``call``-th system call of a stage (a release's name begins with
    "-"), or at the door the ``n``-th system call itself. ``detail``: which book, by how much, errno seen."""

    driver: str
    lifecycle: str
    stage: str
    kind: str
    n: int
    outcome: str
    detail: str = ""
    call: int = 1

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return self._asdict()


class Row(NamedTuple):
    """One driver and stage (of all its lifecycles), one kind of fault. ``points`` are those that were reached."""

    driver: str
    stage: str
    kind: str
    points: int
    balanced: int
    stranded: int
    leaked: int

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return self._asdict()


def point(
    driver: str, lifecycle: str, stage: str, kind: str, n: int, outcome: str, detail: str = "", call: int = 1
) -> Point:
    """A checked record. ValueError for a kind or outcome that is none."""
    if kind not in KINDS or outcome not in OUTCOMES or n < 1 or call < 1:
        raise ValueError(f"no such fault point: {kind}, {outcome}, {n}, {call}")
    return Point(driver, lifecycle, stage, kind, n, outcome, detail, call)


def judge(before: dict[str, int], after: dict[str, int], closed: dict[str, int]) -> tuple[str, str]:
    """(outcome, detail) from three readings of the exact books: at rest before the fault, after it with everything
    released that is known of, and after the close. Books that are missing from a later reading decide nothing (those
    of the file itself cannot be read once it is closed)."""
    left = _more(before, closed)
    if left:
        return LEAKED, left
    alive = _more(before, after)
    return (STRANDED, alive) if alive else (BALANCED, "")


def _more(before: dict[str, int], after: dict[str, int]) -> str:
    grown = {name: after[name] - value for name, value in before.items() if after.get(name, value) > value}
    return ", ".join(f"{name} +{count}" for name, count in grown.items())


def fold(points: Iterable[Point]) -> tuple[Row, ...]:
    """The table, in the order in which drivers, stages and kinds first came up."""
    counts: dict[tuple[str, str, str], dict[str, int]] = {}
    for one in points:
        row = counts.setdefault((one.driver, one.stage, one.kind), dict.fromkeys(OUTCOMES, 0))
        row[one.outcome] += 1
    return tuple(
        Row(*key, row[BALANCED] + row[STRANDED] + row[LEAKED], row[BALANCED], row[STRANDED], row[LEAKED])
        for key, row in counts.items()
    )


def total(rows: Iterable[Row]) -> Row:
    """The sum of a table."""
    numbers = [sum(column) for column in zip(*(row[3:] for row in rows), strict=True)] or [0, 0, 0, 0]
    return Row("all", "", "", *numbers)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of text, columns aligned; a Markdown table, so that docs and terminals show the same."""
    head = ("driver", "stage", "fault", "points", "balanced", "stranded", "leaked")
    body = [tuple(str(cell) for cell in row) for row in (*rows, total(rows))]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        texts = [
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(texts)} |"

    rule = [("-" * width) if column < 3 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return [line(head), line(rule), *(line(cells) for cells in body)]


def as_dict(points: Sequence[Point]) -> dict[str, object]:
    """For JSON: the table, and every point that is not balanced."""
    rows = fold(points)
    return {
        "rows": [row.as_dict() for row in rows],
        "total": {
            name: value for name, value in total(rows).as_dict().items() if name not in ("driver", "stage", "kind")
        },
        "points": [one.as_dict() for one in points if one.outcome in (STRANDED, LEAKED)],
    }
