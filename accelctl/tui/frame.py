"""The whole screen as lines: title, tabs, what needs attention, the dashboard, keys, and what watching costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelctl.model.snapshot import ProcessLevel, Snapshot, SourceLevel
from accelctl.render import units
from accelctl.render.layout import Line, Span, clean, line_cells
from accelctl.tui import table
from accelctl.tui.charts import as_far
from accelctl.tui.detail import detail
from accelctl.tui.helping import helping
from accelctl.tui.lines import fit, in_ascii, wrapped
from accelctl.tui.moment import Moment, age, percent, row_id
from accelctl.tui.screens import LEAST
from accelctl.tui.state import DETAIL, HELP, TABLE, VIEWS, State
from accelctl.tui.views.events import clock
from accelctl.tui.views.processes import unknown

ALARM_SHARE = 12
"""One line of so many may tell what hangs."""

HEAD = FOOT = 2
"""Lines above and below the body."""

SERVICE = "service "
"""Begins the name of a source that is a service."""
SILENT, NO_ANSWER = "does not answer", "has not answered"

KEYS = (
    ("?", "help"), ("/", "filter"), ("s", "sort"), ("Enter", "why"), ("Space", "stop"), ("y", "copy"), ("q", "quit"),
)  # fmt: skip


def draw(state: State, width: int, height: int) -> list[Line]:
    """Exactly ``height`` lines of ``width`` columns."""
    lines = _drawn(state, width, height)
    return lines if state.signs.unicode else [in_ascii(line) for line in lines]


def _drawn(state: State, width: int, height: int) -> list[Line]:
    if width < LEAST[0] or height < LEAST[1]:
        return _filled([(Span(f"{LEAST[0]} columns and {LEAST[1]} lines at least"),)], width, height)
    moment = state.moment()
    head: list[Line] = [_title(state, width), _tabs(state, width)]
    alarms = _alarms(state, width, height)[: max(height - 14, 1)]
    foot = [_keys(state, width), _status(state, width)]
    room = height - len(head) - len(alarms) - len(foot)
    return [*head, *alarms, *_filled(_body(state, moment, width, room), width, room), *foot]


def row_at(state: State, width: int, height: int, y: int) -> str | None:
    """The id of the row on that line of the screen, for the mouse."""
    moment = state.moment()
    if moment is None or state.over != TABLE:
        return None
    rows = state.rows(moment)
    alarms = len(_alarms(state, width, height)[: max(height - 14, 1)])
    at = y - HEAD - alarms - 1
    upper, _ = _split(state, len(rows), height - HEAD - alarms - FOOT)
    at_row = state.place.first + at
    return row_id(rows[at_row]) if 0 <= at < upper - 1 and at_row < len(rows) else None


def _filled(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    blank: list[Line] = [[Span(" " * width)]] * (height - len(lines))
    return [*(fit(line, width) for line in lines[:height]), *blank]


# -- above -------------------------------------------------------------------------------------------------------------


def _title(state: State, width: int) -> Line:
    left: list[Span] = [Span(" accelctl top ", "title"), Span(f" {state.title}", "bold")]
    shown = state.snapshot
    if shown is not None and shown.simulated and "simulated" not in state.title:
        whole = all(device.simulated for device in shown.devices)
        left.append(Span("  simulated" if whole else "  partly simulated", "warn"))
    if state.wanted.text:
        left += [Span("  only ", "dim"), Span(state.wanted.text, "info")]
        if state.wanted.owners and state.view.table == "devices":
            left.append(Span(": whole devices of which it holds something", "dim"))
    right: list[Span] = []
    if state.paused:
        behind = (state.newest.taken_ns - shown.taken_ns) / 1e9 if shown and state.newest else 0.0
        right.append(Span(f"stopped{f' {age(behind)} ago' if behind >= 1 else ''}  ", "warn"))
    if state.ended:
        right.append(Span("end of the recording  ", "warn"))
    if state.silent_s:
        right.append(Span(f"{age(state.silent_s)} old  ", "warn"))
    if shown is not None:
        right.append(Span(f"{clock(shown.taken_ns)} "))
    return _ends(left, right, width)


def _tabs(state: State, width: int) -> Line:
    """Numbers are the keys. The one in sight has brackets, for terminals without styles."""
    line: list[Span] = [Span(" ")]
    for number, view in enumerate(VIEWS):
        words = f"{number + 1} {view.title}"
        line.append(Span(f"[{words}]", "tab") if number == state.screen else Span(f" {words} ", "dim"))
    return fit(line, width)


def tab_at(column: int) -> int | None:
    """The dashboard whose tab stands in that column of the second line."""
    end = 1
    for number, view in enumerate(VIEWS):
        end += len(f"{number + 1} {view.title}") + 2
        if column < end:
            return number
    return None


def _alarms(state: State, width: int, height: int) -> list[Line]:
    """What makes numbers stand still: named, with where it hangs and since when; those without room by name only."""
    found: list[str] = []
    more = state.signs.glyphs.ellipsis
    if state.problem:
        found += wrapped(state.problem, width - 4)
    if state.snapshot is not None:
        sick = [source for source in state.snapshot.health if source.state == "quarantined"]
        room = max(height // ALARM_SHARE, 2)
        whole = sick if len(sick) <= room else sick[: room - 1]
        found += [_sick(source, state.snapshot, width - 4, more) for source in whole]
        rest = sick[len(whole) :]
        found += [f"and {len(rest)} more: {', '.join(source.id for source in rest)}"] if rest else []
        found += _away(state.snapshot)
    return [fit((Span(f" {state.signs.glyphs.warn} {line}", "warn"),), width) for line in found]


def _away(snapshot: Snapshot | None) -> list[str]:
    """Services that are not there, or not there yet: without a word their rows would just be missing."""
    found: list[str] = []
    if snapshot is None:
        return found
    for source in snapshot.health:
        if not source.id.startswith(SERVICE):
            continue
        if source.state == "starting":
            found.append(f"the {source.id} is starting")
        elif source.state == "absent":
            since = (snapshot.taken_ns - source.since_ns) / 1e9
            for_s = f" for {age(since)}" if source.since_ns and since >= 1 else ""
            why = "" if SILENT in source.path else clean(source.path)
            found.append(f"{source.id} {NO_ANSWER if for_s else SILENT}{for_s}" + (f": {why}" if why else ""))
    return found


def _sick(source: SourceLevel, snapshot: Snapshot, width: int, more: str) -> str:
    """The end of a long path says more than its beginning."""
    since = (snapshot.taken_ns - source.since_ns) / 1e9
    known = source.since_ns and since >= 1
    words = f"{source.id} has hung for {age(since)}" if known else f"{source.id} hangs"
    if source.retry_ns > snapshot.taken_ns:
        words += f", tried again in {age((source.retry_ns - snapshot.taken_ns) / 1e9)}"
    waits = f" ({source.wchan})" if source.wchan else ""
    room = width - len(words) - 2
    path = clean(source.path)
    if len(path + waits) > room:
        waits = ""
    if len(path) > room:
        path = more + path[len(path) - max(room - len(more), 0) :]
    return f"{words}: {path}{waits}" if path and room > 12 else words


# -- the body ----------------------------------------------------------------------------------------------------------


def _body(state: State, moment: Moment | None, width: int, height: int) -> Sequence[Line]:
    if state.over == HELP:
        return _scrolled(state, helping(width - 2), height)
    if moment is None:
        return [(), (Span(" waiting for the first numbers", "dim"),)]
    rows = state.rows(moment)
    if not rows:
        return _nothing(state, width)
    if state.over == DETAIL:
        row = rows[table.chosen_at(rows, state.place)]
        return _scrolled(
            state, [*detail(moment, state.view.table, row, width - 2), *_unknown(moment, row, width)], height
        )
    return _dashboard(state, moment, rows, width, height)


def _unknown(moment: Moment, row: Any, width: int) -> list[Line]:
    """Why memory of a process is not known: a list that is empty, or lacks an entry, does not say so by itself."""
    if not isinstance(row, ProcessLevel) or not (words := unknown(moment, row)):
        return []
    return [(), *((Span(line, "warn"),) for line in wrapped(f"Memory not known: {words}", width - 2))]


def _nothing(state: State, width: int) -> list[Line]:
    words = state.view.nothing
    away = _away(state.snapshot)
    if away and state.snapshot is not None:  # who tells of nothing does not say that there is nothing
        others = any(not source.id.startswith(SERVICE) for source in state.snapshot.health)
        words = " ".join([*([words] if others else []), *(f"{line[0].upper()}{line[1:]}." for line in away)])
    if state.wanted.text:
        words = f"Nothing here is {state.wanted.text}. Esc takes the filter away."
    return [(), *((Span(f" {line}"),) for line in wrapped(words, width - 2))]


def _dashboard(state: State, moment: Moment, rows: list[Any], width: int, height: int) -> list[Line]:
    """The table, and below it as much about the chosen row as there is room for."""
    view, place = state.view, state.place
    upper, lower = _split(state, len(rows), height)
    row = rows[table.chosen_at(rows, place)]
    found: list[Line] = list(table.draw(rows, view.columns, place, moment, (width, upper)))
    if lower:
        rule = state.signs.glyphs.horizontal
        found.append(fit((Span(_rule(rows, place, upper - 1, rule, width), "dim"),), width))
        found += [(Span(" "), *line) for line in view.below(moment, row, width - 2, lower)]
    return found


def _split(state: State, rows: int, height: int) -> tuple[int, int]:
    """Lines of the table with its header, and of what stands below it."""
    wants = state.view.wants
    if state.only_table:
        return min(height, rows + 1), 0
    least = min(rows + 1, 5)
    lower = max(height - rows - 2, min(wants, height - least - 1))
    lower = 0 if lower < min(wants, 5) else lower
    return min(height - lower - (1 if lower else 0), rows + 1), lower


def _rule(rows: list[Any], place: table.Place, shown: int, rule: str, width: int) -> str:
    """The line between table and the rest; it tells of rows that are out of sight."""
    if len(rows) <= shown:
        return rule * width
    words = f" {place.first + 1} to {min(place.first + shown, len(rows))} of {len(rows)} "
    return (rule * 2 + words).ljust(width, rule)


def _scrolled(state: State, lines: Sequence[Line], height: int) -> list[Line]:
    state.scroll = min(max(state.scroll, 0), max(len(lines) - height, 0))
    return [(Span(" "), *line) for line in lines[state.scroll : state.scroll + height]]


# -- below -------------------------------------------------------------------------------------------------------------


def _keys(state: State, width: int) -> Line:
    if state.asked is not None:
        hint = "" if state.asked else "  driver=xe, 0000:03:00.0, pid=4242, session=7"
        return fit((Span(" filter: ", "command"), Span(f"{state.asked}_"), Span(hint, "dim")), width)
    if state.said:
        return fit((Span(f" {state.said}", "info"),), width)
    line: list[Span] = [Span(" ")]
    keys = KEYS if state.over == TABLE else (("Esc", "back"), ("Up/Down", "scroll"), ("q", "quit"))
    if state.seekable and state.over == TABLE:
        keys = (*keys[:-1], ("Left/Right", "seek"), keys[-1])
    for name, text in keys:
        line += [Span(name, "command"), Span(f" {text}  ", "dim")]
    return fit(line, width)


def _status(state: State, width: int) -> Line:
    """What watching costs, and what could not be looked at."""
    shown = state.snapshot
    if shown is None:
        return fit((), width)
    cost, hidden = shown.cost, shown.hidden_processes
    right = [Span(f"{units.counted(hidden, 'process', 'processes')} not visible ", "warn")] if hidden else []
    parts = [
        Span(f" own cost {percent(cost.cpu_ratio)} of a core", "dim"),
        Span(f", {units.counted(cost.reads, 'read')} in {cost.tick_ns / 1e6:.1f} ms", "dim"),
        Span(f", every {cost.period_ns / 1e9:.1f} s", "dim"),
        Span(f", {units.size(cost.memory_bytes)}" if cost.memory_bytes else "", "dim"),
    ]
    return _ends(as_far(parts, width - line_cells(right) - 1), right, width)


def _ends(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """Something at both ends of a line; the left one is cut where they meet."""
    room = max(width - line_cells(right), 0)
    return fit((*fit(left, room), *right), width)
