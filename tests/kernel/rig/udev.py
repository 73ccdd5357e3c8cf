"""udevd for the guest on machines that have none, such as containers: unpacked, never installed.

Installing the package would start the daemon on the host where nothing forbids it; the guest needs only the files.
"""

from __future__ import annotations

from pathlib import Path

from . import cache
from .apt import PrivateApt
from .say import say, step
from .sources import debian_only, os_codename, read_sources

PROGRAMS = (Path("/lib/systemd/systemd-udevd"), Path("/usr/lib/systemd/systemd-udevd"))


def on_host() -> bool:
    """Say whether this machine has the daemon's program; the guest then uses that."""
    return any(path.exists() for path in PROGRAMS)


def prepare() -> None:
    """Fetch udev and its library of this machine's own release; without them some guest tests are skipped."""
    if on_host() or cache.find_udev() is not None:
        return
    codename = os_codename()
    sources = debian_only(read_sources(), codename)
    if not sources:
        say("no udevd here and no Debian source to fetch it from: tests with udevd will be skipped")
        return
    with cache.workshop() as work, step("fetching udev for the guest (about 2 MB)"):
        apt = PrivateApt(work / "apt")
        apt.use(sources)
        offered = apt.versions(["udev", "libudev1"])
        both = [version for version in offered.get("udev", []) if version in offered.get("libudev1", [])]
        if not both:
            say("this machine's Debian sources offer no udev: tests with udevd will be skipped")
            return
        name = f"udev-{both[0].replace(':', '_')}-{codename or 'debian'}"
        for package in ("udev", "libudev1"):
            apt.unpack(package, both[0], work / name)
        (work / name).rename(cache.root() / name)
