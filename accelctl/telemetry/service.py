"""A running `accelctl serve` as a source: pools, queues and address spaces of its sessions, and who speaks for them.

Asked once a tick, with a deadline, in a child that does nothing else: gRPC starts threads, and a process with a screen
has none to spare. gRPC does not survive a fork: whoever follows a service must not have loaded it. A service that goes
away, hangs or comes back is an absence and an event, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from accelctl.errors import AccelError, extra
from accelctl.hal.procfile import parse_stat, parse_status
from accelctl.hal.root import SysRoot, open_root
from accelctl.model.snapshot import (
    EventMark,
    Gone,
    PoolLevel,
    ProcessLevel,
    QueueLevel,
    Snapshot,
    SpaceLevel,
    key,
)
from accelctl.telemetry.cost import BUDGET, PERIOD_S
from accelctl.telemetry.sampler import Plan, Sampler
from accelctl.telemetry.source import Draft, Plainly, Tick

ANSWER_S = 1.0
"""A service that takes longer is not there in this tick."""
MOST_TOLD = 16
"""Sessions whose coming and going is told in one tick."""
_PID = re.compile(r"\bpid (\d{1,10})\b")
_POOL = (
    "in_use_bytes", "cached_bytes", "asked_bytes", "high_water_bytes", "hits", "misses", "fragmentation_ratio",
    "size_classes", "ops",
)  # fmt: skip
_QUEUE = ("state", "depth", "submitted", "running", "finished", "busy_ratio", "stalled_ns")
_SPACE = ("size_bytes", "reserved_bytes", "mapped_bytes", "free_bytes", "largest_hole_bytes", "ranges")
_NO_LIMIT = Gone("not_offered", "the service was given no limit", "accelctl serve --memory SIZE")


_WORDS = {
    "communication": "nobody answers there",
    "permission": "permission denied: the service is another user's",
    "timeout": f"it does not answer within {ANSWER_S:g} s",
}


class NoAnswer(Plainly):
    """Why there is nothing of the service in this tick."""


class ServiceSource:
    """One service. ``address`` as `accelctl serve` says it. ``label``: where several are watched, what tells the rows
    of this one from those of the others; each begins to count its devices and sessions at the same number."""

    def __init__(self, address: str, label: str = "") -> None:
        self.address, self.label = address, label
        self.name = f"service {address}"
        self._client: Any = None
        self._hello: Any = None
        self._root: SysRoot | None = None
        self._sessions: dict[int, str] = {}
        self._before: dict[int, Any] = {}
        self._uptime_ms = self._expired = 0
        self._started = 0

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source. NoAnswer where there is none: the sampler tells of it. Every call has a deadline of its own, so
        no path is entered: a busy machine is no reason to leave a service alone."""
        found = self._ask()
        Rows(self, draft, tick, self._hello).write(found)
        self._tell(draft, tick, found)
        self._before = {one.session_id: one for one in found.sessions}

    def device(self, hello: Any) -> str:
        """The id of its device. A simulated one is its own; one of a bus is the machine's, whoever drives it, if the
        service is on this machine: only a Unix socket says so."""
        own = hello.simulated or not self.address.startswith("unix:")
        return f"{hello.device}@{self.label}" if self.label and own else str(hello.device)

    def session(self, number: int, device: str) -> str:
        """What a session is called among all that are watched, behind its device's id."""
        return owner(number) + (f"@{self.label}" if self.label and not device.endswith(f"@{self.label}") else "")

    def _ask(self) -> Any:
        try:
            from accelctl.umd.client import Client
        except ModuleNotFoundError as error:
            raise NoAnswer(f"{error.name} is not installed: {extra('umd')}") from None
        try:
            if self._client is None:
                self._client = Client(self.address, deadline_s=ANSWER_S)
            if self._hello is None:
                self._hello = self._client.handshake()
            found = self._client.telemetry()
            if found.uptime_ms < self._uptime_ms:  # another one answers
                self._hello = self._client.handshake()
        except AccelError as error:
            self._hello = None
            raise NoAnswer(_WORDS.get(error.kind, error.message)) from None
        self._uptime_ms = found.uptime_ms
        return found

    def before(self, session: int) -> Any:
        """What the session said in the last tick; None in its first."""
        return self._before.get(session)

    def process(self, client: str) -> ProcessLevel | None:
        """The process that a session's client says it is, if it is one of this machine: only a Unix socket says so."""
        said = _PID.search(client)
        if said is None or not self.address.startswith("unix:"):
            return None
        if self._root is None:
            self._root = open_root("/")
        pid = int(said[1])
        stat, status = (self._root.text(f"proc/{pid}/{name}") for name in ("stat", "status"))
        if stat is None:
            return None
        try:
            facts = parse_stat(stat)
            uid = parse_status(status).uid if status else None
        except ValueError:
            return None
        return ProcessLevel(pid=pid, started=facts.start_ticks, name=facts.comm, uid=uid, state=facts.state)

    def _tell(self, draft: Draft, tick: Tick, found: Any) -> None:
        """What happened since the last tick, as events."""
        device, start = self.device(self._hello), self._hello.start_id

        def say(level: str, text: str) -> None:
            draft.events.append(EventMark(at_ns=tick.now_ns, kind="service", device=device, level=level, text=text))

        now = {one.session_id: one.client for one in found.sessions}
        if self._started not in (0, start):
            say("warn", f"{self.name} was started anew: its sessions are gone")
            self._sessions, self._expired = {}, 0
        elif self._started:
            opened = [
                f"{self.session(number, device)} was opened by {who}"
                for number, who in now.items()
                if number not in self._sessions
            ]
            closed = [
                f"{self.session(number, device)} of {who} is gone"
                for number, who in self._sessions.items()
                if number not in now
            ]
            for text in (opened + closed)[:MOST_TOLD]:
                say("info", text)
            if found.sessions_expired > self._expired:
                say("warn", f"{found.sessions_expired - self._expired} sessions expired: their clients went silent")
        self._sessions, self._started, self._expired = now, start, found.sessions_expired

    def close(self) -> None:
        """See Source."""
        if self._client is not None:
            self._client.close()
            self._client = None


