"""udevd in the guest, on demand: tests run with and without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

_DAEMONS = (Path("/lib/systemd/systemd-udevd"), Path("/usr/lib/systemd/systemd-udevd"))
FETCHED = os.environ.get("ACCELCTL_GUEST_UDEV", "")
"""Where the rig unpacked udev for a host without it; read here, since fixtures clean the environment of a test."""

_GROUPS = ("render", "video", "kvm", "input", "sgx")
"""What the package's install script would have created; without them the rules cannot give nodes to groups."""


class Udevd:
    """A running udevd that has handled every device there is; ended at the end, its /run/udev removed."""

    def __enter__(self) -> Udevd:
        """Start it and wait until it has worked off the devices present at boot."""
        daemon = _daemon()
        _add_groups()
        self._process = subprocess.Popen([str(daemon)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_for(Path("/run/udev/control"))
        self.udevadm("trigger", "--action=add", "--type=subsystems")
        self.udevadm("trigger", "--action=add", "--type=devices")
        self.settle()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it and remove its database, so that the next test sees a machine without udevd."""
        self._process.terminate()
        self._process.wait(timeout=30)
        shutil.rmtree("/run/udev", ignore_errors=True)

    def udevadm(self, *words: str) -> str:
        """Run udevadm(8) and return what it says."""
        done = subprocess.run(["udevadm", *words], capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    def settle(self) -> None:
        """Wait until the daemon's queue is empty."""
        self.udevadm("settle", "--timeout=90")


def _daemon() -> Path:
    if FETCHED and not any(path.exists() for path in _DAEMONS):
        # tar, since it alone unpacks into folders that are symbolic links here, such as /lib
        script = 'tar -C "$1" -c . | tar -C / -x --keep-directory-symlink'
        subprocess.run(["sh", "-c", script, "sh", FETCHED], check=True)
    found = next((path for path in _DAEMONS if path.exists()), None)
    if found is None:
        pytest.skip("no udevd on the host and none in the cache; type: python -m tests.kernel.rig prepare")
    return found


def _add_groups() -> None:
    """Add the missing groups to the guest's own copy of /etc/group."""
    file = Path("/etc/group")
    rows = [line.split(":") for line in file.read_text(encoding="utf-8").splitlines()]
    names, numbers = {row[0] for row in rows}, {row[2] for row in rows if len(row) > 2}
    free = (str(number) for number in range(950, 1000) if str(number) not in numbers)
    lines = [f"{name}:x:{next(free)}:\n" for name in _GROUPS if name not in names]
    if lines:
        with file.open("a", encoding="utf-8") as out:
            out.writelines(lines)


def _wait_for(path: Path, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not appear within {timeout_s} s")
        time.sleep(0.05)
