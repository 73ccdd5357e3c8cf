"""Which devices there are, and what probe has to say of them: a look at the machine by a child that ends.

The sampler goes on meanwhile. It looks at the start and whenever devices come, go or change drivers.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from accelctl.abi.rooms import Room
from accelctl.hal.child import Watch
from accelctl.hal.reader import Failed, Finished, Message, Stuck, WatchedChild
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.model.finding import rank
from accelctl.model.report import Report
from accelctl.probes.scan import judge, look

MOST_STUCK = 8
SILENCE_S = 60.0
"""A look that computes for so long without an end is given up."""
_CREDIT_S = 1.0
"""What one call of poll may count at most: whoever was stopped himself condemns nobody."""
Signs = dict[str, tuple[tuple[str, str], ...]]
"""Device id -> (level, rule id), the worst first."""


class Seen(NamedTuple):
    """What a look tells: first the devices, then what is wrong with them."""

    devices: list[Device] | None = None
    signs: Signs | None = None
    problem: str = ""
    """One line: why it ended without telling."""


class Scout:
    """One look. ``poll`` until ``done``."""

    def __init__(self, root: SysRoot, rooms: tuple[Room, ...], deadline_s: float) -> None:
        self.done = False
        self._root, self._rooms = root, rooms
        self._stuck = 0
        self._silent_s, self._polled_at = 0.0, time.monotonic()
        self._child = WatchedChild(self._work, deadline_s=deadline_s)
        self._child.start()

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._child.fileno()

    def poll(self, timeout_s: float) -> Seen | None:
        """What came, or None after so many seconds. A path that hangs is left out."""
        event = self._child.poll(timeout_s)
        now = time.monotonic()
        silent_s = self._silent_s + min(now - self._polled_at, _CREDIT_S)
        self._silent_s, self._polled_at = 0.0 if event is not None else silent_s, now
        if isinstance(event, Message):
            return Seen(devices=event.value)
        if isinstance(event, Finished):
            self.done = True
            return Seen(signs=event.value)
        if isinstance(event, Stuck) and event.path and self._stuck < MOST_STUCK:
            self._stuck += 1
            self._child.restart()
            return Seen(problem=f"{event.path} did not come back while devices were listed: left out")
        if isinstance(event, (Stuck, Failed)):
            self.done = True
            why = event.error if isinstance(event, Failed) else f"it ended ({event.state})"
            return Seen(problem=f"devices could not be listed: {why}")
        if self._silent_s > SILENCE_S:
            self.done = True
            return Seen(problem=f"devices could not be listed: no end after {SILENCE_S:g} s")
        return None

    def close(self) -> None:
        """End the child; safe to call twice."""
        self.done = True
        self._child.close()

    def _work(self, watch: Watch) -> Signs:
        self._root.slot, self._root.quarantine = watch.slot, watch.quarantine
        scan = look(self._root, self._rooms)
        watch.send(list(scan.devices.values()))
        return signs(judge(scan))  # it imports rules: sending has left the slot, so no path is blamed for that


def signs(report: Report) -> Signs:
    """Levels and rules by device, the worst first."""
    found: Signs = {}
    for one in sorted(report.findings, key=lambda one: -rank(one.level)):
        if one.device is not None and one.level != "ok":
            found[one.device] = (*found.get(one.device, ()), (one.level, one.id))
    return found
