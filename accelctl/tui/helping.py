"""The help of the dashboards: every key, and the words that are not plain."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.render.layout import Line, Span
from accelctl.tui.lines import wrapped

LABEL = 16
MOUSE = (
    "The mouse belongs to this program; Shift (Option on a Mac) gives it back to the terminal for selecting text, and "
    "--no-mouse does so for good. After kill -9 the terminal stays as it is: type reset."
)

KEYS = (
    ("1 to 6, Tab", "another screen"),
    ("Up, Down, j, k", "choose a row; also PgUp, PgDn, Home, End and the mouse"),
    ("Enter", "everything about the row: each number's source, each absence's reason"),
    ("s", "sort by the next column; after the last one by none"),
    ("S", "turn the order round"),
    ("z", "only the table, and back"),
    ("/", "filter: 0000:03:00.0, driver=xe, chip=amdgpu, sim:0, pid=4242, session=7; a blank means or, a comma and"),
    ("Space", "stop and go on; what happens meanwhile is not lost to the charts"),
    ("Left, Right", "in a recording: 10 seconds back or on; with Shift a minute"),
    ("y", "copy the row: sent to the terminal (OSC 52), which may or may not take it"),
    ("w", "write this screen as text into a new file in this folder"),
    ("?, Esc", "this help; back"),
    ("q, Ctrl-C", "quit"),
)

WORDS = (
    ("asleep", "suspended; nothing that could wake it is read"),
    ("hung", "a read did not come back: it is left alone and tried again later"),
    ("denied", "this user may not read it; Enter says what would give the right"),
    ("not visible", "processes that this user may not look into: sudo $(command -v accelctl) top shows all of them"),
    ("no owner", "the device counts it as used, and no process that may be seen holds it"),
    ("cached", "kept by a pool for the next allocation"),
    ("highest", "the most that a pool has had at a time since it began"),
    ("frag", "fragmentation: the part of what a pool hands out that was not asked for, since sizes are rounded up"),
    ("hits", "the share of allocations that were served out of what was cached"),
    ("growth", "over the last minute; with a sign before it: it rises steadily, and not by chance"),
    ("leak?", "the memory of a process grows steadily, and not by chance"),
    ("full in", "when the address space is used up, at its growth of now"),
)


def helping(width: int) -> list[Line]:
    """All lines of it."""
    lines: list[Line] = [(Span("Keys", "bold"),), *_listed(KEYS, width)]
    lines += [(), (Span("Words", "bold"),), *_listed(WORDS, width), ()]
    return [*lines, *((Span(line),) for line in wrapped(MOUSE, width))]


def _listed(rows: Sequence[tuple[str, str]], width: int) -> list[Line]:
    found: list[Line] = []
    for name, text in rows:
        for number, part in enumerate(wrapped(text, max(width - LABEL - 2, 20))):
            found.append((Span(f"  {name if number == 0 else '':<{LABEL}}", "command"), Span(part)))
    return found
