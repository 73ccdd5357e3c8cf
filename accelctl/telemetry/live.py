"""The running machine as a stream of Snapshots: one look at what is there, then one sampler child."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from accelctl.abi.rooms import Directory, Room, all_rooms
from accelctl.errors import UsageError
from accelctl.hal.child import Watch
from accelctl.hal.kepttree import KeptTree
from accelctl.hal.root import SysRoot, open_root
from accelctl.model.convert import is_index
from accelctl.model.device import Device
from accelctl.model.finding import rank
from accelctl.model.snapshot import EventMark, Snapshot
from accelctl.probes import chipfacts
from accelctl.probes.context import Scan
from accelctl.probes.filters import AnyOf
from accelctl.telemetry.chips import chips
from accelctl.telemetry.clientrows import cut
from accelctl.telemetry.clients import Clients
from accelctl.telemetry.cost import BUDGET, PERIOD_S
from accelctl.telemetry.debugfs import Debugfs
from accelctl.telemetry.events import KernelLog, PcieErrors, Uevents, open_log, try_open
from accelctl.telemetry.sampler import DEADLINE_S, Plan, Sampler
from accelctl.telemetry.scout import Scout, Signs
from accelctl.telemetry.sensors import Devices, Sensors
from accelctl.telemetry.source import Draft, Source, Tick

SETTLE_S = 0.5
"""Between an event of a device and the next look: one plugged card gives many events."""
AGAIN_S = 30.0
"""Until the next look, when one has failed."""
_RULE = re.compile(r"([A-Z0-9]+(?:-[A-Z0-9]+)+): ")
"""What an event's text begins with where a rule found it."""
_INITIAL = ["0", "0", "4294967295"]
"""The user namespace that gets events (see probes.watch.open_source)."""


