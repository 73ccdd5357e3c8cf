"""--kmemleak: the kernel's own search for lost memory, before and after whatever the run does."""

from __future__ import annotations

import os
from collections.abc import Callable

from accelctl.errors import NoDeviceError
from accelctl.hal.root import open_root
from accelctl.model.stressreport import StressReport
from accelctl.stress import kmemleak


def searched(work: Callable[[], StressReport]) -> StressReport:
    """Search, work, search again: what is new and was allocated by our workers is the kernel's defect, with the
    command line that shows it. NoDeviceError where the kernel cannot search.
    """
    why = kmemleak.available()
    if why:
        raise NoDeviceError(f"no kmemleak: {why}")
    before = kmemleak.search()
    own = (open_root("/").text(f"proc/{os.getpid()}/comm") or "").strip()  # what our children are called as well
    report = work()
    found = kmemleak.sort_out(before, kmemleak.search(), pids=(), comms=(own,))
    report.kernel_leaks = tuple(f"{entry}; to see it again: {report.command}" for entry in found.ours)
    if found.others:
        report.notes.append(f"kmemleak also lists {len(found.others)} new objects of other programs")
    return report
