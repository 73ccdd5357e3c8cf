"""One step in a child, within its box: what hangs, dies or takes too long ends there, and the run goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from accelctl.accept.bringup.step import FAIL, Came, Say, finding, undecided
from accelctl.errors import AccelError, NoDeviceError, PermissionDenied, UsageError
from accelctl.exits import SIGNAL_BASE
from accelctl.hal.child import Watch
from accelctl.hal.reader import Event, Failed, Finished, Message, Stuck, WatchedChild, hangs_yet

WISHED = ("SIGTERM", "SIGHUP", "SIGINT")
ABSENT = ("no_device", "permission")
"""Kinds of errors that are about what is not there for us, not about what is."""
IDS = ("STEP-HANG", "STEP-FAILED")
FOREVER = 1e9
"""Of the watched path: steps watch their own calls, and this one watches only the clock."""


def boxed(name: str, device: str, work: Callable[[Say], Came], box_s: float, say: Say) -> Came:
    """What ``work`` came to, at the latest after ``box_s``. It may load what it wants: nothing of it stays here.

    A service that it starts reads no configuration: an op that somebody's profile switches off is no op of the device
    that was found right."""

    def child(watch: Watch) -> Came:
        os.environ["ACCELCTL_NO_CONFIG"] = "1"
        return work(watch.send)

    with WatchedChild(child, deadline_s=FOREVER) as running:
        running.start()
        end = time.monotonic() + box_s
        event: Event | None = Message("")
        while isinstance(event, Message):
            say(str(event.value))
            event = running.poll(max(0.0, end - time.monotonic()))
    if isinstance(event, Finished):
        came: Came = event.value
        return came
    if event is None:
        return _cut(name, device, box_s)
    return _failed(name, device, event)


def _cut(name: str, device: str, box_s: float) -> Came:
    """Out of time. A process that SIGKILL does not end waits in the kernel: that is a hang, whatever the clock says."""
    why = f"not finished within {round(box_s, 1):g} s"
    if not hangs_yet(""):
        return undecided(why)._replace(cut=True)
    why += ", and its process cannot be ended: it waits in the kernel"
    fix = ("ps -eo pid,stat,wchan:32,comm | grep ' D'", "sudo dmesg | tail -n 50")
    return Came(
        FAIL, why, (finding("STEP-HANG", f"{name}: {why}", device, (("clock", why),), fix),), hang=name, cut=True
    )


def _ended(event: Event) -> str:
    """The signal by which somebody ended the step's process; empty: it was nobody's wish."""
    if isinstance(event, Failed) and isinstance(event.error, SystemExit):
        number = int(event.error.code or 0) - SIGNAL_BASE
        return next((name for name in WISHED if number == signal.Signals[name]), "")
    state = event.state if isinstance(event, Stuck) else ""
    return next((name for name in WISHED if name in state), "")


def _failed(name: str, device: str, event: Event) -> Came:
    """A right or a device that is missing decides nothing; what the device did to the step's process does."""
    error = event.error if isinstance(event, Failed) else None
    ended = _ended(event)
    if ended:
        return undecided(f"ended by {ended} before it was done")._replace(cut=True)
    if isinstance(error, (UsageError, NoDeviceError, PermissionDenied)):
        return undecided(error.message)
    if isinstance(error, AccelError) and error.kind in ABSENT:  # of a process that told it in its own words
        return undecided(error.message)
    if isinstance(error, ModuleNotFoundError) and (error.name or "accelctl").partition(".")[0] != "accelctl":
        return undecided(f"the Python package {error.name} is not installed")
    if error is not None and not isinstance(error, AccelError):
        return undecided(f"accelctl itself failed: {type(error).__name__}: {error}")
    if isinstance(error, AccelError):
        why, hang = error.message, error.message if error.kind == "timeout" else ""
    else:
        assert isinstance(event, Stuck)
        why, hang = f"the step's process ended without an answer ({event.state})", ""
    fix = ("sudo dmesg | tail -n 50   (look for the driver's own complaint)", "accelctl probe")
    found = finding("STEP-HANG" if hang else "STEP-FAILED", f"{name}: {why}", device, ((name, why),), fix)
    return Came(FAIL, why, (found,), hang=hang)
