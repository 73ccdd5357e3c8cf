"""The scan in a watched child: a driver that never answers becomes a finding, not a command that never ends."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

from accelctl.abi.rooms import Room
from accelctl.errors import UsageError
from accelctl.hal.child import Watch
from accelctl.hal.reader import Outcome, Stuck, run_watched
from accelctl.hal.root import SysRoot, open_root
from accelctl.model.finding import Evidence, Finding, rank
from accelctl.model.report import Report
from accelctl.probes.scan import probe

T = TypeVar("T")

DEADLINE_S = 5.0
"""Seconds after which one read counts as hung; the kernel itself complains after 120 s (hung_task)."""

IDS = ("HANG-READ",)
"""Findings that come from here; each has its page in data/explain/."""

MAX_LOG = 256 << 20


def scan(
    spec: str,
    *,
    allow_wake: bool = False,
    kmsg: str | None = None,
    rooms: Iterable[Room] | None = None,
    deadline_s: float = DEADLINE_S,
    trace: str = "",
) -> Report:
    """Probe the root named on the command line. Paths that hang are left out, named in ``report.stuck`` and found.

    ``trace`` names a new file for what was read, as Chrome trace JSON.
    """
    return scanned(spec, _as_it_is, allow_wake, kmsg, rooms=rooms, deadline_s=deadline_s, trace=trace)


def _as_it_is(report: Report) -> Report:
    return report


def scanned(
    spec: str,
    make: Callable[[Report], T],
    allow_wake: bool = False,
    kmsg: str | None = None,
    *,
    rooms: Iterable[Room] | None = None,
    deadline_s: float = DEADLINE_S,
    trace: str = "",
) -> T:
    """What ``make`` makes of the report that :func:`scan` gives, made in the child: for a report of 64 devices to cross
    the pipe takes as long as to make its JSON text, and the text is done."""
    stuck: list[Stuck] = []

    def work(root: SysRoot, log: str | None) -> T:
        report = probe(wrap(root), rooms, kmsg=log)
        if root.slot is not None:
            root.slot.enter("")  # from here on no path is touched
        add_stuck(report, stuck, deadline_s)
        return make(report)

    with _traced(trace) as wrap:
        return watched(spec, work, allow_wake, kmsg, deadline_s, stuck).value


@contextmanager
def _traced(path: str) -> Iterator[Callable[[SysRoot], SysRoot]]:
    """What a child does to its root so that it is traced. The file is the parent's: a child may be given up."""
    if not path:
        yield lambda root: root
        return
    from accelctl.hal.trace import Trace
    from accelctl.hal.tracedtree import TracedTree

    def wrap(root: SysRoot) -> SysRoot:
        root.tree = TracedTree(root.tree, Trace(path, join=True))
        return root

    trace = Trace(path)
    try:
        yield wrap
    finally:
        trace.close()


def watched(
    spec: str,
    work: Callable[[SysRoot, str | None], T],
    allow_wake: bool = False,
    kmsg: str | None = None,
    deadline_s: float = DEADLINE_S,
    stuck: list[Stuck] | None = None,
) -> Outcome[T]:
    """Run ``work(root, kmsg)`` in a child that can be given up. ``stuck`` is filled with what hung, before it runs
    again."""
    piped = _piped_log(kmsg)

    def child(watch: Watch) -> T:
        root = open_root(spec, allow_wake=allow_wake)
        root.slot = watch.slot
        root.quarantine = watch.quarantine
        if piped is not None:  # the child's own standard input is /dev/null
            sys.stdin = io.TextIOWrapper(io.BytesIO(piped))
        return work(root, "-" if piped is not None else kmsg)

    return run_watched(child, deadline_s=deadline_s, stuck=stuck)


def _piped_log(kmsg: str | None) -> bytes | None:
    """What stands in standard input or another pipe, read before the fork, after which it is out of reach."""
    if kmsg is None:
        return None
    if kmsg == "-":
        return _capped(sys.stdin.buffer, "standard input")
    try:
        if not stat.S_ISFIFO(os.stat(kmsg).st_mode):
            return None
        with open(kmsg, "rb") as source:
            return _capped(source, kmsg)
    except OSError:
        return None  # the child says what is wrong with it


def _capped(source: BinaryIO, name: str) -> bytes:
    data = source.read(MAX_LOG + 1)
    if len(data) > MAX_LOG:
        raise UsageError(
            f"{name}: more than {MAX_LOG >> 20} MiB, which no kernel log is", "sudo dmesg | accelctl probe --kmsg -"
        )
    return data


def add_stuck(report: Report, stuck: Iterable[Stuck], deadline_s: float = DEADLINE_S) -> None:
    """Enter the paths that hung into the report, each as a finding of the device it belongs to."""
    for one in stuck:
        report.stuck.append(one.path)
        report.findings.append(_finding(report, one, deadline_s))
    report.findings.sort(key=lambda found: (-rank(found.level), found.device or "", found.id, found.title))


def _finding(report: Report, one: Stuck, deadline_s: float) -> Finding:
    owner = max(
        (device for device in report.devices if one.path.startswith(device.path + "/")),
        key=lambda device: len(device.path),
        default=None,
    )
    waits = {"D": "waits in the kernel and cannot be ended", "S": "was asleep in it", "R": "was busy in it"}
    state = waits.get(one.state, f"died: {one.state}")
    where = f", in {one.wchan}" if one.wchan else ""
    return Finding(
        "HANG-READ",
        "error",
        f"reading {one.path} did not come back within {deadline_s:g} s",
        owner.id if owner is not None else None,
        (Evidence(one.path, f"after {one.age_s:.1f} s the reader {state}{where}"),),
        (
            "sudo dmesg | tail -n 50   (look for the driver's own complaint, or hung_task)",
            "sudo cat /proc/PID/stack   (of a process in state D: ps -eo pid,stat,wchan:32,comm | grep ' D')",
            "reset the device by its driver's documented way, or restart the machine; then probe again",
        ),
        "certain",
        ("everything else of this path is unknown in this report",),
    )
