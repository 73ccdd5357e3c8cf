"""Bars, histories and maps as lines of text. Every picture has its exact numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accelctl.model.snapshot import SpaceLevel
from accelctl.render.layout import Line, Span, line_cells
from accelctl.tui.lines import fit
from accelctl.tui.signs import Signs

HEADROOM = 1.25
"""Of a chart without a natural top, so that a steady level is no solid block."""

Words = Callable[[float], str]
"""A number as it is shown."""


def bar(ratio: float, width: int, signs: Signs, style: str = "info") -> list[Span]:
    """A horizontal bar of ``width`` columns; what is not 0 is never drawn as nothing."""
    ratio = min(max(ratio, 0.0), 1.0)
    steps = len(signs.parts) + 1
    filled = round(ratio * width * steps)
    if ratio > 0:
        filled = max(filled, 1)
    whole, part = divmod(filled, steps)
    drawn = signs.full * whole + (signs.parts[part - 1] if part else "")
    return [Span(drawn, style), Span(signs.track * (width - len(drawn)), "dim")]


def level(ratio: float | None) -> str:
    """The style of something that fills up."""
    return "info" if ratio is None or ratio < 0.85 else "warn" if ratio < 0.95 else "error"


def chart(
    title: str,
    values: Sequence[float],
    size: tuple[int, int],
    signs: Signs,
    words: Words,
    *,
    top: float | None = None,
    floor: float = 0.0,
    span_s: float = 0.0,
    style: str = "info",
) -> list[list[Span]]:
    """A history of ``size`` (columns, lines): a heading with the numbers, and columns for the newest values, right.

    ``top`` is what a full column means (default: the highest value seen). A missing value is NaN and leaves a gap.
    """
    width, height = size
    shown = list(values)[-width:]
    real = [value for value in shown if math.isfinite(value)]
    if not real:
        return [fit((Span(title, "bold"), Span("  no values", "dim")), width), *_blank(width, height - 1)]
    now = words(shown[-1]) if math.isfinite(shown[-1]) else "-"
    parts = [Span(title, "bold"), Span(f"  {now}"), Span(f"  {_range(real, words)}", "dim")]
    if span_s:
        during = "for" if min(real) == max(real) else "in"
        parts.append(Span(f" {during} {_ago(span_s * len(shown) / max(len(values), 1))}", "dim"))
    heading = as_far(parts, width)
    most = max(real) * HEADROOM if top is None else top
    drawn = [fit(heading, width)]
    drawn += [fit((Span(row, style),), width) for row in _plot(shown, width, height - 1, floor, most, signs)]
    return drawn


def as_far(parts: Sequence[Span], width: int) -> list[Span]:
    """As many of the parts as have room whole: half a number is worse than none."""
    found: list[Span] = []
    for part in parts:
        if line_cells([*found, part]) > width:
            break
        found.append(part)
    return found


def _range(real: Sequence[float], words: Words) -> str:
    low, high = words(min(real)), words(max(real))
    return "steady" if low == high else f"{low} to {high}"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _blank(width: int, height: int) -> list[list[Span]]:
    return [[Span(" " * width)] for _ in range(height)]


def _plot(values: Sequence[float], width: int, height: int, floor: float, top: float, signs: Signs) -> list[str]:
    """Rows of columns, the uppermost first. Every value that is there leaves a mark on the lowest row."""
    steps = len(signs.heights)
    reach = top - floor
    filled = []
    for value in values:
        if not math.isfinite(value):
            filled.append(0)
            continue
        share = min(max((value - floor) / reach, 0.0), 1.0) if reach > 0 else 0.0
        filled.append(max(1, round(share * height * steps)))
    rows = []
    for row in range(height - 1, -1, -1):
        cells = (min(max(units - row * steps, 0), steps) for units in filled)
        rows.append("".join(signs.heights[part - 1] if part else " " for part in cells).rjust(width))
    return rows


def strip(space: SpaceLevel, start: int, size: int, width: int, signs: Signs) -> list[Span]:
    """A map of a part of an address space: one column for each ``size / width`` bytes of it."""
    if size <= 0:
        return [Span(signs.free * width, "dim")]
    mapped, reserved = [0.0] * width, [0.0] * width
    cell = size / width
    for begin, length, kind in space.ranges:
        into = mapped if kind == "mapped" else reserved
        _share(into, (begin - start) / cell, (begin + length - start) / cell)
    spans: list[Span] = []
    for full, held in zip(mapped, reserved, strict=True):
        sign, style = _cell_of(full, held, signs)
        if spans and spans[-1].style == style:
            spans[-1] = Span(spans[-1].text + sign, style)
        else:
            spans.append(Span(sign, style))
    return spans


def _share(into: list[float], begin: float, end: float) -> None:
    """Add a range, in units of cells, to the cells that it touches."""
    first, last = max(int(begin), 0), min(math.ceil(end), len(into))
    for at in range(first, last):
        into[at] += min(end, at + 1) - max(begin, at)


def _cell_of(mapped: float, reserved: float, signs: Signs) -> tuple[str, str]:
    """What most of the cell is; the smallest mapping is still seen."""
    if mapped > 0.95:
        return signs.mapped, "info"
    if mapped > 0:
        return signs.some, "info"
    return (signs.reserved, "warn") if reserved > 0 else (signs.free, "dim")


def histogram(
    rows: Sequence[tuple[str, float, str]], width: int, signs: Signs, label: int = 12, most: float = 0.0
) -> list[list[Span]]:
    """(name, value, the value in words) as bars under each other, scaled to ``most`` or to the largest."""
    most = most or max((value for _, value, _ in rows), default=0.0)
    tail = max((len(words) for _, _, words in rows), default=0)
    room = max(width - label - tail - 3, 4)
    found = []
    for name, value, words in rows:
        line: Line = (
            *fit((Span(name),), label, right=True),
            Span(" "),
            *bar(value / most if most else 0.0, room, signs),
            Span(" " + words.rjust(tail)),
        )
        found.append(fit(line, width))
    return found
