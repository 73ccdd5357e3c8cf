"""Processes: what each holds of which device, whether that grows, and who is stuck."""

from __future__ import annotations

from accelctl.model.reading import ABSENCES
from accelctl.model.snapshot import ProcessLevel, QueueLevel, key
from accelctl.render import units
from accelctl.render.layout import Line, Span
from accelctl.tui.charts import chart, histogram
from accelctl.tui.lines import beside, fit
from accelctl.tui.moment import Moment, age, count, per_minute, percent, pid_of, row_id
from accelctl.tui.table import Column
from accelctl.tui.views.view import View, tallest

Row = ProcessLevel
STUCK = "D"
"""In the kernel and not to be interrupted: a driver does not answer it."""
STATES = {"R": "runs", "S": "sleeps", "D": "stuck", "Z": "zombie", "T": "stopped", "t": "traced", "I": "idle"}


def total(row: Row) -> int:
    """Memory of all devices and regions together."""
    return sum(size for _, _, size in row.memory)


def _busiest(row: Row) -> float | None:
    return max((ratio for _, _, ratio in row.engines), default=None)


def _state(moment: Moment, row: Row, width: int) -> Line:
    if row.state == STUCK:
        return (Span(f"{moment.signs.glyphs.error} stuck", "error"),)
    return (Span(STATES.get(row.state, row.state or moment.dash), "dim"),)


def _engines(moment: Moment, row: Row, width: int) -> Line:
    best = max(row.engines, key=lambda engine: engine[2], default=None)
    return (Span(moment.dash, "dim"),) if best is None else (Span(f"{best[1]} {percent(best[2])}"),)


def queues(moment: Moment, row: Row) -> list[QueueLevel]:
    """Those that are for it, as far as anybody says whose they are."""
    return [queue for queue in moment.snapshot.queues if pid_of(queue.process) == row.pid]


def _in_flight(moment: Moment, row: Row) -> int | None:
    found = [queue.running for queue in queues(moment, row) if queue.running is not None]
    return sum(found) if found else None


def _queued(moment: Moment, row: Row, width: int) -> Line:
    running = _in_flight(moment, row)
    return (Span(moment.dash, "dim"),) if running is None else (Span(count(running)),)


def _growth(moment: Moment, row: Row) -> float | None:
    return moment.past.growth(key("processes", row_id(row), "memory"))


def known(moment: Moment, row: Row) -> int | None:
    """The same; None where nothing is told, which is not 0."""
    return None if not row.memory and key("processes", row_id(row), "memory") in moment.absences else total(row)


def _memory(moment: Moment, row: Row, width: int) -> Line:
    held = known(moment, row)
    return (moment.gone("processes", row, "memory") if held is None else Span(units.size(held)),)


def _growing(moment: Moment, row: Row, width: int) -> Line:
    growth = None if known(moment, row) is None else _growth(moment, row)
    if growth is None:
        return (Span(moment.dash, "dim"),)
    if growth > 0 and moment.past.leaks(row_id(row)):
        return (Span(f"{moment.signs.glyphs.warn} leak? {per_minute(growth)}", "warn"),)
    return (Span(per_minute(growth)),)


def _name(moment: Moment, row: Row, width: int) -> Line:
    return (Span(row.name or "?"), *((Span(" (container)", "dim"),) if row.container else ()))


def _devices(moment: Moment, row: Row, width: int) -> Line:
    first = row.devices[0] if row.devices else moment.dash
    return (Span(first), *((Span(f" +{len(row.devices) - 1}", "dim"),) if len(row.devices) > 1 else ()))


