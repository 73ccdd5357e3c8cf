"""watch sees a real unplug and a real rescan, by netlink and by polling."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers import environment

from .helpers import Udevd, needs, pci_functions, pci_remove, pci_rescan, wait_for

VIRTIO_GPU = (0x1AF4, 0x1050)


def watched(address: str, *options: str) -> list[dict[str, Any]]:
    """Events seen while a function is unplugged and found again."""
    out = Path("/run/watch-out")
    said = Path("/run/watch-err")
    with out.open("w") as stdout, said.open("w") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "accelctl", "watch", "--json", "--no-kmsg", *options],
            env=environment(),
            stdout=stdout,
            stderr=stderr,
        )
        try:
            wait_for(lambda: bool(said.read_text()), "watch says what it watches", 60)
            pci_remove(address)
            wait_for(lambda: '"remove"' in out.read_text(), "the removal is seen", 60)
            pci_rescan(address)
            wait_for(lambda: '"add"' in out.read_text() and "card" in out.read_text(), "the card is back", 60)
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(timeout=60)
    assert child.returncode in (0, 130), said.read_text()
    return [json.loads(line) for line in out.read_text().splitlines()]


def check(events: list[dict[str, Any]], address: str) -> None:
    ours = [event for event in events if event.get("device") == address]
    assert {event["action"] for event in ours} >= {"add", "remove"}
    nodes = {Path(event["node"]).name for event in events if event.get("node")}
    assert any(name.startswith("card") for name in nodes)


def test_kernel_messages() -> None:
    address = pci_functions(*VIRTIO_GPU)[-1]
    check(watched(address), address)


@needs("stock")
def test_udevds_messages() -> None:
    address = pci_functions(*VIRTIO_GPU)[-1]
    with Udevd():
        check(watched(address), address)


def test_polling_sees_the_same() -> None:
    address = pci_functions(*VIRTIO_GPU)[-1]
    check(watched(address, "--poll"), address)
