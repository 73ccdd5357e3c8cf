"""What a dashboard is drawn from: one Snapshot, what was before it, and how numbers of it are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from accelctl.model.snapshot import EventMark, Gone, Snapshot, key
from accelctl.render import units
from accelctl.render.layout import Span
from accelctl.telemetry.history import History
from accelctl.tui.signs import Signs

SHORT = {
    "asleep": "asleep",
    "no_permission": "denied",
    "not_allowed": "denied",
    "timed_out": "hung",
    "hidden_by_container": "hidden",
    "no_driver": "no drv",
    "unreadable": "error",
    "malformed": "error",
}
"""Why there is no number, in one word, where somebody can do something about it; else a dash. Enter tells all of it."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """One picture's worth of data. ``sources`` and ``absences`` are all that were told so far."""

    snapshot: Snapshot
    past: History
    signs: Signs
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    absences: dict[str, Gone] = dataclasses.field(default_factory=dict)
    happened: Sequence[tuple[int, EventMark]] = ()
    """Events so far with their numbers, oldest first."""

    def gone(self, table: str, row: Any, name: str) -> Span:
        """What stands where a number is missing."""
        why = self.absences.get(key(table, row_id(row), name))
        return Span(SHORT.get(why.kind, self.dash) if why else self.dash, "dim")

    @property
    def dash(self) -> str:
        """For a number that is not to be had."""
        return self.signs.glyphs.dash

    def cell(self, table: str, row: Any, name: str, words: Any = str, style: str = "") -> tuple[Span, ...]:
        """A number in words, or why there is none."""
        value = getattr(row, name)
        return (self.gone(table, row, name) if value is None else Span(words(value), style),)


def row_id(row: Any) -> str:
    """How a row is called in keys of series."""
    return f"{row.pid}@{row.started}" if hasattr(row, "pid") else str(row.id)


def filled(used: float, total: float) -> str:
    """A part of a whole in 17 letters at most: ``7.5/16.0 GiB``, and ``73.0 MiB/16.0 GiB`` where it is small."""
    return (
        f"{units.size(used)}/{units.size(total)}"
        if used * 10 < total
        else units.share(used, total).replace(" of ", "/")
    )


def percent(ratio: float) -> str:
    """A ratio as whole percents; below one percent it is not nothing."""
    return "<1 %" if 0 < ratio < 0.005 else f"{ratio * 100:.0f} %"


def count(number: float) -> str:
    """A count of five letters at most: 12k is enough beside a chart, the detail view has all digits."""
    for step, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= step:
            scaled = number / (1e3 if sign == "k" else step)
            return f"{scaled:.1f}{sign}" if abs(scaled) < 100 else f"{scaled:.0f}{sign}"
    return f"{number:.0f}"


def per_second(rate: float) -> str:
    """A rate of a count."""
    return f"{rate:.1f}/s" if 0 < rate < 10 else f"{count(rate)}/s"


def per_minute(growth: float) -> str:
    """A growth of bytes; what is below a page a minute is none."""
    if abs(growth) < 4096:
        return "steady"
    return f"{'+' if growth > 0 else '-'}{units.size(abs(growth))}/min"


def span_of(nanoseconds: float) -> str:
    """A duration in the unit that suits it."""
    if nanoseconds < 1e3:
        return f"{nanoseconds:.0f} ns"
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.0f} us"
    if nanoseconds < 1e9:
        return f"{nanoseconds / 1e6:.1f} ms"
    return age(nanoseconds / 1e9)


def age(seconds: float) -> str:
    """A time that passed, or that is left: at most two units."""
    whole = int(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= 2 * size or (unit != "d" and whole >= size):
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s" if seconds != whole and seconds < 10 else f"{whole} s"


def pid_of(text: str) -> int:
    """The number of "pid 4242 python3"; 0 where it is no process's name."""
    word, _, rest = text.partition(" ")
    number = rest.partition(" ")[0]
    return int(number) if word == "pid" and number.isdecimal() and len(number) < 20 else 0
