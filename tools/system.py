"""Debian packages that tests use: said before they are installed, and only installed by root.

apt's own state is left alone: package lists and downloads go to accelctl's cache folder.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

POCL = "pocl-opencl-icd"
"""OpenCL on the CPU. PyPI's build of 2022 finds a CPU by its name and cannot compile for one that is newer (AMD family
26: "unknown target CPU 'generic'"); Debian's falls back to what the CPU can do."""
OWN_PACKAGES = ("fish", "groff-base", "iproute2", "lshw", "pciutils", "strace", "tmux", "util-linux", "zsh", POCL)
"""Shells for the completion scripts, groff for man pages, lshw and lspci as yardsticks, strace to count opens."""


def wanted() -> list[str]:
    """Everything the tests use: ours and what the kernel rig says it needs."""
    rig = subprocess.run(
        [sys.executable, "-m", "tests.kernel.rig", "packages"], capture_output=True, text=True, check=True
    )
    return sorted({*OWN_PACKAGES, *rig.stdout.split()})


def missing(packages: Sequence[str]) -> list[str]:
    """Those that dpkg does not list as installed; none where there is no dpkg (the tests then skip by themselves)."""
    if shutil.which("dpkg-query") is None:
        return []
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    output = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in output.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def ensure() -> str | None:
    """Install what is missing if we may. Returns one line about what could not be had, or None."""
    if shutil.which("apt-get") is None:
        return "this is not a Debian: tests that need QEMU, strace, zsh, fish or lshw are skipped unless they are here"
    lack = missing(wanted())
    if not lack:
        return None
    command = f"apt-get install --no-install-recommends {' '.join(lack)}"
    if os.environ.get("NO_APT", "") not in ("", "0") or os.geteuid() != 0:
        return f"some tests will be skipped; for all of them type: sudo {command}"
    print(f"system packages that the tests need (NO_APT=1 skips this): {command}", flush=True)
    return _install(lack)


def _install(packages: Sequence[str]) -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accelctl" / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-q", "-y", "-o", f"Dir::State::Lists={cache}/lists", "-o", f"Dir::Cache={cache}"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "--no-install-recommends", *packages]):
        done = subprocess.run(
            [*apt, *step], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"apt-get {step[0]} failed, some tests will be skipped: {reason}"
    return None
