"""Several feeds as one: a Snapshot from the latest of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from accelctl.model.snapshot import EventMark, ProcessLevel, SelfCost, Snapshot
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.said import Said

R = TypeVar("R")
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
        fresh = [self._last[number] for number in sorted(self._last) if not _old(self._last[number], first)]
        events, self._events = tuple(self._events), []
        made = replace(merged(fresh), taken_ns=first.taken_ns, monotonic_ns=first.monotonic_ns, events=events)
        return self._said.news(made)

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


def patience_ns(one: Snapshot) -> int:
    """For how long a Snapshot is to be shown when no newer one comes."""
    return _STALE * max(one.cost.period_ns, 1_000_000_000)


def merged(parts: Sequence[Snapshot]) -> Snapshot:
    """One Snapshot of several, with the time of the first. A row that several have is put together: of a device or a
    process each field from the first that knows it."""
    return replace(
        parts[0],
        devices=_joined(parts, "devices", lambda row: row.id),
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
