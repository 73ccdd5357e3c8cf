"""The overview: a row for each device, with its findings beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from accelctl.model.snapshot import DeviceLevel, ProcessLevel, key
from accelctl.render import units
from accelctl.render.layout import Line, Span
from accelctl.tui.charts import bar, chart, histogram, level
from accelctl.tui.lines import beside, fit
from accelctl.tui.moment import Moment, filled, percent, row_id
from accelctl.tui.table import Column
from accelctl.tui.views.events import clock
from accelctl.tui.views.view import View, side_by_side

Row = DeviceLevel
LEVELS = ("info", "warn", "error", "critical")


def _name(moment: Moment, row: Row, width: int) -> Line:
    mark = (Span("simulated ", "warn"),) if row.simulated else ()
    return (*mark, Span(row.name or row.driver or row.chip or moment.dash))


def _busy(moment: Moment, row: Row, width: int) -> Line:
    if row.asleep:
        return (Span("asleep", "dim"),)
    if row.busy_ratio is None:
        return (moment.gone("devices", row, "busy_ratio"),)
    return (*bar(row.busy_ratio, width - 6, moment.signs), Span(percent(row.busy_ratio).rjust(6)))


def _memory(moment: Moment, row: Row, width: int) -> Line:
    used, total = row.memory_used_bytes, row.memory_total_bytes
    if used is None and row.memory_attributed_bytes:
        return (Span(f"{units.size(row.memory_attributed_bytes)} by processes"),)
    if used is None:
        return (moment.gone("devices", row, "memory_used_bytes"),)
    if not total:
        return (Span(units.size(used)),)
    words = filled(used, total).rjust(17)
    return (*bar(used / total, width - 18, moment.signs, level(used / total)), Span(" " + words))


def _temperature(moment: Moment, row: Row, width: int) -> Line:
    return moment.cell("devices", row, "temperature_celsius", lambda v: units.celsius(v, moment.signs.glyphs.degree))


def _findings(moment: Moment, row: Row, width: int) -> Line:
    """The worst first; where they have no room all of them are counted by level."""
    if not row.findings:
        return (Span(moment.dash, "dim"),)
    whole: list[Span] = []
    for grade, rule in row.findings:
        whole += [Span(" ")] if whole else []
        whole.append(Span(f"{getattr(moment.signs.glyphs, grade, '')} {grade} {rule}", grade))
    if sum(len(span.text) for span in whole) <= width:
        return whole
    counts = [(grade, sum(1 for one, _ in row.findings if one == grade)) for grade in reversed(LEVELS)]
    first, number = next((grade, number) for grade, number in counts if number)
    rest = len(row.findings) - number
    more = f" +{rest}" if rest else ""
    return (Span(f"{getattr(moment.signs.glyphs, first)} {number} {first}{more}", first),)


def _worst(moment: Moment, row: Row) -> tuple[int, int] | None:
    grades = [LEVELS.index(grade) for grade, _ in row.findings if grade in LEVELS]
    return (max(grades), len(grades)) if grades else None


def _used_ratio(moment: Moment, row: Row) -> float | None:
    if row.memory_used_bytes is None or not row.memory_total_bytes:
        return None
    return row.memory_used_bytes / row.memory_total_bytes


COLUMNS = (
    Column("DEVICE", 12, lambda m, r, w: (Span(r.id),), lambda m, r: r.id, high=14, right=False, falling=False),
    Column("NAME", 12, _name, lambda m, r: r.name or None, high=26, right=False, drop=4, falling=False),
    Column("BUSY", 12, _busy, lambda m, r: r.busy_ratio, high=22, right=False),
    Column("MEMORY", 22, _memory, _used_ratio, high=37, right=False),
    Column("TEMP", 6, _temperature, lambda m, r: r.temperature_celsius),
    Column("POWER", 6, lambda m, r, w: m.cell("devices", r, "power_mw", units.watts), lambda m, r: r.power_mw),
    Column("CLOCK", 7, lambda m, r, w: m.cell("devices", r, "clock_hz", units.hertz), lambda m, r: r.clock_hz, drop=3),
    Column(
        "FAN",
        8,
        lambda m, r, w: m.cell("devices", r, "fan_rpm", lambda v: f"{v:.0f} rpm"),
        lambda m, r: r.fan_rpm,
        least=150,
    ),
    Column("USERS", 5, lambda m, r, w: (Span(str(r.clients)),), lambda m, r: r.clients, least=140),
    Column("FINDINGS", 10, _findings, _worst, high=60, right=False),
)


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """What a table cannot show: how it came here."""
    title: list[Span] = [Span(row.id, "bold"), Span(f"  {row.name}" if row.name else "")]
    title += [Span(f"  driver {row.driver}", "dim")] if row.driver else []
    title += [Span(f"  {row.power_state}", "dim")] if row.power_state else []
    title += [Span("  simulated", "warn")] if row.simulated else []
    lines = [fit(title, width)]
    if row.asleep:
        words = "It sleeps. Nothing that could wake it is read; numbers come when something else wakes it."
        return [*lines, fit((Span(words),), width)]
    missing = _missing(moment, row)
    account = [Span(f"{missing}; ", "warn")] if missing else []
    said = "not attributed" in missing
    lines.append(fit((*account, Span(_holdings(row, said=said), "dim")), width))
    total = row.memory_total_bytes
    drawers = [
        partial(_history, moment, row, "busy_ratio", "Busy", percent, 1.0),
        partial(_history, moment, row, "memory_used_bytes", "Memory", units.size, total),
        partial(_history, moment, row, "power_mw", "Power", units.watts, None),
        partial(_history, moment, row, "temperature_celsius", "Temperature", _degrees(moment), None),
    ]
    there: list[Callable[[tuple[int, int]], list[list[Span]]]] = [
        draw for draw in drawers if getattr(row, draw.args[2]) is not None
    ]
    if any(engine.device == row.id for engine in moment.snapshot.engines):
        there.append(partial(_engines, moment, row))
    lines += side_by_side(there, width, height - len(lines)) if there else []
    return [*lines, *_lists(moment, row, width, height - len(lines))]


def _lists(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """Where there is room left: who holds most of it, and what happened to it last."""
    if height < 4:
        return []
    half = (width - 3) // 2
    holders = sorted(
        ((sum(size for device, _, size in one.memory if device == row.id), one) for one in moment.snapshot.processes),
        key=lambda pair: -pair[0],
    )
    left = [fit((Span("Who holds most of it", "bold"),), half)]
    for size, one in holders[: height - 1]:
        if size:
            left.append(
                fit((*fit((Span(f"{one.pid:<8} {one.name}"),), half - 12), Span(units.size(size).rjust(12))), half)
            )
    marks = [mark for _, mark in moment.happened if mark.device == row.id]
    right = [fit((Span("What happened to it", "bold"),), half)]
    for mark in reversed(marks[1 - height :]):
        right.append(fit((Span(f"{clock(mark.at_ns)} {mark.level:<8} ", mark.level), Span(mark.text)), half))
    return beside([left if len(left) > 1 else [], right if marks else []], [half, half])


def _missing(moment: Moment, row: Row) -> str:
    """What is not in the sums, and why."""
    parts = []
    if moment.snapshot.hidden_processes:
        from accelctl.telemetry.clientrows import missing  # brings the sampler's half of telemetry along

        parts.append(missing(moment.snapshot, row.id))
    silent = sum(1 for one in moment.snapshot.processes if _silent(moment, row, one))
    if silent:
        parts.append(f"memory of {units.counted(silent, 'process', 'processes')} not known")
    return "; ".join(parts)


def _silent(moment: Moment, row: Row, process: ProcessLevel) -> bool:
    """Whether it holds something of the device, and nobody tells how much."""
    told = any(device == row.id for device, _, _ in process.memory)
    return row.id in process.devices and not told and key("processes", row_id(process), "memory") in moment.absences


def _holdings(row: Row, said: bool) -> str:
    """What is held of it, on one line; ``said``: what nobody holds was said already."""
    told = [
        (row.memory_attributed_bytes, "by processes", units.size),
        (None if said else row.memory_unattributed_bytes, "without an owner", units.size),
        (row.mapped_bytes, "mapped", units.size),
    ]
    words = [f"{shown(value)} {what}" for value, what, shown in told if value is not None]
    words.append(f"{units.counted(row.open_files, 'open file')} of {units.counted(row.clients, 'user')}")
    words += [units.counted(row.handles, "handle")] if row.handles is not None else []
    return ", ".join(words)


def _engines(moment: Moment, row: Row, size: tuple[int, int]) -> list[list[Span]]:
    """Each by itself: their sum means nothing."""
    width, height = size
    found = [
        (engine.id.removeprefix(row.id).strip(" /"), engine.busy_ratio or 0.0, _ratio(moment, engine.busy_ratio))
        for engine in moment.snapshot.engines
        if engine.device == row.id
    ]
    found.sort(key=lambda engine: -engine[1])
    label = min(max(len(name) for name, _, _ in found), 16)
    bars = histogram(found[: height - 1], width, moment.signs, label, most=1.0)
    return [fit((Span("Engines", "bold"),), width), *bars]


def _ratio(moment: Moment, ratio: float | None) -> str:
    return moment.dash if ratio is None else percent(ratio)


def _degrees(moment: Moment) -> Callable[[float], str]:
    return lambda value: units.celsius(value, moment.signs.glyphs.degree)


def _history(
    moment: Moment,
    row: Row,
    name: str,
    title: str,
    words: Callable[[float], str],
    top: float | None,
    size: tuple[int, int],
) -> list[list[Span]]:
    values = moment.past.values(key("devices", row.id, name))
    return chart(title, values, size, moment.signs, words, top=top, span_s=moment.past.span_s())


OVERVIEW = View(
    "overview",
    "Overview",
    "devices",
    COLUMNS,
    below,
    "No accelerator is here. `accelctl probe` says what it looked for; `accelctl top --demo` shows a simulated one.",
)
