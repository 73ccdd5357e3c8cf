"""A pytest plugin that runs in the guest: writes each result at once, and ends a test that takes too long.

At once, because a guest may die in any test, and what came before must not be lost with it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

TEST_LIMIT_S = float(os.environ.get("ACCELCTL_GUEST_TEST_LIMIT", "900"))
"""Seconds one test may take under software emulation; ended by a signal, so a wait in the kernel can outlast it."""

RESULTS = os.environ.get("ACCELCTL_GUEST_RESULTS", "")
"""The file to write to; read here, since other fixtures clean the environment of a test."""

READY = Path("/run/accelctl/ready")
"""Made by init.sh once the drivers are loaded."""

DRIVERS_S = 300.0
"""Far more than it ever took; a guest without drivers must not look like a machine without devices."""


def _write(entry: dict[str, object]) -> None:
    if RESULTS:
        data = json.dumps(entry).encode() + b"\n"
        fd = os.open(RESULTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def pytest_collection_finish() -> None:
    """Wait until init has loaded the drivers, which it does while pytest starts."""
    end = time.monotonic() + DRIVERS_S
    while RESULTS and not READY.exists():
        if time.monotonic() > end:
            pytest.exit(f"the guest's drivers were not loaded within {DRIVERS_S:.0f} s", returncode=3)
        time.sleep(0.1)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which test is about to run, so that a dead guest tells where it died."""
    _write({"event": "start", "id": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note one phase of one test."""
    outcome: str = report.outcome
    reason = getattr(report, "wasxfail", None)
    if reason is not None:
        outcome = "xfailed" if report.skipped else "xpassed"
    text = reason if reason is not None else _text(report)
    _write({"event": "report", "id": report.nodeid, "when": report.when, "outcome": outcome,
            "seconds": report.duration, "text": text})  # fmt: skip


def _text(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if report.failed:
        shown = [report.longreprtext, *(f"--- {title} ---\n{text}" for title, text in report.sections)]
        return f"in the guest, during {report.when}:\n" + "\n".join(shown)
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Raise in a test that is over its limit; forked children inherit no timer (setitimer(2))."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} took more than {TEST_LIMIT_S:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TEST_LIMIT_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
