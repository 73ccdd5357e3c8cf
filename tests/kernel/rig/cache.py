"""Where the kernels lie and how they are named, so that a changed ingredient never boots an old kernel.

A kernel folder is `<kind>-<version>-<hash of what went into it>`; the initramfs in it is named by the hash of
what went into that. A folder is built beside its place and renamed into it: one that is there is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .sources import os_codename

HERE = Path(__file__).resolve().parent

KINDS = ("stock", "debug")

ROOT_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay", "fuse")
"""Loaded before the stock guest has its root file system."""

DEVICE_MODULES = (
    "cuse", "drm", "vgem", "virtio-gpu", "qxl", "bochs", "amdgpu", "vfio-pci", "vfio_iommu_type1",
)  # fmt: skip
"""Loaded in the stock guest while its first processes start: the devices under test."""

SERIES = "6.12"
"""The release both kernels are of: Debian 13's, with updates until 2028."""


def root() -> Path:
    """Return the folder of all kernels, below the user's cache folder (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return home / "accelctl" / "kernels"


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash of the parts; each part's length goes in, so that moving a byte between two shows."""
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part) + part)
    return total.hexdigest()[:12]


def recipe(kind: str) -> str:
    """Return the hash of what decides the content of a kernel folder, beside the kernel's version."""
    if kind == "debug":
        return digest([b"debug", (HERE / "debug.config").read_bytes()])
    return digest([b"stock, without call sites", *(name.encode() for name in (*ROOT_MODULES, "then", *DEVICE_MODULES))])


def initrd_name(busybox: bytes) -> str:
    """Return the file name of the initramfs, by what goes into it beside the kernel's own modules."""
    return f"initrd-{digest([(HERE / 'init.sh').read_bytes(), busybox])}.img"


def version_key(version: str) -> tuple[int, ...]:
    """Order versions of one series by their numbers: 6.12.100 is newer than 6.12.99."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def find(kind: str) -> Path | None:
    """Return the newest whole kernel folder of this kind with today's recipe."""
    pattern = f"{kind}-{SERIES}*-{recipe(kind)}"
    folders = [folder for folder in root().glob(pattern) if (folder / "vmlinuz").exists()]
    return max(folders, key=lambda folder: version_key(folder.name), default=None)


def find_udev() -> Path | None:
    """Return the newest unpacked udev of this system's release, or None: not fetched, or not needed."""
    folders = root().glob(f"udev-*-{os_codename() or 'debian'}")
    return max(folders, key=lambda folder: version_key(folder.name), default=None)


@contextmanager
def locked() -> Iterator[None]:
    """Let one process at a time fill the cache; others wait and then find it filled."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def workshop() -> Iterator[Path]:
    """Lend a folder on the cache's own disk, so that a rename out of it is atomic; gone afterwards."""
    root().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".work-", dir=root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
