"""The Debian packages that fetching, building and booting the kernels needs, and which of them are not here.

What is missing is told by the program or header itself, not by dpkg: it may have come from elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

PACKAGES: dict[str, str] = {
    "qemu-system-x86": "qemu-system-x86_64",
    "busybox-static": "busybox",
    "acl": "setfacl",
    "gcc": "gcc",
    "binutils": "objcopy",
    "make": "make",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "xz-utils": "xz",
    "libc6-dev": "/usr/include/stdlib.h",
    "libelf-dev": "/usr/include/libelf.h",
    "libssl-dev": "/usr/include/openssl/ssl.h",
}
"""Package -> a program it brings, or a file when it brings none."""

BOOT = ("qemu-system-x86", "busybox-static")
"""Enough to boot kernels that are in the cache already."""

QXL_SPLIT = "qemu-system-modules-spice"
"""Debian 13 moved QEMU's qxl device into this package; Debian 12 has it in qemu-system-common and no such name."""

_PROBES = {**PACKAGES, QXL_SPLIT: "/usr/lib/x86_64-linux-gnu/qemu/hw-display-qxl.so"}


def wanted(os_release: Path = Path("/etc/os-release")) -> tuple[str, ...]:
    """Return the packages by the names they have on this system."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r'^VERSION_ID="?(\d+)', text, re.MULTILINE)
    split = match is not None and int(match[1]) >= 13 and re.search(r"^ID=debian$", text, re.MULTILINE) is not None
    return (*PACKAGES, QXL_SPLIT) if split else tuple(PACKAGES)


def program(name: str) -> str | None:
    """Return the path of a program, also from the folders that a user's PATH often lacks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def present(package: str) -> bool:
    """Say whether what the package brings is here."""
    probe = _PROBES[package]
    return Path(probe).exists() if probe.startswith("/") else program(probe) is not None


def missing(names: tuple[str, ...] | None = None) -> list[str]:
    """Return the packages of `names` (default: all) that are not here, in a fixed order."""
    return [package for package in (wanted() if names is None else names) if not present(package)]


def install_line(packages: list[str]) -> str:
    """Return what to type to get them."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {' '.join(packages)}"
