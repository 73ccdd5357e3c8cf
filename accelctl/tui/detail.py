"""Everything about one row: each number in full, where it comes from, or why it is missing and what would give it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from accelctl.model.reading import ABSENCES
from accelctl.model.snapshot import key
from accelctl.render import units
from accelctl.render.layout import Span, clean
from accelctl.tui.lines import fit, wrapped
from accelctl.tui.moment import Moment, age, percent, row_id, span_of
from accelctl.tui.views import events
from accelctl.tui.views.processes import STATES

UNITS = ("bytes", "ns", "mw", "hz", "celsius", "rpm", "ratio")
LABEL = 19
GAP = 2
"""Between the longest label and what it is about, at least."""
INDENT = 4
TICKS = 100
"""A second, of those in /proc/PID/stat: the same on every machine that the kernel still knows (USER_HZ), so also on the
one that a recording is from."""


class Last(NamedTuple):
    """A row that is not there any more, and when it was."""

    id: str
    row: Any
    moment: Moment


def detail(moment: Moment, table: str, row: Any, width: int) -> list[list[Span]]:
    """All lines of it; whoever shows them scrolls."""
    if isinstance(row, Last):
        since = f"Not there now. These are its last numbers, of {events.clock(row.moment.snapshot.taken_ns)}:"
        gone = [[Span(line, "warn")] for line in wrapped(since, max(width, 20))]
        return [*gone, [], *detail(row.moment, table, row.row, width)]
    if isinstance(row, events.Row):
        moment_of = f"{events.clock(row.mark.at_ns)} ({row.mark.at_ns} ns since 1970)"
        return _fields(moment, "events", row.mark, width, {"at_ns": moment_of}, row.id)
    lines = [fit((Span(f"{table}/{row_id(row)}", "bold"),), width), []]
    return lines + _fields(moment, table, row, width, {}, row_id(row))


def _fields(
    moment: Moment, table: str, row: Any, width: int, instead: dict[str, str], identity: str
) -> list[list[Span]]:
    lines: list[list[Span]] = []
    wide = max(LABEL, *(len(_label(field.name)) + GAP for field in dataclasses.fields(row)))
    for field in dataclasses.fields(row):
        name = field.name
        value = instead.get(name, getattr(row, name))
        for number, text in enumerate(_texts(name, value, width - wide)):
            label = _label(name) if number == 0 else ""
            lines.append([*fit((Span(label),), wide, right=False), Span(text, "" if value is not None else "warn")])
        lines += _because(moment, key(table, identity, name), value, width)
    return lines


def _label(name: str) -> str:
    """The field's name as words, without its unit."""
    words = name.split("_")
    return " ".join(words[:-1] if words[-1] in UNITS and len(words) > 1 else words)


def _because(moment: Moment, series: str, value: Any, width: int) -> list[list[Span]]:
    """The source of a number; of an absence what it means, what the kernel said, and what to type."""
    source, why = moment.sources.get(series), moment.absences.get(series)
    told: list[tuple[str, str]] = []
    if value is None and why is not None:
        told.append(("because " + ABSENCES.get(why.kind, why.kind) + (f": {why.detail}" if why.detail else ""), "dim"))
        told += [(f"try: {why.fix}", "command")] if why.fix else []
    elif source is not None:
        told.append((f"from {source}", "dim"))
    room = max(width - INDENT, 20)
    return [[Span(" " * INDENT), Span(line, style)] for text, style in told for line in wrapped(text, room)]


def _texts(name: str, value: Any, width: int) -> list[str]:
    """A value in full, on as many lines as it takes."""
    if value is None:
        return ["not known"]
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, tuple):
        return [clean(_parts(name, one if isinstance(one, tuple) else (one,))) for one in value] or ["none"]
    if name == "state" and value in STATES:
        return [f"{value} ({STATES[value]})"]
    if isinstance(value, (int, float)):
        return [number(name, value)]
    return wrapped(str(value), max(width, 20)) if value else ["not told"]


def _parts(name: str, parts: tuple[Any, ...]) -> str:
    """One entry of a list, its number with its unit."""
    *words, last = parts
    if name in ("memory", "mapped"):
        return " ".join([*map(str, words), number("bytes", last)])
    if name == "engines":
        return " ".join([*map(str, words), percent(last)])
    if name == "ranges":
        start, size, kind = parts
        return f"{start:#x} to {start + size - 1:#x} {kind}, {units.size(size)}"
    if name in ("size_classes", "ops"):
        kind, made, freed = parts
        shown = units.size(kind) if name == "size_classes" else kind
        return f"{shown}: {made:,} allocations, {freed:,} frees, {made - freed:,} held"
    return " ".join(map(str, parts))


def number(name: str, value: float) -> str:
    """A number with all its digits and, where that helps, in a unit for people."""
    unit = name.rsplit("_", 1)[-1]
    if unit == "bytes":
        return f"{value:,} bytes" + (f" ({units.size(value)})" if value >= 1024 else "")
    if unit == "ns":
        return f"{value:,.0f} ns ({span_of(value)})"
    if unit == "mw":
        return f"{value:,.0f} mW ({units.watts(value)})"
    if unit == "hz":
        return f"{value:,.0f} Hz ({units.hertz(value)})"
    if unit == "ratio":
        return f"{value:.4f} ({percent(value)})"
    if name == "base":
        return f"{value:#x}"
    if name == "started":
        return f"{value} clock ticks after boot ({age(value / TICKS)})"
    plain = str(value) if name in ("pid", "uid") else f"{value:,}"
    return plain + {"celsius": " degrees C", "rpm": " rpm"}.get(unit, "")
