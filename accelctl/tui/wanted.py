"""The filter of the dashboards: the grammar of ``--device``, and one process or one session of a service.

Words with a blank between them mean "or", a comma means "and", as everywhere. ``pid=4242`` and ``session=7`` leave what
belongs to that process or session.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from accelctl.errors import UsageError
from accelctl.model.reading import Reading
from accelctl.model.snapshot import DeviceLevel, PoolLevel, ProcessLevel, QueueLevel, Snapshot, SpaceLevel
from accelctl.probes.filters import AnyOf, Facts, parse_filters
from accelctl.telemetry.clientrows import cut
from accelctl.tui.moment import pid_of

OWNERS = ("pid", "session")
Level = TypeVar("Level", PoolLevel, QueueLevel, SpaceLevel)


class Wanted(NamedTuple):
    """What is to be seen. ``text`` as typed; empty: everything."""

    text: str = ""
    devices: AnyOf = AnyOf(())
    owners: frozenset[str] = frozenset()
    """ "pid 4242", "session 7"."""

    def of(self, snapshot: Snapshot, known: Iterable[Facts] = ()) -> Snapshot:
        """The Snapshot without what is not wanted. ``known``: devices as probe found them, which have nodes and PCI
        numbers; of others only what a Snapshot has can be asked for."""
        if not self.text:
            return snapshot
        found = {device.id: device for device in known}
        ids = {row.id for row in snapshot.devices if self.devices(found.get(row.id) or _Level(row))}
        pids = self._pids(snapshot)
        mine = [one for one in snapshot.processes if not self.owners or one.pid in pids]
        processes = [cut(one, ids) for one in mine if ids & set(one.devices)]
        if self.owners:
            ids &= self._homes(snapshot, processes)
        return dataclasses.replace(
            snapshot,
            devices=tuple(device for device in snapshot.devices if device.id in ids),
            pools=self._owned(snapshot.pools, ids),
            queues=self._owned(snapshot.queues, ids),
            spaces=self._owned(snapshot.spaces, ids),
            processes=tuple(processes),
            engines=tuple(engine for engine in snapshot.engines if engine.device in ids),
            events=tuple(event for event in snapshot.events if event.device in ids or not event.device),
        )

    def _owned(self, rows: tuple[Level, ...], ids: set[str]) -> tuple[Level, ...]:
        return tuple(row for row in rows if row.device in ids and self._has(row))

    def _has(self, row: PoolLevel | QueueLevel | SpaceLevel) -> bool:
        """Whether it is of one of the owners: a session is also its process's."""
        pid = pid_of(row.process)
        return not self.owners or row.owner in self.owners or (pid > 0 and f"pid {pid}" in self.owners)

    def _pids(self, snapshot: Snapshot) -> set[int]:
        """The processes that are asked for, by their number or by a session that they have."""
        found = {pid_of(owner) for owner in self.owners}
        for row in _rows(snapshot):
            if row.owner in self.owners:
                found.add(pid_of(row.process))
        return found - {0}

    def _homes(self, snapshot: Snapshot, processes: list[ProcessLevel]) -> set[str]:
        """Devices on which an owner has something."""
        found = {row.device for row in _rows(snapshot) if self._has(row)}
        return found.union(*(one.devices for one in processes))


def _rows(snapshot: Snapshot) -> tuple[PoolLevel | QueueLevel | SpaceLevel, ...]:
    return *snapshot.pools, *snapshot.queues, *snapshot.spaces


def parse(text: str) -> Wanted:
    """What somebody typed; UsageError, one line, where it is not understood."""
    owners, devices = set(), []
    for word in text.split():
        kind, equals, number = word.partition("=")
        if equals and kind in OWNERS:
            if not (number.isdecimal() and len(number) < 20):
                raise UsageError(f"{word}: a number belongs after {kind}=")
            owners.add(f"{kind} {int(number)}")
        else:
            devices.append(word)
    return Wanted(" ".join(text.split()), parse_filters(devices), frozenset(owners))


class _Level:
    """A row of a Snapshot as the filters see a device: one of several services by its own name, which they all have."""

    def __init__(self, device: DeviceLevel) -> None:
        self.id, self.kind, self.chip = device.id.partition("@")[0], "physical", device.chip or None
        self.facts: dict[str, Reading] = {}
        self._values = {"driver": device.driver, "vendor": device.name}

    def value(self, key: str) -> Any:
        """Driver, and the name for the vendor: it begins with that."""
        return self._values.get(key)
