"""The Telemetry contract: what a chip knows of its devices while they work.

    class Zork:
        def open(self, seat: Seat) -> Gauge: ...

A gauge adds the numbers of one device to the draft of each tick: memory, busy time, clocks, pools, queues, engines,
address spaces. Who shows them knows no chip, and a chip knows nothing of who shows them; the draft stands between.

Rules, which conformance (abi.telemetrycheck) holds: a gauge reads files through ``seat.root`` alone, which knows what
may be read of a sleeping device; what cannot be read is an absence in the draft, never an exception and never a made-up
0; every number has its source; a device that sleeps is not sampled at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from accelctl.abi.lifecycle import Session
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.model.reading import Reading
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
    """Say which path is about to be read, for the parent to see. Reads of a SysRoot say it themselves."""
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
    held: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    """(device, pid) -> (bytes, source); see :meth:`holds`."""
    hidden_processes: int = 0
    reads: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    absences: dict[str, Gone] = field(default_factory=dict)
    stale: bool = False
    """Devices came, went or changed drivers: whoever listed them should look again."""

    def level(self, device: str, name: str, value: Any, source: str) -> None:
        """One number of a device, and where it was read."""
        self.devices.setdefault(device, {})[name] = value
        self.sources[key("devices", device, name)] = source

    def gone(self, device: str, name: str, why: Gone) -> None:
        """A number of a device that is not to be had; one that another source gave stays."""
        self.absences[key("devices", device, name)] = why

    def holds(self, device: str, pid: int, size: int, source: str) -> None:
        """So much of the device's own memory is this process's, as its driver counts by itself: for what fdinfo, which
        is asked in any case, does not tell. It counts as attributed, and as memory of the process."""
        self.held[device, pid] = size, source

    def take(self, device: str, name: str, reading: Reading) -> None:
        """One number of a device as it was read, or why it was not."""
        if reading.absence is None:
            self.level(device, name, reading.value, reading.source)
        else:
            self.gone(device, name, why_gone(reading))

    def snapshot(self, tick: Tick) -> Snapshot:
        """The finished record. Of a number that one source lacks and another gave, the absence is dropped."""
        devices = []
        for identity, fields in self.devices.items():
            self._excuse(identity, fields)
            used, attributed = fields.get("memory_used_bytes"), fields.get("memory_attributed_bytes")
            if used is not None and attributed is not None:
                fields["memory_unattributed_bytes"] = max(0, used - attributed)
                self.sources[key("devices", identity, "memory_unattributed_bytes")] = "computed: used - attributed"
            devices.append(DeviceLevel(id=identity, **fields))
        return Snapshot(
            taken_ns=tick.now_ns,
            monotonic_ns=tick.monotonic_ns,
            devices=tuple(devices),
            pools=tuple(self._named()),
            queues=tuple(self.queues),
            spaces=tuple(self.spaces),
            processes=tuple(self.processes),
            engines=tuple(self.engines),
            events=tuple(self.events),
            hidden_processes=self.hidden_processes,
            sources=self.sources,
            absences={name: why for name, why in self.absences.items() if name not in self.sources},
        )

    def _named(self) -> Iterator[PoolLevel]:
        """Pools; those of a process with its name, which a chip does not know."""
        names = {f"pid {one.pid}": one.name for one in self.processes} if self.held else {}
        for pool in self.pools:
            whose = pool.process or pool.owner
            yield replace(pool, process=f"{whose} {names[whose]}") if whose in names else pool

    def _excuse(self, identity: str, fields: dict[str, Any]) -> None:
        """A number that no source spoke of is missing for a reason, too."""
        for name in _EXPECTED:
            if fields.get(name) is None and key("devices", identity, name) not in self.absences:
                measured = name == "busy_ratio" and any(engine.device == identity for engine in self.engines)
                self.gone(identity, name, _FIRST if measured else _UNKNOWN)


_EXPECTED = ("busy_ratio", "memory_total_bytes", "memory_used_bytes")
"""What every device could tell, and what nobody answers for where its chip has no telemetry."""
_UNKNOWN = Gone("not_offered", "its driver offers no file for it, or none that is known for this chip")
_FIRST = Gone("empty", "made of two readings of its engines")


def why_gone(reading: Reading) -> Gone:
    """The absence of a reading, for a snapshot. A text that means "no value" is quoted: 65535 is an answer, too."""
    gone = reading.absence
    assert gone is not None
    detail = gone.detail or gone.errno or ""
    if gone.kind == "empty" and reading.raw:
        detail = f"it says {reading.raw[:40]}, which means that there is none"
    return Gone(gone.kind, detail, gone.fix or "")


class Seat(NamedTuple):
    """What a gauge is opened on: a device as probe found it and the root to read its files from, or (only where the
    device is in this very process, as a simulated one is) the open session."""

    device: Device
    root: SysRoot | None = None
    session: Session | None = None


class Gauge(Protocol):
    """The numbers of one device."""

    def sample(self, draft: Draft, tick: Tick) -> None:
        """Add what is known now. What cannot be read is an absence in the draft."""

    def close(self) -> None:
        """Give back what it holds; safe to call twice."""


class Telemetry(Protocol):
    """What a chip with telemetry offers."""

    def open(self, seat: Seat) -> Gauge:
        """A gauge of that device, which has read nothing yet. NotOffered where nothing is known of such a seat."""
