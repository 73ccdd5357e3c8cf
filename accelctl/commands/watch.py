"""`accelctl watch`: accelerators that come, go, change or fail, one line each."""

from __future__ import annotations

import math
import signal
import sys
from itertools import islice
from types import FrameType
from typing import Annotated, NoReturn

import typer

from accelctl.abi.rooms import Directory, all_rooms
from accelctl.errors import UsageError
from accelctl.hal.root import open_root
from accelctl.hal.udev import Context
from accelctl.probes.events import Interest, Known
from accelctl.probes.filters import AnyOf, parse_filters
from accelctl.probes.watch import LogSource, Watcher, log_classifier, open_log, open_source
from accelctl.render import events, notes

EXAMPLES = (
    ("accelctl watch", "until Ctrl-C"),
    ("accelctl watch --json --device vendor=amd", "one JSON object a line, AMD devices only"),
    ("accelctl watch --count 1 --duration 60", "wait at most a minute for one event"),
    ("sudo $(command -v accelctl) watch", "also faults in the kernel log, where only root may read it"),
)


def watch(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, schema accelctl.event/1")] = False,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="FILTER", help="only these devices; repeat for alternatives")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="stop after N events")] = None,
    duration: Annotated[float | None, typer.Option("--duration", metavar="SECONDS", help="stop after a time")] = None,
    no_kmsg: Annotated[bool, typer.Option("--no-kmsg", help="do not read faults from the kernel log")] = False,
    poll: Annotated[bool, typer.Option("--poll", help="look at sysfs every 2 s instead of waiting for events")] = False,
    root: Annotated[str, typer.Option("--root", hidden=True)] = "/",
) -> None:
    """Print events of accelerators as they happen: add, remove, bind, unbind, change, and faults.

    One unplugged card gives many events; they all carry the id of the card, so that they can be put together again.
    """
    wanted = _check(root, device, duration)
    signal.signal(signal.SIGTERM, _terminated)
    watcher = _watcher(wanted, poll=poll, log=not no_kmsg)
    try:
        for event in islice(watcher.run(duration, _stdout()), count):
            events.emit(event, as_json=as_json)
    finally:
        watcher.close()


def _check(root: str, device: list[str] | None, duration: float | None) -> AnyOf:
    if root not in ("", "/"):
        raise UsageError(
            "watch needs the running machine: nothing happens on a captured one", f"accelctl probe --root {root}"
        )
    if duration is not None and not (math.isfinite(duration) and duration > 0):
        raise UsageError("--duration: a number of seconds above 0", "--duration 60")
    wanted = parse_filters(device)
    virtual = next((one.virtual for one in wanted.filters if one.virtual), None)
    if virtual is not None:
        raise UsageError(
            f"--device {virtual}: not a device of this machine, nothing can happen to it", "accelctl probe --brief"
        )
    return wanted


def _watcher(wanted: AnyOf, *, poll: bool, log: bool) -> Watcher:
    """Open the sources first and look second, so that nothing falls in between; then say what is watched, by what."""
    root = open_root("/")
    rooms = all_rooms()
    interest = Interest(Directory(rooms))
    context = Context(root)
    source = open_source(context, interest, notes.warn, poll=poll)
    said = open_log(log_classifier(root, rooms)) if log else "kernel log not read: --no-kmsg"
    known = Known(context, interest)
    known.learn()
    found = [one.id for one in known.devices if wanted(one)]
    what = "watching " + ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    if not found:
        what = f"no device is {wanted.text} now" if wanted.filters else "no accelerator is here now"
        what = f"waiting: {what}"
    notes.note(f"{what}; source: {source.name}; {said if isinstance(said, str) else 'kernel log'}")
    return Watcher(source, said if isinstance(said, LogSource) else None, known, interest, wanted)


def _stdout() -> int | None:
    """The descriptor of standard output, None where it is none (in tests)."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    """End as a shell expects of a program that SIGTERM ended, but in order."""
    raise SystemExit(128 + signum)