def owner(session: int) -> str:
    """What rows of a session say whose they are: the first of a service is 1 (of its number, 16 bits are that)."""
    return f"session {(session >> 16 & 0xFFFF) + 1}"


class _Whose(NamedTuple):
    """What all rows of a session have."""

    row: str
    owner: str
    process: str


def _called(process: ProcessLevel | None, client: str) -> str:
    """A process by its number, which filters know; who is none of this machine is quoted, and no filter finds him."""
    return f"the client says: {client}" if process is None else f"pid {process.pid} {process.name}"


class Rows:
    """A TelemetrySample as rows."""

    def __init__(self, source: ServiceSource, draft: Draft, tick: Tick, hello: Any) -> None:
        self._source, self._draft, self._tick = source, draft, tick
        self._device = source.device(hello)
        self._simulated: bool = hello.simulated
        self._text = f"{source.name}: Telemetry"
        self._busy: list[float] = []

    def write(self, found: Any) -> None:
        """All of it."""
        clients = dict.fromkeys(one.client for one in found.sessions)
        processes = {client: self._source.process(client) for client in clients}
        held: dict[tuple[int, int], tuple[ProcessLevel, list[tuple[str, str, int]]]] = {}
        for one in found.sessions:
            name = self._source.session(one.session_id, self._device)
            process = processes[one.client]
            whose = _Whose(f"{self._device} {name}", owner(one.session_id), _called(process, one.client))
            self._pool(one, whose, found.limit_bytes)
            self._queue(one, whose)
            for number, space in enumerate(one.spaces):
                self._space(space, whose, number)
            if process is not None:
                _, rows = held.setdefault((process.pid, process.started), (process, []))
                rows.append((self._device, name, one.pool.in_use_bytes))
        self._write_device(found)
        for process, rows in held.values():
            self._draft.processes.append(replace(process, devices=(self._device,), memory=tuple(rows)))
            row = f"{process.pid}@{process.started}"
            self._draft.sources[key("processes", row, "memory")] = f"{self._text}, of the session's client"

    def _write_device(self, found: Any) -> None:
        draft, device, text = self._draft, self._device, self._text
        fields = draft.devices.setdefault(device, {})
        fields.update(simulated=self._simulated, clients=len(found.sessions))
        draft.sources[key("devices", device, "clients")] = text
        draft.level(device, "memory_attributed_bytes", found.held_bytes, f"{text}, held by all sessions")
        if found.limit_bytes:
            draft.level(device, "memory_total_bytes", found.limit_bytes, f"{text}, what the service may hold")
        else:
            draft.gone(device, "memory_total_bytes", _NO_LIMIT)
        if self._busy:
            draft.level(device, "busy_ratio", max(self._busy), "computed: of its sessions' queues, the busiest")
        else:
            draft.gone(device, "busy_ratio", Gone("empty", "no session has a queue yet"))
        if self._simulated:
            fields.update(name="simulated accelerator", chip="sim")
            draft.level(device, "memory_used_bytes", found.held_bytes, f"{text}, its only user")
            why = Gone("not_applicable", "a simulated device has none")
            for name in ("temperature_celsius", "power_mw", "fan_rpm", "clock_hz"):
                draft.gone(device, name, why)
        else:
            why = Gone("not_offered", "a service knows only what it holds itself")
            draft.gone(device, "memory_used_bytes", why)

    def _pool(self, one: Any, whose: _Whose, limit: int) -> None:
        pool = one.pool
        row = PoolLevel(
            id=whose.row,
            device=self._device,
            owner=whose.owner,
            process=whose.process,
            capacity_bytes=limit or None,
            in_use_bytes=pool.in_use_bytes,
            cached_bytes=pool.cached_bytes,
            reserved_bytes=pool.in_use_bytes + pool.cached_bytes,
            asked_bytes=pool.asked_bytes,
            high_water_bytes=pool.high_water_bytes,
            fragmentation_ratio=pool.fragmentation,
            hits=pool.hits,
            misses=pool.misses,
            size_classes=tuple((size.bytes, size.allocations, size.frees) for size in one.size_classes),
            ops=tuple((op.op, op.allocations, op.frees) for op in one.ops),
        )
        self._draft.pools.append(row)
        self._from(
            "pools", row.id, ("in_use_bytes", "cached_bytes", "asked_bytes", "high_water_bytes", "hits", "misses")
        )
        self._from("pools", row.id, ("fragmentation_ratio", "size_classes", "ops"))
        self._draft.sources[key("pools", row.id, "reserved_bytes")] = "computed: in use + cached"
        if limit:
            self._from("pools", row.id, ("capacity_bytes",))
        else:
            self._draft.absences[key("pools", row.id, "capacity_bytes")] = _NO_LIMIT

    def _queue(self, one: Any, whose: _Whose) -> None:
        before, elapsed = self._source.before(one.session_id), self._tick.elapsed_ns
        wait: float | None = None
        busy: float | None = None
        if before is not None and elapsed:
            finished = one.passed_fence - before.passed_fence
            wait = (one.flown_ns - before.flown_ns) / finished if finished > 0 else None
            busy = min(1.0, max(0.0, (one.busy_ns - before.busy_ns) / elapsed))
            self._busy.append(busy)
        row = QueueLevel(
            id=whose.row,
            device=self._device,
            owner=whose.owner,
            process=whose.process,
            kind="session",
            state=one.queue_state,
            depth=one.queue_depth,
            submitted=one.submitted_fence,
            running=one.in_flight,
            finished=one.passed_fence,
            wait_ns=wait,
            busy_ratio=busy,
            stalled_ns=one.stalled_ns,
        )
        self._draft.queues.append(row)
        self._from("queues", row.id, _QUEUE)
        if wait is None:
            why = Gone("empty", "no work was finished in the last tick")
            self._draft.absences[key("queues", row.id, "wait_ns")] = why
        else:
            computed = "computed: time in the queue of all works / works finished, as the service noticed"
            self._draft.sources[key("queues", row.id, "wait_ns")] = computed

    def _space(self, space: Any, whose: _Whose, number: int) -> None:
        row = SpaceLevel(
            id=whose.row + (f" space {number}" if number else ""),
            device=self._device,
            owner=whose.owner,
            process=whose.process,
            base=space.base,
            size_bytes=space.size_bytes,
            reserved_bytes=space.reserved_bytes,
            mapped_bytes=space.mapped_bytes,
            free_bytes=space.free_bytes,
            largest_hole_bytes=space.largest_hole_bytes,
            ranges=tuple((one.start, one.bytes, "reserved" if one.reserved else "mapped") for one in space.ranges),
        )
        self._draft.spaces.append(row)
        self._from(
            "spaces", row.id, ("size_bytes", "reserved_bytes", "mapped_bytes", "free_bytes", "largest_hole_bytes")
        )

    def _from(self, table: str, row: str, names: tuple[str, ...]) -> None:
        self._draft.sources.update({key(table, row, name): self._text for name in names})


