"""Memory pools: what is in use, what is kept for later, and for which sizes and ops."""

from __future__ import annotations

from typing import Any

from accelctl.model.snapshot import PoolLevel, key
from accelctl.render import units
from accelctl.render.layout import Line, Span
from accelctl.tui.charts import bar, chart, histogram, level
from accelctl.tui.lines import beside, fit
from accelctl.tui.moment import Moment, count, filled, per_minute, percent
from accelctl.tui.table import Column
from accelctl.tui.views.view import View, tallest

Row = PoolLevel


def _in_use(moment: Moment, row: Row, width: int) -> Line:
    if row.in_use_bytes is None:
        return (moment.gone("pools", row, "in_use_bytes"),)
    if not row.capacity_bytes:
        return (Span(units.size(row.in_use_bytes)),)
    ratio = row.in_use_bytes / row.capacity_bytes
    words = filled(row.in_use_bytes, row.capacity_bytes).rjust(17)
    return (*bar(ratio, width - 18, moment.signs, level(ratio)), Span(" " + words))


def _growth(moment: Moment, row: Row) -> float | None:
    return moment.past.growth(key("pools", row.id, "in_use_bytes"))


def _growing(moment: Moment, row: Row, width: int) -> Line:
    growth = _growth(moment, row)
    if growth is None:
        return (Span(moment.dash, "dim"),)
    if growth > 0 and moment.past.rise(key("pools", row.id, "in_use_bytes")) is not None:
        return (Span(f"{moment.signs.glyphs.warn} {per_minute(growth)}", "warn"),)
    return (Span(per_minute(growth)),)


def _hit_ratio(moment: Moment, row: Row) -> float | None:
    if row.hits is None or row.misses is None or not row.hits + row.misses:
        return None
    return row.hits / (row.hits + row.misses)


def _hits(moment: Moment, row: Row, width: int) -> Line:
    ratio = _hit_ratio(moment, row)
    return (Span(moment.dash, "dim") if ratio is None else Span(percent(ratio)),)


def _bytes(title: str, name: str, drop: int = 0) -> Column:
    return Column(
        title, 8, lambda m, r, w: m.cell("pools", r, name, units.size), lambda m, r: getattr(r, name), drop=drop
    )


COLUMNS = (
    Column("POOL", 17, lambda m, r, w: (Span(r.id),), lambda m, r: r.id, high=30, right=False, falling=False),
    Column("IN USE", 22, _in_use, lambda m, r: r.in_use_bytes, high=38, right=False),
    _bytes("CACHED", "cached_bytes", 4),
    _bytes("RESERVED", "reserved_bytes", 5),
    _bytes("HIGHEST", "high_water_bytes", 3),
    Column(
        "FRAG", 5, lambda m, r, w: m.cell("pools", r, "fragmentation_ratio", percent),
        lambda m, r: r.fragmentation_ratio, drop=2,
    ),
    Column("HITS", 5, _hits, _hit_ratio, drop=1),
    _bytes("NO OWNER", "unattributed_bytes", 6),
    Column("GROWTH", 15, _growing, _growth, high=16),
)  # fmt: skip


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """The chosen pool's history, and what it is used for."""
    size = (width, height)
    spread = bool(row.size_classes or row.ops)
    if spread and width >= 110:
        left = (width - 3) // 2
        return beside([_history(moment, row, (left, height)), _spread(moment, row, (left, height))], [left, left])
    if not spread or height < 11:
        return _history(moment, row, size)
    half = height // 2
    return [*_history(moment, row, (width, half)), [], *_spread(moment, row, (width, height - half - 1))]


def _history(moment: Moment, row: Row, size: tuple[int, int]) -> list[list[Span]]:
    values = moment.past.values(key("pools", row.id, "in_use_bytes"))
    width, height = size
    drawn = chart(
        "In use",
        values,
        (width, tallest(height - 1)),
        moment.signs,
        units.size,
        top=None,
        span_s=moment.past.span_s(),
    )
    return [fit((Span(row.id, "bold"), *_accounts(row)), width), *drawn]


def _accounts(row: Row) -> list[Span]:
    """The whole account on one line, as far as it is known."""
    told = [
        ("asked for", row.asked_bytes, units.size),
        ("cached", row.cached_bytes, units.size),
        ("without an owner", row.unattributed_bytes, units.size),
        ("hits", row.hits, count),
        ("misses", row.misses, count),
    ]
    words: list[Any] = [f"{name} {shown(value)}" for name, value, shown in told if value is not None]
    return [Span("  " + ", ".join(words), "dim")] if words else []


def _spread(moment: Moment, row: Row, size: tuple[int, int]) -> list[list[Span]]:
    """Allocations by size class and by op, with what of them was not freed."""
    width, height = size
    half = (width - 3) // 2
    classes = [(units.size(size), made, freed) for size, made, freed in row.size_classes]
    left = [fit((Span("Allocations by size", "bold"),), half), *_counts(moment, classes, half, height - 1)]
    right = [fit((Span("by op", "bold"),), half), *_counts(moment, list(row.ops), half, height - 1)]
    return beside([left, right], [half, half])[:height]


def _counts(moment: Moment, rows: list[tuple[str, int, int]], width: int, height: int) -> list[list[Span]]:
    """Bars of allocations; beside each how many of them are still there. The most used where not all have room."""
    if not rows:
        return [fit((Span("none told", "dim"),), width)]
    if len(rows) > height:
        most = set(sorted((made for _, made, _ in rows), reverse=True)[:height])
        rows = [row for row in rows if row[1] in most]
    shown = [(name, float(made), f"{count(made)}, {count(made - freed)} held") for name, made, freed in rows]
    label = min(max(len(name) for name, _, _ in rows), 14)
    return histogram(shown[:height], width, moment.signs, label)


MEMORY = View(
    "memory",
    "Memory",
    "pools",
    COLUMNS,
    below,
    "No memory pool is told by any driver or service here.",
    wants=11,
)
