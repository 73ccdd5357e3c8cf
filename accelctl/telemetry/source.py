"""What a source of numbers is, and the draft that the sources of one tick write into.

A source runs in the sampler's watched child: a read that never returns is named by the parent and set aside, so a
source reads nothing without having entered its path first. It knows one thing (the sensors of a device, the clients of
all of them, a service) and writes rows; what depends on several sources (unattributed memory, the busiest engine) is
put together when the draft becomes a Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from accelctl.model.snapshot import (
    DeviceLevel,
    EngineLevel,
    EventMark,
    Gone,
    PoolLevel,
    ProcessLevel,
    QueueLevel,
    Snapshot,
    SpaceLevel,
    key,
)


class Tick(NamedTuple):
    """One round of sampling. ``elapsed_ns`` since the one before, 0 in the first."""

    now_ns: int
    monotonic_ns: int
    elapsed_ns: int
    enter: Callable[[str], None]
    """Say which path is about to be read, for the parent to see."""
    quarantine: frozenset[str] = frozenset()
    """Paths that hung: not to be touched."""
    asleep: frozenset[str] = frozenset()
    """Devices that are suspended: nothing of theirs that could wake them may be read."""


@dataclass
class Draft:
    """What the sources of one tick have said so far."""

    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Device id -> fields of DeviceLevel."""
    pools: list[PoolLevel] = field(default_factory=list)
    queues: list[QueueLevel] = field(default_factory=list)
    spaces: list[SpaceLevel] = field(default_factory=list)
    processes: list[ProcessLevel] = field(default_factory=list)
    engines: list[EngineLevel] = field(default_factory=list)
    events: list[EventMark] = field(default_factory=list)
    hidden_processes: int = 0
    reads: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    absences: dict[str, Gone] = field(default_factory=dict)

    def level(self, device: str, name: str, value: Any, source: str) -> None:
        """One number of a device, and where it was read."""
        self.devices.setdefault(device, {})[name] = value
        self.sources[key("devices", device, name)] = source

    def gone(self, device: str, name: str, why: Gone) -> None:
        """A number of a device that is not to be had; one that another source gave stays."""
        self.absences[key("devices", device, name)] = why

    def snapshot(self, tick: Tick) -> Snapshot:
        """The finished record. Of a number that one source lacks and another gave, the absence is dropped."""
        devices = []
        for identity, fields in self.devices.items():
            used, attributed = fields.get("memory_used_bytes"), fields.get("memory_attributed_bytes")
            if used is not None and attributed is not None:
                fields["memory_unattributed_bytes"] = max(0, used - attributed)
                self.sources[key("devices", identity, "memory_unattributed_bytes")] = "computed: used - attributed"
            devices.append(DeviceLevel(id=identity, **fields))
        return Snapshot(
            taken_ns=tick.now_ns,
            monotonic_ns=tick.monotonic_ns,
            devices=tuple(devices),
            pools=tuple(self.pools),
            queues=tuple(self.queues),
            spaces=tuple(self.spaces),
            processes=tuple(self.processes),
            engines=tuple(self.engines),
            events=tuple(self.events),
            hidden_processes=self.hidden_processes,
            sources=self.sources,
            absences={name: why for name, why in self.absences.items() if name not in self.sources},
        )


class Source(Protocol):
    """One source of numbers."""

    @property
    def name(self) -> str:
        """What it is called on screen: "fdinfo", "hwmon 0000:03:00.0", "service"."""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """Add what it knows now. OSError of single files is an absence in the draft, not an exception."""

    def close(self) -> None:
        """Give descriptors back; safe to call twice."""
