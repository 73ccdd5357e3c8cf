"""`accelctl top --demo`: a real service on the simulated chip, with real clients, one of which leaks.

Nothing here is played back or made up: the numbers come through the same service, protocol and source as those of any
other service. What is simulated is the device, and the title says so.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec

from accelctl.errors import NoDeviceError, extra
from accelctl.hal import ownpython
from accelctl.hal.claim import private_folder
from accelctl.hal.sidesocket import check_path
from accelctl.model.snapshot import EventMark, Snapshot
from accelctl.telemetry.cost import BUDGET, PERIOD_S
from accelctl.telemetry.demoload import LEAK_BYTES, LEAK_EVERY_S, ROLES
from accelctl.telemetry.service import ServiceFeed

MEMORY, SPACE = "256M", "va_bytes=256M"
"""What the service may hold, and the addresses that a session has: both have their end in sight within minutes."""
STOP_S = 5.0
LEAK_PER_S = LEAK_BYTES / LEAK_EVERY_S
"""What the leaking client loses, at most."""
_NEEDED = ("grpc", "numpy", "ml_dtypes", "crc32c")


class DemoFeed:
    """A Feed of a service of our own. Its processes end with :meth:`close`, and with us, however we end."""

    def __init__(self, *, period_s: float = PERIOD_S, budget: float = BUDGET) -> None:
        """NoDeviceError where the packages of a service are not installed."""
        for name in _NEEDED:
            if find_spec(name) is None:
                raise NoDeviceError(f"--demo needs {name}, which is not installed", extra("umd"))
        path = check_path(f"{private_folder()}/demo-{os.getpid()}.sock")
        self.address = f"unix:{path}"
        self._log = tempfile.TemporaryFile(prefix="accelctl-demo-")  # noqa: SIM115 - until close
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._closed = self._answered = False
        serve = ["serve", "--device", "sim:0", "--listen", self.address, "--memory", MEMORY, "--sim", SPACE]
        try:
            self._begin("service", "accelctl", [*serve, "--stop-on-eof"])
            for role in ROLES:
                self._begin(role, "accelctl.telemetry.demoload", [role, self.address])
            self._feed = ServiceFeed(self.address, period_s=period_s, budget=budget)
        except BaseException:
            self._end()
            raise

    def _begin(self, name: str, module: str, words: list[str]) -> None:
        """A child, whose standard input says that we are there."""
        self._children[name] = subprocess.Popen(
            ownpython.command(module, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    @property
    def title(self) -> str:
        """See Feed."""
        return "demo (simulated)"

    @property
    def seekable(self) -> bool:
        """See Feed."""
        return False

    @property
    def pids(self) -> dict[str, int]:
        """Role ("service", "compute", "churn", "leak") -> process."""
        return {name: child.pid for name, child in self._children.items()}

    def seek(self, seconds: float) -> Snapshot | None:
        """What was is not kept here."""
        return None

    def fileno(self) -> int:
        """See ServiceFeed."""
        return self._feed.fileno()

    def poll(self, timeout_s: float) -> Snapshot | None:
        """See Feed. A part of the demonstration that has ended is an event."""
        found = self._feed.poll(timeout_s)
        if found is None:
            return None
        self._answered = self._answered or bool(found.devices)
        if not self._answered:  # that nobody answers yet is no failure
            starting = tuple(replace(one, state="starting", path="", since_ns=0) for one in found.health)
            found = replace(found, health=starting, events=())
        return replace(found, events=(*found.events, *self._ended(found.taken_ns)))

    def _ended(self, now_ns: int) -> list[EventMark]:
        events = []
        for name, child in self._children.items():
            code = child.poll()
            if code is not None and name not in self._told:
                self._told.add(name)
                text = f"the demo's {name} ended with status {code}: {self._said()}"
                events.append(EventMark(at_ns=now_ns, kind="service", device="", level="error", text=text))
        return events

    def _said(self) -> str:
        """The last line of what the children complained about."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """See Feed."""
        if not self._closed:
            self._closed = True
            self._feed.close()
            self._end()

    def _end(self) -> None:
        """Clients first; the service then has nothing to wait for."""
        for child in reversed(self._children.values()):
            if child.stdin is not None:
                child.stdin.close()
        limit = time.monotonic() + STOP_S
        for child in self._children.values():
            try:
                child.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._log.close()
