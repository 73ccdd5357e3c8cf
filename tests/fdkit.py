"""Made-up processes with open devices, as real files below a prefix: /proc/PID/{stat,status,fd,fdinfo,maps}."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelctl.abi.telemetry import Draft, Tick
from accelctl.hal import keptfiles
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree, NodeStat, fail
from accelctl.model.snapshot import DeviceLevel, ProcessLevel, Snapshot
from accelctl.telemetry.clients import Clients
from tests.synthetic import make_machine

SECOND = 1_000_000_000
MIB = 1 << 20
RENDER = "/dev/dri/renderD128"
AMD, INTEL = "0000:01:00.0", "0000:02:00.0"
"""The first two cards of a Machine, whatever driver a test says they have."""


class ChangingTree(DirTree):
    """A folder whose contents change, as a running machine's do; ``denied``: folders and files nobody may read."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.denied: set[str] = set()
        self.asked: list[str] = []

    def _fresh(self, path: str) -> None:
        self.asked.append(path)
        for known in (self._paths, self._links, self._listed, self._plain):
            known.clear()
        if any(path == one or path.startswith(f"{one}/") for one in self.denied):
            raise fail(errno.EACCES, path)

    def resolve(self, path: str) -> str:
        """The real path; a denied one is denied."""
        if any(path == one or path.startswith(f"{one}/") for one in self.denied):
            raise fail(errno.EACCES, path)
        return super().resolve(path)

    def read(self, path: str, limit: int) -> bytes:
        """A file as it is now."""
        self._fresh(path)
        return super().read(path, limit)

    def listdir(self, path: str) -> list[str]:
        """A folder as it is now."""
        self._fresh(path)
        return super().listdir(path)

    def readlink(self, path: str) -> str:
        """A link as it is now."""
        self._fresh(path)
        return super().readlink(path)

    def stat(self, path: str) -> NodeStat:
        """What is there now."""
        self._fresh(path)
        return super().stat(path)


def drm(driver: str, pdev: str, client: int, *lines: str) -> str:
    """The fdinfo of a DRM file as kernels since 6.5 print it."""
    head = ["pos:\t0", "flags:\t02100002", "mnt_id:\t26", "ino:\t634", f"drm-driver:\t{driver}"]
    where = [f"drm-pdev:\t{pdev}"] if pdev else []
    return "\n".join([*head, f"drm-client-id:\t{client}", *where, *lines]) + "\n"


def vram(client: int, mib: int, *more: str, pdev: str = AMD) -> str:
    """A client of amdgpu with so much memory."""
    return drm("amdgpu", pdev, client, f"drm-total-vram:\t{mib} MiB", *more)


def gfx(client: int, ns: int) -> str:
    """A client of amdgpu that worked for so long."""
    return vram(client, 1, f"drm-engine-gfx:\t{ns} ns")