COLUMNS = (
    Column("PID", 7, lambda m, r, w: (Span(str(r.pid)),), lambda m, r: r.pid, falling=False),
    Column("PROCESS", 12, _name, lambda m, r: r.name or None, high=28, right=False, falling=False),
    Column(
        "UID", 5, lambda m, r, w: (Span(m.dash if r.uid is None else str(r.uid)),), lambda m, r: r.uid,
        high=6, drop=3, falling=False,
    ),
    Column("STATE", 8, _state, lambda m, r: r.state == STUCK, right=False),
    Column("DEVICE", 15, _devices, lambda m, r: r.devices, high=17, right=False, drop=1, falling=False),
    Column("MEMORY", 8, _memory, known),
    Column("GROWTH", 21, _growing, _growth, high=24),
    Column("ENGINE", 12, _engines, lambda m, r: _busiest(r), high=18),
    Column("QUEUED", 6, _queued, _in_flight, drop=1),
    Column("FILES", 5, lambda m, r, w: (Span(str(_sum(r.files))),), lambda m, r: _sum(r.files), drop=4),
    Column("MAPPED", 8, lambda m, r, w: (Span(units.size(_sum(r.mapped))),), lambda m, r: _sum(r.mapped), drop=2),
    Column("SHARES WITH", 11, lambda m, r, w: (Span(_others(r, w) or m.dash, "" if r.shared_with else "dim"),),
           lambda m, r: len(r.shared_with), high=24, drop=5, right=False),
)  # fmt: skip


def _sum(pairs: tuple[tuple[str, int], ...]) -> int:
    return sum(number for _, number in pairs)


def _others(row: Row, width: int) -> str:
    return ", ".join(map(str, row.shared_with))


def below(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """Its memory by region and its engines, and how its memory grew."""
    title = [Span(f"{row.pid} {row.name}", "bold"), Span(f"  on {', '.join(row.devices)}", "dim")]
    if row.state == STUCK:
        where = f" in {row.wchan}" if row.wchan else ""
        title.append(Span(f"  {moment.signs.glyphs.error} stuck in the kernel{where}: no signal reaches it", "error"))
    if (found := moment.past.leak(row_id(row))) is not None:
        words = f"  {moment.signs.glyphs.warn} has grown by {units.size(found.per_s)}/s for {age(found.since_s)}"
        title.append(Span(words, "warn"))
    if row.shared_with:
        title.append(Span(f"  shares files with {_others(row, 0)}: their memory is the same memory", "dim"))
    if (words := unknown(moment, row)) != "":
        title.append(Span(f"  memory not known: {words}", "warn"))
    half = (width - 3) // 2
    values = moment.past.values(key("processes", row_id(row), "memory")) if known(moment, row) is not None else []
    size = (half, tallest(height - 1))
    drawn = chart("Memory", values, size, moment.signs, units.size, span_s=moment.past.span_s())
    return [fit(title, width), *beside([drawn, _holdings(moment, row, half, height - 1)], [half, half])]


def unknown(moment: Moment, row: Row) -> str:
    """Why memory of it, or a part of it, is not known; "" where all is."""
    why = moment.absences.get(key("processes", row_id(row), "memory"))
    return "" if why is None else why.detail or ABSENCES.get(why.kind, why.kind)


def _holdings(moment: Moment, row: Row, width: int, height: int) -> list[list[Span]]:
    """Bars of regions, of its queues, then of engines; devices are named where there are several."""
    several = len(row.devices) > 1

    def named(device: str, what: str) -> str:
        return f"{device} {what}" if several else what

    memory = [(named(device, region), float(size), units.size(size)) for device, region, size in row.memory]
    engines = [(named(device, engine), ratio, percent(ratio)) for device, engine, ratio in row.engines]
    work = [
        (named(queue.device, queue.id.removeprefix(f"{queue.device} ")), queue.running / depth, count(queue.running))
        for queue in queues(moment, row)
        if queue.running is not None and (depth := queue.depth or queue.running or 1)
    ]
    label = min(max((len(name) for name, _, _ in [*memory, *work, *engines]), default=8), width // 2)
    lines = [fit((Span("By region", "bold"),), width), *histogram(memory, width, moment.signs, label)]
    for head, bars in (("Queues, in flight", work), ("Engines", engines)):
        if bars:
            lines += [fit((Span(head, "bold"),), width), *histogram(bars, width, moment.signs, label, most=1.0)]
    return lines[:height]


def rows(moment: Moment) -> list[Row]:
    """Whoever holds most stands first."""
    return sorted(moment.snapshot.processes, key=total, reverse=True)


PROCESSES = View(
    "processes",
    "Processes",
    "processes",
    COLUMNS,
    below,
    "No process that may be seen holds anything of a device.",
    wants=9,
    rows=rows,
)
