"""`accelctl top --once` beside stress runs on the guest's drivers: what they hold is shown, and nothing after them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from accelctl.hal.root import open_root
from accelctl.stress import targets
from accelctl.stress.targets import Allowed
from tests.helpers import ROOT, environment

from .helpers import FuseHang, needs, pci_functions

PATIENCE_S = 200.0
"""An emulated machine takes many seconds to start a Python."""


def once() -> dict[str, Any]:
    """The document of one look at everything."""
    command = [sys.executable, "-m", "accelctl", "top", "--once", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT, env=environment()
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(document: dict[str, Any], device: str) -> tuple[int, int]:
    """Descriptors and mapped bytes, as the device's row says; the rows of processes must agree with it."""
    row = next(row for row in document["devices"] if row["id"] == device)
    files = sum(dict(process["files"]).get(device, 0) for process in document["processes"])
    mapped = sum(dict(process["mapped"]).get(device, 0) for process in document["processes"])
    assert (row["open_files"], row["mapped_bytes"]) == (files, mapped)
    return files, mapped


def stopped_holding(run: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Stop the run at a moment when a child of it has buffers mapped; counted here: descriptors and mapped bytes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for child in children(run):
            with suppress(ProcessLookupError, FileNotFoundError):  # the one that looks at the machine has ended
                os.kill(child, signal.SIGSTOP)
                lines = [line for line in Path(f"/proc/{child}/maps").read_text().splitlines() if "/dev/dri/" in line]
                ranges = [line.split()[0].split("-") for line in lines]
                if ranges:
                    links = [os.readlink(path) for path in Path(f"/proc/{child}/fd").iterdir()]
                    files = sum(link.startswith("/dev/dri/") for link in links)
                    return files, sum(int(last, 16) - int(first, 16) for first, last in ranges)
                os.kill(child, signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError("the run never had anything mapped")


def children(run: subprocess.Popen[bytes]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]


def resume(run: subprocess.Popen[bytes]) -> None:
    for child in children(run):
        os.kill(child, signal.SIGCONT)
    run.terminate()


@needs("stock")
def test_what_stress_runs_hold_is_shown_and_gone_after_them() -> None:
    found = targets.find(open_root("/"), Allowed())
    devices = [targets.choose(found, [name]).target.id for name in ("chip=vgem", "chip=virtio_gpu")]
    there = []
    with ExitStack() as running:
        for device in devices:
            name = f"pci:{device}" if device.startswith("0000:") else "chip=vgem"
            command = [sys.executable, "-m", "accelctl", "stress", "--device", name, "--duration", "600"]
            run = running.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment())
            )
            running.callback(resume, run)
            there.append(stopped_holding(run))
        document = once()
        assert [held(document, device) for device in devices] == there
    document = once()
    assert [held(document, device) for device in devices] == [(0, 0), (0, 0)]


@needs("stock")
def test_a_read_that_never_returns_is_named_and_the_rest_is_shown() -> None:
    """In state D, which no signal ends."""
    address = pci_functions(0x1AF4, 0x1050)[0]
    target = Path("/sys/bus/pci/devices") / address / "power/runtime_status"
    with FuseHang() as hang:
        hang.bind_over(target)
        document = once()
        hang.wait_taken()
    stuck = [one for one in document["health"] if one["state"] == "quarantined"]
    assert [one["path"] for one in stuck] == [os.path.realpath(target).lstrip("/")]
    assert any(row["id"] != address for row in document["devices"])
