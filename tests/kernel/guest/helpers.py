"""What guest tests share. `from .helpers import needs, FuseHang, Udevd, unprivileged, ...` is all a test file needs."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from .fuse import HANG, FuseHang, state, wait_state
from .udevd import Udevd

__all__ = [
    "HANG", "PCI", "FuseHang", "Udevd", "driver_of", "needs", "pci_functions", "pci_remove", "pci_rescan", "set_acl",
    "state", "unprivileged", "wait_for", "wait_state",
]  # fmt: skip

T = TypeVar("T")

PCI = Path("/sys/bus/pci")


def needs(kernel: str) -> pytest.MarkDecorator:
    """Mark a test, or a whole file as `pytestmark`, for one kernel only: `stock` or `debug`."""
    if kernel not in ("stock", "debug"):
        raise ValueError(f"no such kernel: {kernel}")
    return pytest.mark.needs(kernel)


def wait_for(what: Callable[[], bool], text: str, timeout_s: float = 30) -> None:
    """Return once `what` holds; the guest is slow, so a test never sleeps a fixed time."""
    end = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"{text}: not within {timeout_s} s")
        time.sleep(0.05)


def unprivileged(uid: int, gid: int, groups: Sequence[int], fn: Callable[[], T], timeout_s: float = 60) -> T:
    """Run `fn` in a child as this user and groups only, and return what it returns or raise what it raises.

    A real change of identity, not a computation: all of real, effective and saved ids change, so the child has no
    capability left (capabilities(7)) and cannot come back.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _be(uid, gid, groups, fn, theirs)
    os.close(theirs)
    try:
        data = b""
        while select.select([ours], [], [], timeout_s)[0]:
            part = os.read(ours, 65536)
            if not part:
                break
            data += part
        else:
            raise TimeoutError(f"the unprivileged child did not answer within {timeout_s} s")
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    worked, value = pickle.loads(data)
    if not worked:
        raise value
    result: T = value
    return result


def _be(uid: int, gid: int, groups: Sequence[int], fn: Callable[[], object], answer: int) -> NoReturn:
    try:
        os.setgroups(list(groups))
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        data = pickle.dumps((True, fn()))
    except BaseException as error:  # whatever it is goes to the parent
        data = pickle.dumps((False, error))
    while data:
        data = data[os.write(answer, data) :]
    os._exit(0)


def pci_functions(vendor: int, device: int) -> list[str]:
    """Return the addresses of the PCI functions with these ids, lowest first."""
    found = []
    for folder in sorted((PCI / "devices").iterdir()):
        ids = tuple(int((folder / name).read_text(encoding="ascii"), 16) for name in ("vendor", "device"))
        if ids == (vendor, device):
            found.append(folder.name)
    return found


def driver_of(device: Path) -> str | None:
    """Return the name of the driver bound to a device in sysfs."""
    link = device / "driver"
    return Path(os.readlink(link)).name if link.is_symlink() else None


def pci_remove(address: str) -> None:
    """Unplug one PCI function as the kernel sees it; returns when it is gone from sysfs."""
    folder = PCI / "devices" / address
    (folder / "remove").write_text("1", encoding="ascii")
    wait_for(lambda: not folder.exists(), f"{address} removed")


def pci_rescan(address: str) -> None:
    """Find again what was removed; returns when the function is back with a driver."""
    (PCI / "rescan").write_text("1", encoding="ascii")
    wait_for(lambda: driver_of(PCI / "devices" / address) is not None, f"{address} back with a driver")


def set_acl(path: Path, *entries: str) -> None:
    """Add ACL entries with setfacl(1), such as `u:1234:rw`; skips the test where the program is missing."""
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl is missing; type: apt-get install acl")
    subprocess.run(["setfacl", "-m", ",".join(entries), str(path)], check=True)
