"""Which nodes are slow? Figures of `accelctl bench` are never equal: each is held against the median of the fleet."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from accelctl.model.benchreport import SECONDS, is_sample

LEAST_NODES = 4
"""Of fewer the median says little: of two one is always the slower."""
SLACK = 10.0
"""Percent that a node may be off; cards of one type differ by a few."""


class Figure(NamedTuple):
    """What one node measured: the median, and the end of its interval that is nearer to the others were it slow."""

    id: str
    unit: str
    value: float
    best: float


class Slow(NamedTuple):
    """One figure, and the nodes that are slower in it than the fleet, the slowest first. ``typical`` is the median of
    ``measured`` nodes."""

    figure: str
    unit: str
    typical: float
    measured: int
    nodes: tuple[tuple[str, float], ...]


def figures(whole: dict[str, Any]) -> tuple[Figure, ...]:
    """The figures of a report of bench; of another one, or of one that is not as it should be, none."""
    volatile = whole.get("volatile")
    rows = volatile.get("figures") if isinstance(volatile, dict) else None
    found = [_figure(row) for row in rows] if isinstance(rows, list) else []
    return tuple(one for one in found if one is not None)


def _figure(row: Any) -> Figure | None:
    spread = row.get("spread") if isinstance(row, dict) else None
    if not isinstance(spread, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("unit"), str):
        return None
    end = spread.get("low" if row["unit"] == SECONDS else "high", spread.get("median"))
    values = [one for one in (spread.get("median"), end) if isinstance(one, (int, float)) and not isinstance(one, bool)]
    if len(values) != 2 or not all(map(is_sample, values)):
        return None
    return Figure(row["id"], row["unit"], float(values[0]), float(values[1]))


def slow(reports: Iterable[tuple[str, tuple[Figure, ...]]], percent: float = SLACK) -> tuple[Slow, ...]:
    """What is slower than the median of all nodes by more than that, with its whole interval."""
    by_id: dict[tuple[str, str], list[tuple[str, Figure]]] = {}
    for node, own in reports:
        for one in own:
            by_id.setdefault((one.id, one.unit), []).append((node, one))
    found = []
    for (identity, unit), rows in by_id.items():
        typical = median(one.value for _, one in rows)
        edge = 1 - percent / 100
        bad = [(node, one) for node, one in rows if _speed(one, typical) < edge]
        if bad and len(rows) >= LEAST_NODES:
            bad.sort(key=lambda pair: _speed(pair[1], typical))
            found.append(Slow(identity, unit, typical, len(rows), tuple((node, one.value) for node, one in bad)))
    return tuple(found)


def _speed(one: Figure, typical: float) -> float:
    """1: as fast as the fleet; of times less is better."""
    return typical / one.best if one.unit == SECONDS else one.best / typical
