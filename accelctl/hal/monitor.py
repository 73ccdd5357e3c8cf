"""What changes among the devices: from netlink events, or where there are none by looking again and again.

Both monitors yield the same :class:`~accelctl.hal.udev.Device` objects, with an ``action``. pyudev's vocabulary, and
two things it lacks: messages that nobody attests are counted instead of believed, and when the kernel had to drop
events the devices are listed again and what was missed is made up for.
"""

from __future__ import annotations

import io
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from accelctl.hal.netlink import GROUPS, Counters, Message, Overflow, UeventSocket
from accelctl.hal.udev import Context, Device

INTERVAL = 2.0  # seconds between two looks: a listing of 400 devices costs tens of milliseconds


class _State(NamedTuple):
    """What is remembered of a device: enough to notice a change, and to describe it once it has gone."""

    driver: str | None
    generation: int
    properties: dict[str, str]


class Registry:
    """The devices as last seen, and the differences to what is there now."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, _State] = {}

    def _generation(self, device: Device) -> int:
        """Tells a device from another one that later has the same path: sysfs gives a new folder a new inode number."""
        if not self._context.root.live:
            return 0
        try:
            return os.stat(device.sys_path).st_ino
        except OSError:
            return 0

    def _observe(self, device: Device, known: _State | None) -> _State:
        generation = self._generation(device)
        if known is not None and known.generation == generation:
            return known._replace(driver=device.driver)
        return _State(device.driver, generation, dict(device.properties))

    def learn(self, subsystems: tuple[str, ...]) -> None:
        """Take what is there as known."""
        self._known = {device.sys_path: self._observe(device, None) for device in self._list(subsystems)}

    def _list(self, subsystems: tuple[str, ...]) -> Iterator[Device]:
        listing = self._context.list_devices()
        for subsystem in subsystems:
            listing.match_subsystem(subsystem)
        return iter(listing)

    def note(self, device: Device) -> None:
        """Keep up with an event that arrived by other means."""
        path, action = device.sys_path, device.action
        if action == "remove":
            self._known.pop(path, None)
        elif action == "add":
            self._add(device)
        elif action == "move":
            self._known.pop(self._context.sys_path + device.properties.get("DEVPATH_OLD", ""), None)
            self._add(device)
        elif path in self._known and action in ("bind", "unbind"):
            self._known[path] = self._known[path]._replace(driver=device.driver if action == "bind" else None)

    def _add(self, device: Device) -> None:
        """Remember it if a listing would show it; modules and drivers send events but are in no list."""
        root, subsystem = self._context.root, device.subsystem
        if subsystem and (root.exists(f"sys/class/{subsystem}") or root.exists(f"sys/bus/{subsystem}/devices")):
            self._known[device.sys_path] = self._observe(device, None)

    def differences(self, subsystems: tuple[str, ...]) -> list[Device]:
        """Events that lead from what was known to what is there now: removals, deepest first, then the rest by path."""
        now: dict[str, _State] = {}
        events: list[Device] = []
        gone: list[Device] = []
        for device in self._list(subsystems):
            path, before = device.sys_path, self._known.get(device.sys_path)
            state = now[path] = self._observe(device, before)
            if before is not None and before.generation != state.generation:
                gone.append(self._event("remove", path, before))
                before = None
            if before is None:
                events.append(self._event("add", path, state))
            elif before.driver != state.driver:
                if before.driver is not None:
                    events.append(self._event("unbind", path, state, driver=before.driver))
                if state.driver is not None:
                    events.append(self._event("bind", path, state))
        gone.extend(self._event("remove", path, state) for path, state in self._known.items() if path not in now)
        self._known = now
        return sorted(gone, key=lambda device: device.sys_path, reverse=True) + events

    def _event(self, action: str, path: str, state: _State, driver: str | None = None) -> Device:
        texts = dict(state.properties)
        texts.pop("DRIVER", None)
        named = driver or (state.driver if action != "unbind" else None)
        if named is not None:
            texts["DRIVER"] = named
        texts.update(ACTION=action, DEVPATH=path[len(self._context.sys_path) :])
        return Device.from_event(self._context, texts, "poll")


class _Filters:
    """Which devices are asked for; no filter means all."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, str | None]] = []
        self.tags: list[str] = []

    @property
    def subsystems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(subsystem for subsystem, _ in self.kinds))

    def fit(self, device: Device) -> bool:
        if self.tags and not any(tag in device.tags for tag in self.tags):
            return False
        return not self.kinds or any(
            device.subsystem == subsystem and kind in (None, device.device_type) for subsystem, kind in self.kinds
        )