class Late:
    """A source that reads while it is made: so it is made in the child."""

    def __init__(self, name: str, make: Callable[[], Source]) -> None:
        self.name, self._make = name, make
        self._source: Source | None = None

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source."""
        if self._source is None:
            self._source = self._make()
        self._source.sample(draft, tick)

    def close(self) -> None:
        """See Source."""
        if self._source is not None:
            self._source.close()


def only(ids: Iterable[str]) -> Callable[[Draft], None]:
    """Takes out what is not of the devices that were asked for."""
    wanted = frozenset(ids)

    def finish(draft: Draft) -> None:
        draft.devices = {name: fields for name, fields in draft.devices.items() if name in wanted}
        draft.pools = [row for row in draft.pools if row.device in wanted]
        draft.queues = [row for row in draft.queues if row.device in wanted]
        draft.spaces = [row for row in draft.spaces if row.device in wanted]
        draft.engines = [row for row in draft.engines if row.device in wanted]
        draft.processes = [cut(row, wanted) for row in draft.processes if not wanted.isdisjoint(row.devices)]
        draft.events = [one for one in draft.events if not one.device or one.device in wanted]

    return finish


class LiveFeed:
    """A Feed. ``wanted``: which devices; ``root``: "/" or a captured machine, which has no events.

    Fork before threads: make it before a screen or a service is started. Call :meth:`poll` several times a second, or
    a driver that hangs is noticed late.
    """

    def __init__(
        self,
        root: str | SysRoot = "/",
        wanted: AnyOf | None = None,
        *,
        period_s: float = PERIOD_S,
        budget: float = BUDGET,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """UsageError for a root that is none, or a filter that names no device of a machine. Nothing is read of the
        machine yet."""
        virtual = next((one.virtual for one in (wanted.filters if wanted else ()) if one.virtual), None)
        if virtual is not None:
            raise UsageError(f"--device {virtual}: not a device of this machine", "accelctl top --demo")
        base = open_root(root) if isinstance(root, str) else root
        self._base, self._wanted = base, wanted or AnyOf(())
        self._period_s, self._budget, self._deadline_s = period_s, budget, deadline_s
        self._rooms: tuple[Room, ...] = all_rooms()
        self.devices: list[Device] | None = None
        """The devices that are watched, as probe found them; None until they were listed."""
        self._signs: Signs = {}
        self._told: Signs = {}
        self._shown: Signs = {}
        self._extra: list[EventMark] = []
        self._sampler: Sampler | None = None
        self._look_at: float | None = None
        self._closed = False
        self._uevents: Uevents | None = None
        self._polls = False
        self._log: int | None = None
        if base.live:
            self._open_events()
        self._scout: Scout | None = self._look()

    # -- Feed --

    @property
    def title(self) -> str:
        """See Feed."""
        return "this machine" if self._base.live else f"captured machine {self._base.tree.name}"

    @property
    def seekable(self) -> bool:
        """See Feed."""
        return False

    def seek(self, seconds: float) -> Snapshot | None:
        """What was is not kept here."""
        return None

    def fileno(self) -> int:
        """Readable when something came; -1 where nothing runs just now. It changes: ask before each wait, and wait no
        longer than a quarter of a second."""
        if self._sampler is not None:
            return self._sampler.fileno()
        return -1 if self._scout is None else self._scout.fileno()

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed."""
        end = time.monotonic() + timeout_s
        while not self._closed:
            left = max(0.0, end - time.monotonic())
            if self._sampler is None:
                self._attend_scout(min(left, 0.25))
            else:
                self._attend_scout(0.0)
                snapshot = self._sampler.poll(min(left, 0.25))
                if snapshot is not None:
                    return self._finish(snapshot)
            if end <= time.monotonic():
                break
        return None

    def close(self) -> None:
        """See Feed."""
        self._closed = True
        for one in (self._scout, self._sampler, self._uevents):
            if one is not None:
                one.close()
        if self._log is not None:
            os.close(self._log)
        self._scout = self._sampler = self._uevents = self._log = None

    # -- looking --

    def _look(self) -> Scout:
        self._look_at = None
        return Scout(SysRoot(self._base.tree, manifest=self._base.manifest), self._rooms, self._deadline_s)

    def _attend_scout(self, timeout_s: float) -> None:
        if self._scout is None:
            if self._look_at is not None and time.monotonic() >= self._look_at:
                self._scout = self._look()
            elif timeout_s:
                time.sleep(timeout_s)
            return
        seen = self._scout.poll(timeout_s)
        if seen is not None and seen.problem:
            self._say(seen.problem)
        if seen is not None and seen.devices is not None:
            self._found([device for device in seen.devices if self._wanted(device)])
        if seen is not None and seen.signs is not None:
            self._signs = seen.signs
            self._show()
        if self._scout.done:
            failed = seen is not None and seen.signs is None
            self._scout.close()
            self._scout = None
            if failed:
                self._look_at = time.monotonic() + AGAIN_S
                self._found(self.devices or [])

    def _found(self, devices: list[Device]) -> None:
        """Sample these from now on, if they are others than before."""
        if self._sampler is not None and self.devices is not None and _same(self.devices, devices):
            self.devices = devices
            return
        self.devices = devices
        plan = self._plan(devices)
        if self._sampler is None:
            self._sampler = Sampler(plan, period_s=self._period_s, budget=self._budget, deadline_s=self._deadline_s)
        else:
            self._sampler.renew(plan)

    def _finish(self, snapshot: Snapshot) -> Snapshot:
        """Put findings to devices, and what was said of looking."""
        assert self._sampler is not None
        if self._sampler.stale:
            self._sampler.stale = False
            self._look_at = time.monotonic() + SETTLE_S
        for one in snapshot.events:
            self._learn(one)
        devices = tuple(
            replace(one, findings=self._shown[one.id]) if one.id in self._shown else one for one in snapshot.devices
        )
        events, self._extra = (*self._extra, *snapshot.events), []
        return replace(snapshot, devices=devices, events=events)

    def _learn(self, event: EventMark) -> None:
        """An event that a rule found is a finding from now on, until the program ends: probe may not see it again."""
        match = _RULE.match(event.text)
        if event.kind in ("fault", "reset", "aer") and event.device and match is not None:
            sign, known = (event.level, match.group(1)), self._told.get(event.device, ())
            if sign not in known:
                self._told[event.device] = (*known, sign)
                self._show()

    def _show(self) -> None:
        """What probe found and what happened since, the worst first."""
        names = self._signs.keys() | self._told.keys()
        both = {name: {*self._signs.get(name, ()), *self._told.get(name, ())} for name in names}
        self._shown = {
            name: tuple(sorted(found, key=lambda one: (-rank(one[0]), one[1]))) for name, found in both.items()
        }

    def _say(self, text: str) -> None:
        self._extra.append(EventMark(at_ns=time.time_ns(), kind="source", device="", level="warn", text=text))

    # -- sources --

    def _open_events(self) -> None:
        if (self._base.text("proc/self/uid_map") or "").split() in ([], _INITIAL):
            found = try_open(lambda: Uevents(self._base, self._rooms, self._wanted))
            if isinstance(found, str):
                self._say(found)
            else:
                self._uevents = found
        else:  # devices are polled, which reads: in the child
            self._polls = True
        log = open_log()
        if isinstance(log, str):
            self._say(log)
        else:
            self._log = log

    def _plan(self, devices: list[Device]) -> Plan:
        root = SysRoot(KeptTree(self._base.tree), manifest=self._base.manifest)
        allow_chips(root, self._rooms, devices)
        sources = of_devices(root, devices)
        if self._base.live or any(map(is_index, self._base.listdir("proc"))):
            sources.append(Late(Clients.name, lambda: Clients(root, dict(_numbers(devices)))))
        keep: list[int] = []
        if self._uevents is not None:
            sources.append(self._uevents)
            keep += self._uevents.descriptors()
        elif self._polls:
            sources.append(Late(Uevents.name, lambda: Uevents(root, self._rooms, self._wanted)))
        if self._log is not None:
            log = KernelLog(root, self._rooms, devices, self._log, not self._wanted.filters)
            sources.append(log)
            keep += log.descriptors()

        def begin(watch: Watch) -> None:
            root.slot, root.quarantine = watch.slot, watch.quarantine
            self._base.slot, self._base.quarantine = watch.slot, watch.quarantine

        if self._wanted.filters:
            return Plan(sources, begin, keep, only(device.id for device in devices))
        return Plan(sources, begin, keep)