class Calls:
    """What kept files do, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.reads = 0
        really_open, really_read = keptfiles._open, keptfiles._pread

        def opened(path: str) -> int:
            self.opened.append(path)
            return really_open(path)

        def read(fd: int, size: int, at: int) -> bytes:
            self.reads += 1
            return really_read(fd, size, at)

        monkeypatch.setattr(keptfiles, "_open", opened)
        monkeypatch.setattr(keptfiles, "_pread", read)

    def clear(self) -> None:
        """Count from here on."""
        self.opened.clear()
        self.reads = 0


class Machine:
    """A machine with ``cards`` GPUs (card and render nodes) and any processes."""

    def __init__(self, folder: Path, cards: int = 2) -> None:
        self.folder = make_machine(folder, cards)
        self.tree = ChangingTree(str(folder))
        self.root = SysRoot(self.tree)

    @staticmethod
    def address(card: int) -> str:
        """The PCI address of a card, as make_machine places it."""
        domain, bus = divmod(card, 127)
        return f"{domain:04x}:{bus + 1:02x}:00.0"

    def node(self, name: str, number: str, device: str, subsystem: str) -> None:
        """One more DRM or accel minor of a device that is no PCI function: "card9", "226:9", "vgem", "platform"."""
        parent = self.folder / "sys/devices/platform" / device
        folder = "accel" if name.startswith("accel") else "drm"
        place = parent / folder / name
        place.mkdir(parents=True, exist_ok=True)
        where = f"accel/{name}" if folder == "accel" else f"dri/{name}"
        major, _, minor = number.partition(":")
        (place / "dev").write_text(number)
        (place / "uevent").write_text(f"MAJOR={major}\nMINOR={minor}\nDEVNAME={where}\n")
        _relink(place / "device", "../..")
        bus = self.folder / "sys/bus" / subsystem
        bus.mkdir(parents=True, exist_ok=True)
        _relink(parent / "subsystem", os.path.relpath(bus, parent))
        classes = self.folder / "sys/class" / folder
        classes.mkdir(parents=True, exist_ok=True)
        _relink(classes / name, os.path.relpath(place, classes))

    def process(
        self,
        pid: int,
        files: Mapping[int, tuple[str, str]] | None = None,
        *,
        start: int = 100,
        name: str = "work",
        state: str = "S",
        maps: str = "",
        status: str = "",
    ) -> None:
        """A process whose descriptors are number -> (link, fdinfo). An older one of that number is gone."""
        self.end(pid)
        base = self.folder / f"proc/{pid}"
        for folder in ("fd", "fdinfo"):
            (base / folder).mkdir(parents=True)
        (base / "stat").write_text(stat_line(pid, name, state, start))
        (base / "status").write_text(f"Uid:\t0\t0\t0\t1000\nGid:\t0\t0\t0\t1000\nNSpid:\t{pid}{status}\n")
        (base / "maps").write_text(maps)
        for number, (link, text) in (files or {}).items():
            self.open(pid, number, link, text)

    def open(self, pid: int, number: int, link: str, text: str = "pos:\t0\n") -> None:
        """One more descriptor, or another file behind a number."""
        base = self.folder / f"proc/{pid}"
        _relink(base / f"fd/{number}", link)
        (base / f"fdinfo/{number}").write_text(text)

    def shut(self, pid: int, number: int) -> None:
        """Close a descriptor. A kept file of it reads as gone: its text says no more."""
        base = self.folder / f"proc/{pid}"
        (base / f"fd/{number}").unlink()
        (base / f"fdinfo/{number}").write_text("")
        (base / f"fdinfo/{number}").unlink()

    def end(self, pid: int) -> None:
        """The end of a process: what was kept open of it says nothing more."""
        base = self.folder / f"proc/{pid}"
        for text in base.glob("fdinfo/*"):
            text.write_text("")
        shutil.rmtree(base, ignore_errors=True)


def stat_line(pid: int, name: str, state: str = "S", start: int = 100, flags: int = 0) -> str:
    """A line of /proc/PID/stat."""
    return f"{pid} ({name}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 3 4 0 0 20 0 1 0 {start} 0 0\n"


def _relink(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


class Watcher:
    """Ticks of the source "clients", a second apart. Each look at all processes unless ``rescan_s`` is more."""

    def __init__(self, machine: Machine, *, rescan_s: float = 1.0, limit: int = 256) -> None:
        self.source = Clients(machine.root, rescan_s=rescan_s, limit=limit)
        self.now = 0
        self.entered: list[str] = []
        self.draft = Draft()
        self.quarantine: frozenset[str] = frozenset()
        self.asleep: frozenset[str] = frozenset()

    def tick(self, draft: Draft | None = None) -> Snapshot:
        """The Snapshot of the next second."""
        elapsed = SECOND if self.now else 0
        self.now += SECOND
        tick = Tick(self.now, self.now, elapsed, self.entered.append, self.quarantine, self.asleep)
        self.draft = draft or Draft()
        self.source.sample(self.draft, tick)
        return self.draft.snapshot(tick)


def device(snapshot: Snapshot, identity: str) -> DeviceLevel:
    """The row of a device."""
    return next(one for one in snapshot.devices if one.id == identity)


def process(snapshot: Snapshot, pid: int) -> ProcessLevel:
    """The row of a process."""
    return next(one for one in snapshot.processes if one.pid == pid)