class _Monitor:
    """What both monitors share: filters, the queue of found events, and waiting."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.started = False
        self._filters = _Filters()
        self._queue: deque[Device] = deque()
        self._registry = Registry(context)

    def filter_by(self, subsystem: str, device_type: str | None = None) -> None:
        """Pass only devices of this subsystem (and type); several calls are alternatives."""
        self._filters.kinds.append((subsystem, device_type))

    def filter_by_tag(self, tag: str) -> None:
        """Pass only devices with this tag; several calls are alternatives."""
        self._filters.tags.append(tag)

    def remove_filter(self) -> None:
        """Pass everything again."""
        self._filters = _Filters()

    def start(self) -> None:
        """Take stock and listen from here on; called by :meth:`poll` when need be."""
        if not self.started:
            self._begin()
            self.started = True

    def _begin(self) -> None:
        self._registry.learn(self._filters.subsystems)

    def _next(self) -> Device | None:
        while self._queue:
            device = self._queue.popleft()
            if self._filters.fit(device):
                return device
        return None

    def __enter__(self) -> _Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop; nothing to do where no descriptor is held."""

    def poll(self, timeout: float | None = None) -> Device | None:
        """The next event, None when ``timeout`` seconds passed without one (None waits for ever, 0 does not wait)."""
        raise NotImplementedError


class Monitor(_Monitor):
    """Events from the kernel or from udevd over netlink."""

    def __init__(self, context: Context, sock: UeventSocket) -> None:
        super().__init__(context)
        self._socket = sock

    @classmethod
    def from_netlink(cls, context: Context, source: str = "udev") -> Monitor:
        """Listen to "udev" (events whose rules have run; needs udevd) or "kernel". OSError without such a socket."""
        if source not in GROUPS:
            raise ValueError(f"source must be one of {', '.join(GROUPS)}, not {source!r}")
        return cls(context, UeventSocket.open(source))

    @property
    def counters(self) -> Counters:
        """What was accepted, and what was not and why."""
        return self._socket.counters

    def fileno(self) -> int:
        """For select and poll; call :meth:`poll` with 0 when it is readable, until that gives None."""
        return self._socket.fileno()

    def set_receive_buffer_size(self, size: int) -> int:
        """Ask for room for ``size`` bytes of unread events; returns what there is."""
        return self._socket.set_receive_buffer_size(size)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def poll(self, timeout: float | None = None) -> Device | None:
        """As :meth:`_Monitor.poll`."""
        self.start()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0.0)
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while True:
            device = self._next()
            if device is not None:
                return device
            if self._receive():
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            waiting.poll(None if left is None else max(1, round(left * 1000)))

    def _receive(self) -> bool:
        """Queue what has arrived; False when nothing had."""
        try:
            message = self._socket.receive()
        except Overflow:
            self._recover()
            return True
        if message is None:
            return False
        self._accept(message)
        return True

    def _accept(self, message: Message) -> None:
        device = Device.from_event(self.context, message.properties, message.origin)
        self._registry.note(device)
        self._queue.append(device)

    def _recover(self) -> None:
        """Events were lost: take in what still waits, then make up for the rest by listing the devices again."""
        while True:
            try:
                message = self._socket.receive()
            except Overflow:
                continue
            if message is None:
                break
            self._accept(message)
        self._queue.extend(self._registry.differences(self._filters.subsystems))


class MonitorPoll(_Monitor):
    """Events found by looking every ``interval`` seconds: add, remove, bind and unbind; a change leaves no trace."""

    def __init__(self, context: Context, interval: float = INTERVAL) -> None:
        super().__init__(context)
        self.interval = interval
        self._due = 0.0

    def _begin(self) -> None:
        super()._begin()
        self._due = time.monotonic() + self.interval

    def fileno(self) -> int:
        """There is no descriptor to wait for: wait :attr:`due_in` seconds instead."""
        raise io.UnsupportedOperation("polling has no file descriptor")

    @property
    def due_in(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due - time.monotonic())

    def poll(self, timeout: float | None = None) -> Device | None:
        """As :meth:`_Monitor.poll`; looks only when the interval is over."""
        self.start()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0.0)
        while True:
            device = self._next()
            if device is not None:
                return device
            now = time.monotonic()
            if now >= self._due:
                self._due = now + self.interval
                self._queue.extend(self._registry.differences(self._filters.subsystems))
                continue
            if deadline is not None and now >= deadline:
                return None
            time.sleep(min(self._due, deadline if deadline is not None else self._due) - now)