def allow_chips(root: SysRoot, rooms: Iterable[Room], devices: Iterable[Device]) -> None:
    """Put the files of the chips that are here on the root's list."""
    families = {device.chip for device in devices}
    chipfacts.allow(Scan(root, Directory(())), [room for room in rooms if room.name in families])


def of_devices(root: SysRoot, devices: list[Device]) -> list[Source]:
    """The sources that read files of devices, in the order in which they are asked."""
    sensors: list[Source] = [Devices(root, devices), Sensors(root, devices)]
    return [*sensors, *chips(root, devices), Debugfs(root, devices), PcieErrors(root, devices)]


def _numbers(devices: Iterable[Device]) -> Iterator[tuple[tuple[int, int], str]]:
    """Device numbers of the nodes that probe gave to a device."""
    for device in devices:
        for key, reading in device.facts.items():
            table, _, name = key.partition("/")
            if table in ("nodes", "drm") and name.rpartition("/")[2] in ("number", "dev") and reading.present:
                major, _, minor = str(reading.value).partition(":")
                if is_index(major) and is_index(minor):
                    yield (int(major), int(minor)), device.id


def _same(before: list[Device], now: list[Device]) -> bool:
    """Whether sources made for one list do for the other: the same devices, drivers and files."""
    return [_shape(device) for device in before] == [_shape(device) for device in now]


def _shape(device: Device) -> tuple[object, ...]:
    files = {reading.source for key, reading in device.facts.items() if key.startswith(("sensors/", "drm/", "nodes/"))}
    return device.id, device.path, device.chip, device.value("driver"), frozenset(files)
