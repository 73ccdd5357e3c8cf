"""A worker that stands in for the suite's: it dies, hangs or answers as its device's name says."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

from accelctl.hal.worker import Wire


def main(wire: Wire, arguments: Sequence[str]) -> None:
    """``sim:<what>@<id>``: what happens at that assertion; every other one passes."""
    device, *ids = arguments
    what, _, at = device.removeprefix("sim:").partition("@")
    if what == "refuses":
        wire.send({"error": ("no_device", "it is not here", "look elsewhere")})
        wire.receive()
    if ids == ["leave"]:
        if what == "cries":
            raise ValueError("why it ended")
        return
    if len(ids) == 1 and what == "lost":
        wire.send({"error": ("device_lost", "it fell off the bus", "")})
        wire.receive()
    if len(ids) == 1 and what == "late":
        threading.Event().wait()
    wire.send({"capabilities": {"peer": "absent"}, "simulated": True, "proven": "simulated"})
    for one in ids:
        if one == at and what == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if one == at and what == "exits":
            os._exit(3)
        if one == at and what == "hangs":
            threading.Event().wait()
        wire.send(("pass", "as ordered"))
    wire.receive()
