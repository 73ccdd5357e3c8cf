"""Turns the guest's tests into tests of the host's pytest: one boot per kernel, one host result per guest result."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pytest

from . import cache, packages, qemu, run
from .errors import RigError

LIMIT_S = int(os.environ.get("ACCELCTL_KERNEL_LIMIT", "2400"))
"""Seconds one boot with all its tests may take before it is ended."""

_OOPS = re.compile(r"\b(BUG: |Oops: |general protection fault|Kernel panic|stack guard page was hit)")


@lru_cache(maxsize=1)
def guest_tests() -> dict[str, str | None]:
    """Return every guest test's id and the kernel it needs; collected by a pytest of its own, in under a second."""
    with tempfile.TemporaryDirectory(prefix="accelctl-collect-") as folder:
        out = Path(folder) / "tests.json"
        words = [sys.executable, "-m", "pytest", "--collect-only", "-q", *run.PYTEST_OPTIONS]
        words += ["-p", "tests.kernel.rig.collect_plugin", run.GUEST_TESTS]
        names = {"ACCELCTL_GUEST": "collect", "ACCELCTL_GUEST_COLLECT": str(out), "PYTHONPATH": str(run.REPO)}
        names["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | names
        done = subprocess.run(words, cwd=run.REPO, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise RigError(f"the guest's tests cannot be collected:\n{done.stdout}{done.stderr}")
        found: dict[str, str | None] = json.loads(out.read_text(encoding="utf-8"))
        return found


def tests_for(kind: str) -> list[str]:
    """Return the ids of the guest tests that run on this kernel, without the folder's name."""
    prefix = f"{run.GUEST_TESTS}/"
    return [name.removeprefix(prefix) for name, need in guest_tests().items() if need in (None, kind)]


def why_not(kind: str) -> str | None:
    """Return why this kernel cannot be booted here and the one line to type, or None when it can."""
    lack = packages.missing(packages.BOOT)
    if lack:
        return f"KERNEL TESTS NOT RUN: {' and '.join(lack)} missing; type: {packages.install_line(lack)}"
    if cache.find(kind) is None:
        return f"KERNEL TESTS NOT RUN: no {kind} kernel in the cache; type: python -m tests.kernel.rig prepare"
    return None


def boot_once(kind: str, selected: Sequence[str]) -> run.Guest:
    """Boot and run the selected tests; processes of one pytest-xdist run share one boot."""
    names = [f"{run.GUEST_TESTS}/{name}" for name in selected]
    arguments = [run.GUEST_TESTS] if set(selected) == set(tests_for(kind)) else names
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not shared:
        return _in_guest(kind, arguments)
    place = Path(tempfile.gettempdir()) / f"accelctl-guest-{os.getuid()}-{shared}-{kind}.json"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            guest = _in_guest(kind, arguments)
            place.write_text(json.dumps(asdict(guest)), encoding="utf-8")
        data = json.loads(place.read_text(encoding="utf-8"))
    tests = {name: run.Outcome(**outcome) for name, outcome in data["tests"].items()}
    return run.Guest(data["kind"], qemu.Boot(**data["boot"]), tests, data["output"], data["dmesg"])


def _in_guest(kind: str, arguments: Sequence[str]) -> run.Guest:
    """One boot. An emulated machine on a busy host may panic for a late timer before it has begun anything: that says
    nothing about a test, so it is said and tried once more."""
    guest = run.in_guest(kind, arguments, LIMIT_S)
    if guest.boot.code is not None or guest.tests or guest.output or qemu.STOP.is_set():
        return guest
    warnings.warn(f"{kind}: the job never began, so it was booted once more: {guest.boot.trouble}", stacklevel=2)
    return run.in_guest(kind, arguments, LIMIT_S)


def settle(guest: run.Guest, name: str) -> None:
    """Give the host test the guest's outcome, with the guest's own text."""
    found = guest.tests.get(f"{run.GUEST_TESTS}/{name}")
    if found is None or found.outcome == "unfinished":
        what = "was running when the guest's results ended" if found else "was never reported by the guest"
        tail = guest.boot.trouble or "\n".join(guest.output.splitlines()[-30:])
        pytest.fail(f"{name} {what}; last started: {guest.last_started}\n{tail}", pytrace=False)
    if found.outcome == "skipped":
        pytest.skip(found.text)
    if found.outcome == "xfailed":
        pytest.xfail(found.text)
    if found.outcome != "passed":
        pytest.fail(found.text or found.outcome, pytrace=False)


def check_boot(guest: run.Guest) -> None:
    """Fail when the guest died, ran tests the host does not list, or its kernel reported a bug of its own."""
    if guest.boot.trouble:
        pytest.fail(f"{guest.boot.trouble}\n{guest.output[-3000:]}", pytrace=False)
    if guest.boot.code not in (0, 1):
        pytest.fail(f"pytest in the guest ended with {guest.boot.code}:\n{guest.output[-3000:]}", pytrace=False)
    known = {f"{run.GUEST_TESTS}/{name}" for name in tests_for(guest.kind)}
    extra = sorted(set(guest.tests) - known)
    assert not extra, f"run in the guest but not collected on the host (ids that depend on the machine?): {extra}"
    bugs = [line for line in guest.dmesg.splitlines() if _OOPS.search(line)]
    assert not bugs, "the guest's kernel reported: " + "\n".join(bugs)
