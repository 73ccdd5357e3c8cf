"""Address spaces: what is mapped, how large the largest hole is, and when it will be used up."""

from __future__ import annotations

from accelctl.model.snapshot import SpaceLevel, key
from accelctl.render import units
from accelctl.render.layout import Line, Span
from accelctl.tui.charts import bar, chart, level, strip
from accelctl.tui.lines import beside, fit
from accelctl.tui.moment import Moment, age, filled, per_minute
from accelctl.tui.signs import Signs
from accelctl.tui.table import Column
from accelctl.tui.views.view import View, tallest

Row = SpaceLevel
SOON_S = 3600.0


def _used(row: Row) -> int | None:
    if row.mapped_bytes is None and row.reserved_bytes is None:
        return None
    return (row.mapped_bytes or 0) + (row.reserved_bytes or 0)


def _mapped(moment: Moment, row: Row, width: int) -> Line:
    if row.mapped_bytes is None:
        return (moment.gone("spaces", row, "mapped_bytes"),)
    if not row.size_bytes:
        return (Span(units.size(row.mapped_bytes)),)
    ratio = (_used(row) or 0) / row.size_bytes
    words = filled(row.mapped_bytes, row.size_bytes).rjust(17)
    return (*bar(ratio, width - 18, moment.signs, level(ratio)), Span(" " + words))


def _growth(moment: Moment, row: Row) -> float | None:
    return moment.past.growth(key("spaces", row.id, "mapped_bytes"))


def _growing(moment: Moment, row: Row, width: int) -> Line:
    growth = _growth(moment, row)
    if growth is None:
        return (Span(moment.dash, "dim"),)
    if growth > 0 and moment.past.rise(key("spaces", row.id, "mapped_bytes")) is not None:
        return (Span(f"{moment.signs.glyphs.warn} {per_minute(growth)}", "warn"),)
    return (Span(per_minute(growth)),)


def _full(moment: Moment, row: Row, width: int) -> Line:
    left = moment.past.full_in_s(row.id)
    if left is None:
        return (Span(moment.dash, "dim"),)
    return (Span(f"in {age(left)}", "error" if left < SOON_S else "warn"),)


def _bytes(title: str, name: str, drop: int = 0) -> Column:
    return Column(
        title, 8, lambda m, r, w: m.cell("spaces", r, name, units.size), lambda m, r: getattr(r, name), drop=drop
    )


COLUMNS = (
    Column("SPACE", 17, lambda m, r, w: (Span(r.id),), lambda m, r: r.id, high=30, right=False, falling=False),
    Column("MAPPED", 22, _mapped, lambda m, r: r.mapped_bytes, high=38, right=False),
    _bytes("RESERVED", "reserved_bytes", 3),
    _bytes("FREE", "free_bytes", 2),
    Column(
        "LARGEST HOLE", 12, lambda m, r, w: m.cell("spaces", r, "largest_hole_bytes", units.size),
        lambda m, r: r.largest_hole_bytes, drop=1,
    ),
    Column("GROWTH", 15, _growing, _growth, high=16),
    Column("FULL", 14, _full, lambda m, r: m.past.full_in_s(r.id), falling=False),
)  # fmt: skip


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """A map of the whole range, one of the part that is in use, and how it grew."""
    title = [Span(row.id, "bold"), Span(f"  {_ends(row.base, row.size_bytes)}", "dim")]
    lines = [fit(title, width), *_maps(moment, row, width)]
    room = height - len(lines) - 1
    if room < 3:
        return lines[:height]
    lines.append([])
    past = moment.past
    drawers = (("Mapped", "mapped_bytes"), ("Largest hole", "largest_hole_bytes"))
    half = (width - 3) // 2
    charts = [
        chart(
            title, past.values(key("spaces", row.id, name)), (half, tallest(room)), moment.signs, units.size,
            span_s=past.span_s(),
        )
        for title, name in drawers
    ]  # fmt: skip
    return [*lines, *beside(charts, [half, half])]


def _maps(moment: Moment, row: Row, width: int) -> list[list[Span]]:
    """Strips with their ends named; the second one only where the first shows next to nothing."""
    if not row.size_bytes:
        return [fit((Span("Its size is not told, so there is no map of it.", "dim"),), width)]
    if not row.ranges:
        return [fit((Span("Nothing of it is mapped or reserved." if _used(row) == 0 else
                          "Which parts are mapped is not told.", "dim"),), width)]  # fmt: skip
    signs = moment.signs
    lines = [strip(row, row.base, row.size_bytes, width, signs)]
    start, end = row.ranges[0][0], max(begin + length for begin, length, _ in row.ranges)
    if (end - start) < row.size_bytes / 2:
        words = f"the part in use: {_ends(start, end - start)}, {units.size(end - start)}"
        lines += [fit((Span(words, "dim"),), width), strip(row, start, end - start, width, signs)]
    return [*lines, fit(_legend(signs), width)]


def _legend(signs: Signs) -> Line:
    return (
        Span(signs.mapped, "info"), Span(" mapped  ", "dim"), Span(signs.some, "info"), Span(" in part  ", "dim"),
        Span(signs.reserved, "warn"), Span(" reserved  ", "dim"), Span(signs.free, "dim"), Span(" free", "dim"),
    )  # fmt: skip


def _ends(start: int, size: int | None) -> str:
    return f"{start:#x} on" if size is None else f"{start:#x} to {start + size - 1:#x}"


SPACES = View(
    "spaces",
    "Address space",
    "spaces",
    COLUMNS,
    below,
    "No address space is told by any driver or service here.",
    wants=11,
)
