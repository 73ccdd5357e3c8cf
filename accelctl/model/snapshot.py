"""One moment of everything that `accelctl top` shows: plain numbers on one time axis, immutable.

The sampler makes one Snapshot a tick; screens, `--once`, recordings, replay and `accelctl export` read nothing else. A
number that is missing is None, and why stands in ``absences`` under its key; where a number comes from stands in
``sources`` under the same key. Both are filled when they change, not at each tick: see :func:`key`.

Units are in the names: _bytes, _ns, _mw, _hz, _celsius, _rpm; ``_ratio`` is 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SCHEMA = "accelctl.snapshot/1"


class Gone(NamedTuple):
    """Why a number is missing: a key of ``reading.ABSENCES``, what the kernel said, and what to type to get it."""

    kind: str
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceLevel:
    """One device. ``id`` as in probe: history goes by it, never by card or hwmon number."""

    id: str
    name: str = ""
    driver: str = ""
    chip: str = ""
    simulated: bool = False
    power_state: str = ""
    """runtime_status of the kernel ("active", "suspended", ...); "" where it is not told."""
    asleep: bool = False
    """Nothing that could wake it was read in this tick."""
    busy_ratio: float | None = None
    """The busiest engine, or the driver's own figure; never a sum over engines."""
    temperature_celsius: float | None = None
    power_mw: float | None = None
    fan_rpm: float | None = None
    clock_hz: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """The device's own count."""
    memory_attributed_bytes: int | None = None
    """Sum over clients, each counted once."""
    memory_unattributed_bytes: int | None = None
    """Used - attributed; never below 0. None where either is not known."""
    open_files: int = 0
    """Descriptors of its nodes, in all visible processes."""
    mapped_bytes: int = 0
    """Mappings of its nodes and buffers in all visible processes."""
    handles: int | None = None
    """Buffer handles that the kernel counts for it."""
    clients: int = 0
    findings: tuple[tuple[str, str], ...] = ()
    """(level, rule id), the worst first, as probe found them at the start and events added."""


@dataclass(frozen=True, kw_only=True)
class PoolLevel:
    """One memory pool: of a device's driver, of one session of a service, or of one process."""

    id: str
    device: str
    owner: str = ""
    """"session N", "pid N", or "" for the device's own."""
    process: str = ""
    """"pid N NAME" of the process that it is for; what a client says of itself where that is none of this machine."""
    capacity_bytes: int | None = None
    in_use_bytes: int | None = None
    cached_bytes: int | None = None
    reserved_bytes: int | None = None
    asked_bytes: int | None = None
    high_water_bytes: int | None = None
    unattributed_bytes: int | None = None
    fragmentation_ratio: float | None = None
    hits: int | None = None
    misses: int | None = None
    size_classes: tuple[tuple[int, int, int], ...] = ()
    """(bytes of the class, allocations, frees), rising."""
    ops: tuple[tuple[str, int, int], ...] = ()
    """(op, allocations, frees)."""


@dataclass(frozen=True, kw_only=True)
class QueueLevel:
    """One queue, engine or session's line of work. Counts rise; rates are made from two Snapshots."""

    id: str
    device: str
    owner: str = ""
    process: str = ""
    kind: str = "queue"
    """queue, engine or session."""
    state: str = ""
    depth: int | None = None
    """How many works may be in flight."""
    submitted: int | None = None
    running: int | None = None
    finished: int | None = None
    wait_ns: float | None = None
    """How long the works of the last tick waited, on average."""
    busy_ratio: float | None = None
    stalled_ns: int | None = None
    """How long work has been in flight without any being finished."""


@dataclass(frozen=True, kw_only=True)
class SpaceLevel:
    """One address space: of a session, a process on a device (VM), or an IOMMU domain."""

    id: str
    device: str
    owner: str = ""
    process: str = ""
    base: int = 0
    size_bytes: int | None = None
    reserved_bytes: int | None = None
    mapped_bytes: int | None = None
    free_bytes: int | None = None
    largest_hole_bytes: int | None = None
    ranges: tuple[tuple[int, int, str], ...] = ()
    """(start, bytes, "mapped" or "reserved"), rising; at most 512, neighbours joined first."""


