"""Several feeds as one: a Snapshot from the latest of each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from accelctl.model.snapshot import DeviceLevel, EventMark, ProcessLevel, SelfCost, Snapshot, SourceLevel
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.said import Said

R = TypeVar("R")
START_S = 10.0
"""For so long a feed may be silent at the start: its code is being loaded."""
_NO_NUMBERS = "no numbers come from it"
_STALE = 5
"""After so many of its periods a feed that has gone silent says nothing any more: old numbers are worse than none."""


class MergedFeed:
    """A Feed of several. The first one sets the pace: its Snapshots carry what the others have said last."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        if not feeds:
            raise ValueError("no feeds")
        self._feeds = tuple(feeds)
        self._last: dict[int, Snapshot] = {}
        self._events: list[EventMark] = []
        self._said = Said()
        self._since = time.monotonic()

    @property
    def title(self) -> str:
        """All titles."""
        return " and ".join(feed.title for feed in self._feeds)

    @property
    def seekable(self) -> bool:
        """Two recordings have no common time."""
        return False

    def seek(self, seconds: float) -> Snapshot | None:
        """What was is not kept here."""
        return None

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed."""
        for number, feed in enumerate(self._feeds[1:], 1):
            while (found := feed.poll(0.0)) is not None:
                self._keep(number, found)
        first = self._feeds[0].poll(timeout_s)
        if first is None:
            return None
        self._keep(0, first)
        last = [self._last[number] for number in sorted(self._last)]
        found = merged([one for one in last if not _old(one, first)])
        silent = (
            *(row for one in last if _old(one, first) for row in _silent(one)),
            *(self._awaited(feed) for number, feed in enumerate(self._feeds) if number not in self._last),
        )
        events, self._events = tuple(self._events), []
        made = replace(
            found,
            taken_ns=first.taken_ns,
            monotonic_ns=first.monotonic_ns,
            events=events,
            health=(*found.health, *silent),
        )
        return self._said.news(made)

    def _awaited(self, feed: Feed) -> SourceLevel:
        """A feed that has not said a word yet: its rows are not missing, but to come."""
        if time.monotonic() - self._since < START_S:
            return SourceLevel(id=feed.title, state="starting")
        return SourceLevel(id=feed.title, state="absent", path=_NO_NUMBERS)

    def _keep(self, number: int, found: Snapshot) -> None:
        """The latest, with what an earlier one said about sources: a feed tells them only when one has changed."""
        self._events += found.events
        before = self._last.get(number)
        if before is not None and not (found.sources or found.absences):
            found = replace(found, sources=before.sources, absences=before.absences)
        self._last[number] = found

    def close(self) -> None:
        """See Feed."""
        for feed in self._feeds:
            feed.close()


def _old(one: Snapshot, now: Snapshot) -> bool:
    return now.monotonic_ns - one.monotonic_ns > patience_ns(one)


def _silent(one: Snapshot) -> Iterable[SourceLevel]:
    """The sources of a feed that says nothing any more: its rows are gone, and somebody has to say why."""
    for row in one.health:
        if row.state == "ok":
            yield replace(row, state="absent", path=_NO_NUMBERS, since_ns=one.taken_ns)
        else:
            yield row


def patience_ns(one: Snapshot) -> int:
    """For how long a Snapshot is to be shown when no newer one comes."""
    return _STALE * max(one.cost.period_ns, 1_000_000_000)


def merged(parts: Sequence[Snapshot]) -> Snapshot:
    """One Snapshot of several, with the time of the first. A row that several have is put together: of a device or a
    process each field from the first that knows it."""
    return replace(
        parts[0],
        devices=_devices(parts),
        pools=_joined(parts, "pools", lambda row: row.id),
        queues=_joined(parts, "queues", lambda row: row.id),
        spaces=_joined(parts, "spaces", lambda row: row.id),
        engines=_joined(parts, "engines", lambda row: row.id),
        processes=_joined(parts, "processes", lambda row: (row.pid, row.started)),
        events=tuple(event for part in parts for event in part.events),
        health=tuple(row for part in parts for row in part.health),
        hidden_processes=max(part.hidden_processes for part in parts),
        cost=_costs([part.cost for part in parts]),
        sources={name: text for part in reversed(parts) for name, text in part.sources.items()},
        absences=_absences(parts),
    )


def _absences(parts: Sequence[Snapshot]) -> dict[str, Any]:
    """Of a number that one part lacks and another has, the absence is dropped."""
    known = {name for part in parts for name in part.sources}
    return {name: why for part in reversed(parts) for name, why in part.absences.items() if name not in known}


def _devices(parts: Sequence[Snapshot]) -> tuple[DeviceLevel, ...]:
    """The machine's rows go first. What several services hold of one device is added up: each tells of its own."""
    found: dict[str, DeviceLevel] = {}
    for part in parts[1:]:
        for row in part.devices:
            found[row.id] = _both(found[row.id], row) if row.id in found else row
    whole: tuple[DeviceLevel, ...]
    whole = _joined([parts[0], replace(parts[0], devices=tuple(found.values()))], "devices", lambda row: row.id)
    return whole


def _both(one: DeviceLevel, other: DeviceLevel) -> DeviceLevel:
    held = [row.memory_attributed_bytes for row in (one, other) if row.memory_attributed_bytes is not None]
    busy = [row.busy_ratio for row in (one, other) if row.busy_ratio is not None]
    return replace(
        _filled(one, other),
        clients=one.clients + other.clients,
        memory_attributed_bytes=sum(held) if held else None,
        busy_ratio=max(busy, default=None),
    )


def _joined(parts: Iterable[Snapshot], table: str, name_of: Any) -> tuple[Any, ...]:
    rows: dict[Any, Any] = {}
    for part in parts:
        for row in getattr(part, table):
            name = name_of(row)
            rows[name] = row if name not in rows else _filled(rows[name], row)
    return tuple(rows.values())


def _filled(row: R, other: R) -> R:
    """Fields of ``row``; of the other one those that say nothing here. Of a process, what it holds is added up."""
    found: dict[str, Any] = {}
    for field in fields(row):  # type: ignore[arg-type]
        mine, theirs = getattr(row, field.name), getattr(other, field.name)
        if isinstance(row, ProcessLevel) and field.name in _ADDED:
            found[field.name] = (*mine, *(one for one in theirs if one not in mine))
        elif mine == field.default and theirs != mine:
            found[field.name] = theirs
    return replace(row, **found)  # type: ignore[type-var]


_ADDED = ("devices", "memory", "engines", "files", "mapped", "shared_with")


def _costs(costs: Sequence[SelfCost]) -> SelfCost:
    return SelfCost(
        cpu_ratio=sum(one.cpu_ratio for one in costs),
        reads=sum(one.reads for one in costs),
        tick_ns=sum(one.tick_ns for one in costs),
        period_ns=costs[0].period_ns,
        memory_bytes=sum(one.memory_bytes for one in costs),
    )
