"""Events of accelerators as they happen: from udevd, the kernel or by polling, and faults from its log.

udevd and the kernel are listened to both. An event is told when udevd has handled it, for then its node can be opened;
when udevd stays silent (stuck, or its messages do not reach this network namespace) the kernel's own event is told.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from accelctl.abi.rooms import Directory, Room
from accelctl.abi.rules import RuleContext
from accelctl.hal import kmsg, udev
from accelctl.hal.monitor import INTERVAL, Monitor, MonitorPoll
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device as ModelDevice
from accelctl.model.report import Report
from accelctl.probes import engine
from accelctl.probes.events import DETAILS, Event, Fault, Interest, Known, fault_of
from accelctl.probes.filters import AnyOf
from accelctl.probes.scan import look

PATIENCE = 5.0  # seconds for udevd to handle an event; its own workers are killed after 180 (event_timeout, udev.conf)
BUFFER = 1 << 20  # bytes of unread events: an unplugged 8-GPU tray gives some hundred events of up to 2 KiB
LONGEST_WAIT = 3600.0  # seconds: poll(2) takes no more than 24 days
REMEMBERED = 4096  # sequence numbers of events already told

#: (rule id, device id or None, level, title), or None for a line that is no fault.
Classifier = Callable[[str], "tuple[str, str | None, str, str] | None"]
Say = Callable[[str], None]


class Source(Protocol):
    """Where device events come from."""

    name: str

    def descriptors(self) -> list[int]:
        """What becomes readable when there are events."""

    def due_in(self) -> float | None:
        """Seconds until :meth:`events` should be asked even if nothing became readable."""

    def events(self) -> list[udev.Device]:
        """What happened since the last call."""

    def close(self) -> None:
        """Stop."""


class PollSource:
    """Looks at sysfs every two seconds."""

    def __init__(self, context: udev.Context, interest: Interest, why: str, interval: float = INTERVAL) -> None:
        self.name = f"polling sysfs every {interval:g} s ({why}); changes that leave no trace are not seen"
        self._monitor = MonitorPoll(context, interval)
        for subsystem in interest.polled:
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def descriptors(self) -> list[int]:
        """None: there is nothing to wait for."""
        return []

    def due_in(self) -> float | None:
        """Seconds until the next look."""
        return self._monitor.due_in

    def events(self) -> list[udev.Device]:
        """The differences, if the time has come to look."""
        return list(iter(lambda: self._monitor.poll(0), None))

    def close(self) -> None:
        """Nothing is held."""


class NetlinkSource:
    """The kernel's events, and udevd's where it runs. The sockets hear from the start; what is there already is learnt
    with the first look, which costs more than all before it."""

    def __init__(self, kernel: Monitor, udevd: Monitor | None, say: Say, patience: float = PATIENCE) -> None:
        self.name = "netlink kernel" if udevd is None else "netlink udev"
        self._kernel, self._udevd, self._say, self._patience = kernel, udevd, say, patience
        self._waiting: dict[int, tuple[float, udev.Device]] = {}
        self._told: deque[int] = deque(maxlen=REMEMBERED)
        self._overflows = 0
        self._silent = False

    def _monitors(self) -> list[Monitor]:
        return [self._kernel] if self._udevd is None else [self._kernel, self._udevd]

    def descriptors(self) -> list[int]:
        """Both sockets."""
        return [monitor.fileno() for monitor in self._monitors()]

    def due_in(self) -> float | None:
        """Seconds until udevd's time for the oldest event is over."""
        deadlines = [deadline for deadline, _ in self._waiting.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def events(self) -> list[udev.Device]:
        """Events that are ready to be told, in the order in which they got ready."""
        ready: list[udev.Device] = []
        for device in _drain(self._kernel):
            if self._udevd is None or not device.sequence_number:
                ready.append(device)
            elif device.sequence_number not in self._told:
                self._waiting[device.sequence_number] = (time.monotonic() + self._patience, device)
        for device in _drain(self._udevd):
            number = device.sequence_number
            self._waiting.pop(number, None)
            if device.origin == "udev" and number not in self._told:
                self._told.append(number)
                ready.append(device)
        ready.extend(self._overdue())
        self._check_overflow()
        return ready

    def _overdue(self) -> list[udev.Device]:
        """Events that udevd did not send on in time, as the kernel sent them."""
        now = time.monotonic()
        late = [number for number, (deadline, _) in self._waiting.items() if deadline <= now]
        if late and not self._silent:
            self._silent = True
            self._say(f"udevd was silent for {self._patience:g} s: its events are told as the kernel sent them")
        self._told.extend(late)
        return [self._waiting.pop(number)[1] for number in late]

    def _check_overflow(self) -> None:
        count = self._kernel.counters.overflows
        if count != self._overflows:
            self._overflows = count
            self._say("events were lost, too many came at once; the devices were listed again to make up for them")

    def close(self) -> None:
        """Close both sockets."""
        for monitor in self._monitors():
            monitor.close()


def _drain(monitor: Monitor | None) -> Iterator[udev.Device]:
    while monitor is not None:
        device = monitor.poll(0)
        if device is None:
            return
        yield device


def open_source(context: udev.Context, interest: Interest, say: Say, *, poll: bool = False) -> Source:
    """The best source there is."""
    if poll:
        return PollSource(context, interest, "as asked for")
    # Since 4.18 the kernel sends device events to network namespaces of the initial user namespace only
    # (lib/kobject_uevent.c), and in another one it cannot attest that the sender is root.
    mapping = (context.root.text("proc/self/uid_map") or "0 0 4294967295").split()
    if mapping != ["0", "0", "4294967295"]:
        return PollSource(context, interest, "a user namespace gets no events from the kernel")
    try:
        kernel = Monitor.from_netlink(context, "kernel")
    except OSError as error:
        return PollSource(context, interest, f"no netlink events: {os.strerror(error.errno or 0).lower()}")
    kernel.set_receive_buffer_size(BUFFER)
    udevd = None
    if context.has_udevd:
        udevd = Monitor.from_netlink(context, "udev")
        udevd.set_receive_buffer_size(BUFFER)
    return NetlinkSource(kernel, udevd, say)


class LogSource:
    """New lines of the kernel log that are faults."""

    def __init__(self, fd: int, classify: Classifier) -> None:
        self._fd = fd
        self._classify = classify

    def descriptors(self) -> list[int]:
        """The log device."""
        return [self._fd]

    def faults(self) -> Iterator[tuple[str | None, Fault]]:
        """(device id, fault) of the lines that came."""
        for line in kmsg.drain(self._fd):
            found = self._classify(line.text)
            if found is not None:
                identity, device, level, title = found
                yield device, Fault(identity, level, title, line.text)

    def close(self) -> None:
        """Close the log device."""
        os.close(self._fd)


#: Lines that the longest sentence of a driver runs over ("... has fallen off the bus" of nvidia).
SENTENCE = 3


def open_log(classify: Classifier) -> LogSource | str:
    """The kernel log from here on, or one line that says why it is not read."""
    try:
        return LogSource(kmsg.open_device(newest=True), classify)
    except PermissionError:
        return "kernel log not read: no permission; sudo $(command -v accelctl) watch, or kernel.dmesg_restrict=0"
    except OSError as error:
        if error.errno == errno.ENOENT:
            return "kernel log not read: there is no /dev/kmsg here (a container?)"
        return f"kernel log not read: {(error.strerror or str(error)).lower()}"


def log_classifier(root: SysRoot, rooms: Iterable[Room], known: list[ModelDevice] | None = None) -> Classifier:
    """The log rules of probe, applied to each new line; the worst finding that the line completes counts.

    The lines just before are shown with it, because some sentences run over three lines and mean something only then.
    ``known``: the devices that are here, where somebody has looked already.
    """
    directory = Directory(rooms)
    rules = [entry for entry in engine.collect(directory.rooms) if entry.needs == "log"]
    # whose line it is depends on what is here
    devices = list(look(root, directory.rooms).devices.values()) if known is None else known
    before: deque[str] = deque(maxlen=SENTENCE - 1)

    def classify(line: str) -> tuple[str, str | None, str, str] | None:
        text = "\n".join((*before, line))
        before.append(line)
        report = Report(root.tree.name, root.live, devices=devices)
        context = RuleContext(root, report, directory, _Line("kernel log", text))
        for worst in engine.run(context, rules):
            if any(entry.raw and entry.raw.rpartition("\n")[2].strip() in line for entry in worst.evidence):
                return worst.id, worst.device, worst.level, worst.title
        return None

    return classify


@dataclass
class _Line:
    """A log of one line, as rules see it."""

    source: str
    text: str


class Watcher:
    """Joins the sources into one stream of events about the accelerators that are asked for."""

    def __init__(self, source: Source, log: LogSource | None, known: Known, interest: Interest, wanted: AnyOf) -> None:
        self._source, self._log, self._known, self._interest, self._wanted = source, log, known, interest, wanted

    def run(self, duration: float | None = None, output: int | None = None) -> Iterator[Event]:
        """Events until ``duration`` seconds are over (None: for ever).

        BrokenPipeError when nobody reads the descriptor ``output`` any more: without it, watch would outlive its reader
        until the next event.
        """
        end = None if duration is None else time.monotonic() + duration
        waiting = select.poll()
        for fd in [*self._source.descriptors(), *(self._log.descriptors() if self._log else [])]:
            waiting.register(fd, select.POLLIN)
        if output is not None:
            waiting.register(output, 0)  # only for the hang-up that poll(2) always reports
        while True:
            yield from self._pending()
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            spans = [span for span in (left, self._source.due_in()) if span is not None]
            for fd, happened in waiting.poll(max(1, round(min(*spans, LONGEST_WAIT) * 1000)) if spans else None):
                if fd == output and happened & (select.POLLERR | select.POLLHUP):
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _pending(self) -> Iterator[Event]:
        for device in self._source.events():
            if self._interest(device):
                event = self._device_event(device)
                if event is not None:
                    yield event
        if self._log is not None:
            for identity, fault in self._log.faults():
                if self._is_wanted(identity):
                    yield self._log_event(identity, fault)

    def _device_event(self, device: udev.Device) -> Event | None:
        known = self._known.describe(device)
        event = None
        if self._wanted(known):
            event = Event(
                time_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                action=device.action or "change",
                device=known.id,
                subsystem=device.subsystem,
                devpath=device.device_path,
                node=device.device_node,
                driver=device.properties.get("DRIVER") or known.value("driver"),
                source=device.origin,
                sequence=device.sequence_number,
                detail={name: device.properties[name] for name in DETAILS if name in device.properties},
                fault=fault_of(device),
            )
        self._known.settle(device, known)
        return event

    def _is_wanted(self, identity: str | None) -> bool:
        """A fault that names no known device is told only when no filter was given."""
        known = self._known.get(identity)
        return not self._wanted.filters if known is None else self._wanted(known)

    def _log_event(self, identity: str | None, fault: Fault) -> Event:
        known = self._known.get(identity)
        driver = known.value("driver") if known is not None else None
        now = time.time_ns(), time.monotonic_ns()
        return Event(*now, "fault", identity, None, None, None, driver, "kmsg", fault=fault)

    def close(self) -> None:
        """Close all sources."""
        self._source.close()
        if self._log is not None:
            self._log.close()