def labels(addresses: Sequence[str]) -> list[str]:
    """What rows of each of several services bear: the socket's name where that tells them apart, else the address.
    Nothing where there is one service only."""
    if len(addresses) < 2:
        return [""] * len(addresses)
    short = [one.rpartition("/")[2] if one.startswith("unix:") else one for one in addresses]
    return [
        name if short.count(name) == 1 else one.removeprefix("unix:")
        for name, one in zip(short, addresses, strict=True)
    ]


class ServiceFeed:
    """A Feed of one service. Fork before threads: make it before a screen is started. ``label``: see ServiceSource."""

    def __init__(self, address: str, *, label: str = "", period_s: float = PERIOD_S, budget: float = BUDGET) -> None:
        self.address = address
        self._sampler = Sampler(Plan([ServiceSource(address, label)]), period_s=period_s, budget=budget)

    @property
    def title(self) -> str:
        """See Feed."""
        return f"service {self.address}"

    @property
    def seekable(self) -> bool:
        """See Feed."""
        return False

    def seek(self, seconds: float) -> Snapshot | None:
        """What was is not kept here."""
        return None

    def fileno(self) -> int:
        """Readable when a Snapshot is there; see Sampler."""
        return self._sampler.fileno()

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed."""
        return self._sampler.poll(timeout_s)

    def close(self) -> None:
        """See Feed."""
        self._sampler.close()