@dataclass(frozen=True, kw_only=True)
class ProcessLevel:
    """One process that holds something of a device. The pair (pid, started) is it: numbers of processes are reused."""

    pid: int
    started: int
    """Clock ticks after boot, from /proc/PID/stat."""
    name: str = ""
    uid: int | None = None
    state: str = ""
    """R, S, D, Z, ... of /proc/PID/stat."""
    wchan: str = ""
    container: bool = False
    devices: tuple[str, ...] = ()
    memory: tuple[tuple[str, str, int], ...] = ()
    """(device, region, bytes)."""
    engines: tuple[tuple[str, str, float], ...] = ()
    """(device, engine, busy ratio over the last tick)."""
    files: tuple[tuple[str, int], ...] = ()
    """(device, open files)."""
    mapped: tuple[tuple[str, int], ...] = ()
    """(device, bytes of mappings)."""
    shared_with: tuple[int, ...] = ()
    """Other processes that hold the same clients: duplicated or inherited descriptors."""


@dataclass(frozen=True, kw_only=True)
class EngineLevel:
    """One engine of one device, over all clients."""

    id: str
    device: str
    busy_ratio: float | None = None
    capacity: int = 1
    clock_hz: float | None = None


@dataclass(frozen=True, kw_only=True)
class EventMark:
    """Something that happened, at its place on the time axis."""

    at_ns: int
    """Wall clock, ns since 1970, as ``Snapshot.taken_ns``."""
    kind: str
    """uevent, fault, reset, aer, source (one of ours stopped or came back), service."""
    device: str
    level: str
    """info, warn, error or critical, as findings have it."""
    text: str


@dataclass(frozen=True, kw_only=True)
class SourceLevel:
    """How one source of numbers is doing."""

    id: str
    state: str = "ok"
    """ok, quarantined, absent, starting."""
    path: str = ""
    """The path it hung in."""
    since_ns: int = 0
    wchan: str = ""
    retry_ns: int = 0
    """When it is tried again, wall clock."""


@dataclass(frozen=True, kw_only=True)
class SelfCost:
    """What watching costs, all our processes together, over the last tick."""

    cpu_ratio: float = 0.0
    """Of one core."""
    reads: int = 0
    tick_ns: int = 0
    """How long the sampler worked."""
    period_ns: int = 0
    """Between ticks; longer than asked for where the budget says so."""
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything at one moment."""

    taken_ns: int
    """Wall clock, ns since 1970."""
    monotonic_ns: int = 0
    """For rates: the wall clock may be set."""
    devices: tuple[DeviceLevel, ...] = ()
    pools: tuple[PoolLevel, ...] = ()
    queues: tuple[QueueLevel, ...] = ()
    spaces: tuple[SpaceLevel, ...] = ()
    processes: tuple[ProcessLevel, ...] = ()
    engines: tuple[EngineLevel, ...] = ()
    events: tuple[EventMark, ...] = ()
    """New since the Snapshot before."""
    health: tuple[SourceLevel, ...] = ()
    hidden_processes: int = 0
    """Processes that may not be looked into: what they hold is not attributed."""
    cost: SelfCost = field(default_factory=SelfCost)
    sources: dict[str, str] = field(default_factory=dict)
    """:func:`key` -> the file or the call a number comes from."""
    absences: dict[str, Gone] = field(default_factory=dict)
    """:func:`key` -> why a number is None."""

    @property
    def simulated(self) -> bool:
        """Whether any device in it is."""
        return any(device.simulated for device in self.devices)


def key(table: str, row: str, name: str) -> str:
    """The name of a series: "devices/0000:03:00.0/power_mw". ``table`` is a field of Snapshot; of rows without an id
    ("processes") the row is "PID@STARTED"."""
    return f"{table}/{row}/{name}"
