"""What happens while we watch, on the time axis of the numbers: devices that come and go, faults, resets, PCIe errors.

Sockets and the kernel log are opened by the parent and inherited by each sampler child: what the kernel says while one
child is replaced by the next waits in them. Nothing here waits: each tick takes what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from accelctl.abi.rooms import Directory, Room
from accelctl.errors import AccelError
from accelctl.hal import kmsg
from accelctl.hal.root import SysRoot
from accelctl.hal.udev import Context
from accelctl.model.device import Device
from accelctl.model.snapshot import EventMark
from accelctl.probes.events import Event, Fault, Interest, Known
from accelctl.probes.filters import AnyOf
from accelctl.probes.pci import parse_aer
from accelctl.probes.rules.aer import kinds, total
from accelctl.probes.watch import Classifier, Watcher, log_classifier, open_source
from accelctl.telemetry.source import Draft, Tick

MOST_LINES = 200
"""Lines of the kernel log that one tick looks at: in a storm the rest waits in the kernel, which drops the oldest."""
AER_NS = 5_000_000_000
"""Between two looks at the error counters."""
AER_LEVELS = {"correctable": "warn", "nonfatal": "error", "fatal": "critical"}
MOVES = frozenset({"add", "remove", "bind", "unbind", "move"})
"""Actions after which devices are listed again."""


def mark(event: Event) -> EventMark:
    """An event of `watch`, as a mark."""
    fault = event.fault
    what = event.node or (event.devpath or "").rpartition("/")[2]
    if fault is None:
        kind, level, text = "uevent", "info", f"{event.action} {event.subsystem or 'device'} {what}".rstrip()
    else:
        kind, level, text = kind_of(fault), fault.level, f"{fault.id}: {fault.title}"
    return EventMark(at_ns=event.time_ns, kind=kind, device=event.device or "", level=level, text=text)


def kind_of(fault: Fault) -> str:
    """reset, aer or fault, by the rule that found it."""
    words = fault.id.split("-")
    return "reset" if "RESET" in words else "aer" if "AER" in words else "fault"


class Uevents:
    """Events of the kernel and of udevd about accelerators."""

    name = "uevents"

    def __init__(self, root: SysRoot, rooms: Iterable[Room], wanted: AnyOf) -> None:
        """Opens the sockets: in the parent, and before any thread."""
        self._context, self._wanted = Context(root), wanted
        self._interest = Interest(Directory(rooms))
        self.said: list[str] = []
        self._events = open_source(self._context, self._interest, self.said.append)
        self._watcher: Watcher | None = None
        self._first = True

    def descriptors(self) -> list[int]:
        """What the child has to inherit."""
        return self._events.descriptors()

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source. The first Snapshot does not wait for what it costs to learn all devices: sockets keep what
        comes meanwhile."""
        if self._first:
            self._first = False
            return
        if self._watcher is None:
            known = Known(self._context, self._interest)
            known.learn()
            self._watcher = Watcher(self._events, None, known, self._interest, self._wanted)
        for event in self._watcher.run(0.0):
            draft.events.append(mark(event))
            draft.stale = draft.stale or event.action in MOVES
        for text in self.said:
            draft.events.append(EventMark(at_ns=tick.now_ns, kind="source", device="", level="warn", text=text))
        self.said.clear()

    def close(self) -> None:
        """Close the sockets."""
        self._events.close()


class KernelLog:
    """Faults that the kernel reports in its log, found by the log rules of probe."""

    name = "kernel log"

    def __init__(self, root: SysRoot, rooms: Iterable[Room], devices: list[Device], fd: int, everything: bool) -> None:
        """``fd``: of the log device, at its end; ``everything``: also faults of no device or of one that is not
        watched."""
        self._root, self._rooms, self._devices, self._fd = root, tuple(rooms), devices, fd
        self._everything = everything
        self._ids = {device.id for device in devices}
        self._classify: Classifier | None = None

    def descriptors(self) -> list[int]:
        """What the child has to inherit."""
        return [self._fd]

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source."""
        tick.enter("dev/kmsg")
        for line in kmsg.drain(self._fd, MOST_LINES):
            found = self._classifier()(line.text)
            if found is None:
                continue
            identity, device, level, title = found
            if self._everything or device in self._ids:
                fault = Fault(identity, level, title, line.text)
                draft.events.append(
                    EventMark(
                        at_ns=_wall_ns(line.time_s, tick),
                        kind=kind_of(fault),
                        device=device or "",
                        level=level,
                        text=f"{identity}: {title}",
                    )
                )

    def _classifier(self) -> Classifier:
        """Made when the first line comes: most machines are quiet, and the rules take time to load."""
        if self._classify is None:
            self._classify = log_classifier(self._root, self._rooms, self._devices)
        return self._classify

    def close(self) -> None:
        """The descriptor is its opener's."""


def _wall_ns(seconds: float | None, tick: Tick) -> int:
    """A time of the kernel log (its clock is the monotonic one, but for drift) on the wall clock."""
    if seconds is None:
        return tick.now_ns
    return tick.now_ns - max(0, tick.monotonic_ns - round(seconds * 1e9))


def open_log() -> int | str:
    """The log device from here on, or why it is not read."""
    try:
        return kmsg.open_device(newest=True)
    except OSError as error:
        return f"kernel log not read: {(error.strerror or str(error)).lower()}"


class PcieErrors:
    """Counters of PCIe errors that rise, of the devices that are awake."""

    name = "PCIe errors"

    def __init__(self, root: SysRoot, devices: Iterable[Device]) -> None:
        self._root = root
        self._files = list(_counters(devices))
        self._before: dict[str, dict[str, int]] = {}
        self._due = 0

    def sample(self, draft: Draft, tick: Tick) -> None:
        """See Source."""
        if tick.monotonic_ns < self._due:
            return
        self._due = tick.monotonic_ns + AER_NS
        for device, kind, path in self._files:
            if device not in tick.asleep:
                draft.reads += 1
                counts = self._root.read(path, parse_aer).value
                if counts is not None:
                    draft.events.extend(self._step(device, kind, path, counts, tick))

    def _step(self, device: str, kind: str, path: str, counts: dict[str, int], tick: Tick) -> Iterator[EventMark]:
        before = self._before.get(path)
        self._before[path] = counts
        if before is None or total(counts) <= total(before):
            return
        new = {name: max(0, count - before.get(name, 0)) for name, count in counts.items()}
        number, words = total(new), kinds(new)
        errors = f"{number} {kind} PCIe error{'s' if number > 1 else ''}"
        text = f"PCI-AER-{kind.upper()}: {errors}{f' ({words})' if words else ''}"
        yield EventMark(at_ns=tick.now_ns, kind="aer", device=device, level=AER_LEVELS[kind], text=text)

    def close(self) -> None:
        """The root keeps the files."""


def _counters(devices: Iterable[Device]) -> Iterator[tuple[str, str, str]]:
    for device in devices:
        for kind in AER_LEVELS:
            known = device.reading(f"aer/{kind}")
            if known is not None:
                yield device.id, kind, known.source


def try_open(make: Callable[[], Uevents]) -> Uevents | str:
    """The events of this machine, or one line that says why there are none."""
    try:
        return make()
    except (AccelError, OSError) as error:
        return f"no events of devices: {error}"
