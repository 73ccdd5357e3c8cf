"""A Snapshot as text and as a JSON document: `accelctl top --once`.

Tables show what there is; where a number is missing a word or a dash stands, and the last section says why and what to
type to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

from accelctl.model import snapshotjson
from accelctl.model.reading import ABSENCES
from accelctl.model.snapshot import SCHEMA, Gone, ProcessLevel, Snapshot, key
from accelctl.render import units
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Line, Page, Span, clean
from accelctl.render.term import Term

_WORDS = {
    "asleep": "asleep",
    "no_permission": "denied",
    "not_allowed": "denied",
    "timed_out": "hung",
    "hidden_by_container": "hidden",
    "no_driver": "no driver",
    "unreadable": "error",
    "malformed": "error",
}
MOST_PROCESSES = 40
MOST_CLASSES = 6
_SECOND_NS = 1_000_000_000


def snapshot_document(snapshot: Snapshot, title: str = "") -> dict[str, Any]:
    """JSON values; a missing number is null, and why stands in ``absences`` under its key."""
    return headed(SCHEMA, watched=title or None, simulated=snapshot.simulated, **snapshotjson.plain(snapshot))


def snapshot_json(snapshot: Snapshot, title: str = "") -> str:
    """The document as text."""
    return dumps(snapshot_document(snapshot, title))


def snapshot_text(snapshot: Snapshot, term: Term, title: str = "") -> str:
    """All of it for people; in a pipe every line whole."""
    return _Text(snapshot, term).text(title)


class _Text:
    """One Snapshot on one page."""

    def __init__(self, snapshot: Snapshot, term: Term) -> None:
        self.snapshot, self.page = snapshot, Page(term)
        self.glyphs = term.glyphs

    def text(self, title: str) -> str:
        """Every section that has something to say."""
        self._header(title)
        for section in (
            self._devices,
            self._pools,
            self._queues,
            self._spaces,
            self._engines,
            self._processes,
            self._events,
            self._health,
            self._missing,
        ):
            self.page.blank()
            section()
        return self.page.text()

    def _header(self, title: str) -> None:
        now = self.snapshot
        items: list[Line] = [(Span(title or "this machine", "bold"),)]
        if now.simulated and "simulated" not in title:
            items.append((Span("simulated", "warn"),))
        items.append((Span(units.counted(len(now.devices), "device")),))
        items.append((Span(units.counted(len(now.processes), "process", "processes")),))
        stamp = datetime.fromtimestamp(now.taken_ns // _SECOND_NS, timezone.utc)
        items.append((Span(stamp.strftime("%Y-%m-%d %H:%M:%SZ"), "dim"),))
        self.page.flow((), items)

    def _table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[Line]], keys: int = 1) -> None:
        self.page.line(Span(title, "bold"))
        self.page.table(header, rows, indent=2, keys=keys)

    def _cell(self, table: str, row: Any, name: str, words: Callable[[Any], str]) -> Line:
        """A number in words, or one word why there is none."""
        value = getattr(row, name)
        if value is not None:
            return (Span(words(value)),)
        gone = self.snapshot.absences.get(key(table, row.id, name))
        return (Span(_WORDS.get(gone.kind, self.glyphs.dash) if gone else self.glyphs.dash, "dim"),)

    def _devices(self) -> None:
        if not self.snapshot.devices:
            self.page.line(Span("No device found.", "bold"))
            return
        rows = []
        for one in self.snapshot.devices:
            cell = partial(self._cell, "devices", one)
            state = "asleep" if one.asleep else one.power_state or ("simulated" if one.simulated else "")
            level, rule = one.findings[0] if one.findings else ("ok", "")
            rows.append(
                [
                    (Span(clean(one.id), "bold"),),
                    (Span(clean(one.name) or self.glyphs.dash),),
                    (Span(clean(state) or self.glyphs.dash, "warn" if one.simulated else ""),),
                    cell("busy_ratio", _percent),
                    self._used(one),
                    cell("temperature_celsius", lambda value: units.celsius(value, self.glyphs.degree)),
                    cell("power_mw", units.watts),
                    (Span(str(one.clients)),),
                    (Span(f"{level} {clean(rule)}".rstrip(), level if level in ("info", "warn", "error") else ""),),
                ]
            )
        self._table(
            "Devices", ("DEVICE", "NAME", "STATE", "BUSY", "MEMORY", "TEMP", "POWER", "CLIENTS", "FINDINGS"), rows
        )

    def _used(self, one: Any) -> Line:
        if one.memory_used_bytes is not None and one.memory_total_bytes:
            return (Span(units.share(one.memory_used_bytes, one.memory_total_bytes)),)
        if one.memory_used_bytes is None and one.memory_attributed_bytes:
            return (Span(f"{units.size(one.memory_attributed_bytes)} (sum of clients)"),)
        return self._cell("devices", one, "memory_used_bytes", units.size)

    def _pools(self) -> None:
        rows = []
        for one in self.snapshot.pools:
            cell = partial(self._cell, "pools", one)
            served = (one.hits or 0) + (one.misses or 0)
            hits = _percent(one.hits / served) if one.hits is not None and served else self.glyphs.dash
            rows.append(
                [
                    (Span(clean(one.id), "bold"),),
                    cell("in_use_bytes", units.size),
                    cell("cached_bytes", units.size),
                    cell("capacity_bytes", units.size),
                    cell("high_water_bytes", units.size),
                    cell("fragmentation_ratio", _percent),
                    (Span(hits),),
                    cell("unattributed_bytes", units.size),
                ]
            )
        if rows:
            header = ("POOL", "IN USE", "CACHED", "CAPACITY", "HIGHEST", "FRAG", "HITS", "UNATTR")
            self._table("Memory pools", header, rows)
            for one in self.snapshot.pools:
                self._by_class(one)

    def _by_class(self, one: Any) -> None:
        """What a pool was asked for: the classes and ops with the most that is not given back."""
        held = sorted(((made - freed, size) for size, made, freed in one.size_classes if made > freed), reverse=True)
        ops = sorted(((made - freed, made, op) for op, made, freed in one.ops), reverse=True)
        items: list[Line] = [(Span(f"{count} {self.glyphs.times} {units.size(size)}"),) for count, size in held]
        items += [(Span(f"{clean(op)} {made} times, {left} held"),) for left, made, op in ops]
        if items:
            hang = max(len(one.id) + 4, 22)
            self.page.flow((Span(clean(one.id), "dim"),), items[: 2 * MOST_CLASSES], indent=2, hang=hang)

    def _queues(self) -> None:
        rows = []
        for one in self.snapshot.queues:
            cell = partial(self._cell, "queues", one)
            rows.append(
                [
                    (Span(clean(one.id), "bold"),),
                    (Span(clean(one.state) or self.glyphs.dash),),
                    cell("running", self._in_flight(one.depth)),
                    cell("submitted", str),
                    cell("finished", str),
                    cell("wait_ns", _duration),
                    cell("busy_ratio", _percent),
                    cell("stalled_ns", lambda value: _duration(value) if value else "no"),
                ]
            )
        if rows:
            header = ("QUEUE", "STATE", "RUNNING", "SENT", "DONE", "WAIT", "BUSY", "STALLED")
            self._table("Queues", header, rows)

    @staticmethod
    def _in_flight(depth: int | None) -> Callable[[int], str]:
        return lambda running: f"{running}" if depth is None else f"{running} of {depth}"

    def _spaces(self) -> None:
        rows = []
        for one in self.snapshot.spaces:
            names = ("size_bytes", "mapped_bytes", "reserved_bytes", "free_bytes", "largest_hole_bytes")
            sizes = (self._cell("spaces", one, name, units.size) for name in names)
            rows.append([(Span(clean(one.id), "bold"),), *sizes])
        if rows:
            header = ("ADDRESS SPACE", "SIZE", "MAPPED", "RESERVED", "FREE", "LARGEST")
            self._table("Address space", header, rows)

    def _engines(self) -> None:
        rows = [
            [
                (Span(clean(one.id), "bold"),),
                self._cell("engines", one, "busy_ratio", _percent),
                (Span(str(one.capacity)),),
                self._cell("engines", one, "clock_hz", units.hertz),
            ]
            for one in self.snapshot.engines
        ]
        if rows:
            self._table("Engines", ("ENGINE", "BUSY", "CAPACITY", "CLOCK"), rows)

    def _processes(self) -> None:
        found = sorted(self.snapshot.processes, key=lambda one: -sum(size for _, _, size in one.memory))
        rows = [self._process(one) for one in (found if self.page.width is None else found[:MOST_PROCESSES])]
        if rows:
            self._table("Processes", ("PID", "NAME", "STATE", "MEMORY", "FILES", "MAPPED", "DEVICES"), rows)
        if len(rows) < len(found):
            self.page.line(Span(f"and {len(found) - len(rows)} more"), indent=2)
        hidden = self.snapshot.hidden_processes
        if hidden:
            words = units.counted(hidden, "process", "processes")
            self.page.flow(
                (), [(Span(f"{words} cannot be looked into: what they hold is attributed to nobody", "warn"),)]
            )
            gone = self.snapshot.absences.get(key("processes", "*", "hidden"))
            if gone is not None and gone.fix:
                self.page.line(Span(gone.fix, "command"), indent=2)

    def _process(self, one: ProcessLevel) -> list[Line]:
        state = f"{one.state} in {clean(one.wchan)}" if one.state == "D" and one.wchan else one.state
        return [
            (Span(str(one.pid), "bold"),),
            (Span(clean(one.name) + (" (container)" if one.container else "")),),
            (Span(clean(state) or self.glyphs.dash, "error" if one.state == "D" else ""),),
            self._held(one),
            (Span(str(sum(count for _, count in one.files))),),
            (Span(units.size(sum(size for _, size in one.mapped))),),
            (Span(", ".join(map(clean, one.devices))),),
        ]

    def _held(self, one: ProcessLevel) -> Line:
        """Its memory; where nothing is told of it, that is not 0."""
        gone = self.snapshot.absences.get(key("processes", f"{one.pid}@{one.started}", "memory"))
        if not one.memory and gone is not None:
            return (Span(_WORDS.get(gone.kind, self.glyphs.dash), "dim"),)
        return (Span(units.size(sum(size for _, _, size in one.memory))),)

    def _events(self) -> None:
        if self.snapshot.events:
            self.page.line(Span("Events", "bold"))
        for one in self.snapshot.events:
            stamp = datetime.fromtimestamp(one.at_ns // _SECOND_NS, timezone.utc).strftime("%H:%M:%SZ")
            style = one.level if one.level in ("info", "warn", "error", "critical") else ""
            lead = (Span(stamp, "dim"), Span(" "), Span(clean(one.level), style), Span(f" {clean(one.kind)}"))
            where = f"{clean(one.device)}: " if one.device else ""
            self.page.flow(lead, [(Span(where + clean(one.text)),)], indent=2, hang=26)

    def _health(self) -> None:
        rough = [one for one in self.snapshot.health if one.state not in ("ok", "starting")]
        if rough:
            self.page.line(Span("Sources that do not answer", "bold"))
        for one in rough:
            items: list[Line] = [(Span(clean(one.state), "warn"),)]
            items += [(Span(clean(one.path)),)] if one.path else []
            items += [(Span(f"waits in {clean(one.wchan)}"),)] if one.wchan else []
            self.page.flow((Span(clean(one.id)), Span(":")), items, indent=2, hang=len(one.id) + 2)

    def _missing(self) -> None:
        """Numbers that are not there: those with one reason together."""
        groups: dict[Gone, dict[str, list[str]]] = {}
        for name, why in self.snapshot.absences.items():
            table, _, rest = name.partition("/")
            row, _, field = rest.rpartition("/")
            groups.setdefault(why, {}).setdefault(f"{row}" if table == "devices" else f"{table} {row}", []).append(
                field
            )
        if groups:
            self.page.line(Span("Missing", "bold"))
        for why, rows in groups.items():
            words = ABSENCES.get(why.kind, why.kind)
            detail = f" ({clean(why.detail)})" if why.detail else ""
            items: list[Line] = [
                (Span(f"{clean(row)} {', '.join(map(clean, fields))}"),) for row, fields in rows.items()
            ]
            items[0] = (Span(f"{words}{detail}: "), *items[0])
            self.page.flow((Span(self.glyphs.bullet),), items, indent=2, hang=2, comma=";")
            if why.fix:
                self.page.line(Span(clean(why.fix), "command"), indent=4)


def _percent(ratio: float) -> str:
    return "<1 %" if 0 < ratio < 0.005 else f"{ratio * 100:.0f} %"


def _duration(nanoseconds: float) -> str:
    for limit, step, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if nanoseconds < limit:
            return f"{nanoseconds / step:.3g} {unit}"
    return units.seconds(round(nanoseconds / 1e9, 1))
