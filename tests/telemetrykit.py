"""What the tests of the sampler share: sources that behave, hang, crash and cost; and waiting for what must happen."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from accelctl.abi.rooms import all_rooms
from accelctl.abi.telemetry import Draft, Tick
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree, NodeStat, Tree
from accelctl.model.snapshot import Snapshot
from accelctl.probes.scan import look
from accelctl.telemetry.live import allow_chips, of_devices
from tests.synthetic import make_machine

LIMIT_S = 30.0
"""Never reached where things are right: nothing here proves by waiting."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Afterwards: the same descriptors as before, and no child. One that was killed in the middle of a page fault may
    take a moment to go."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before
    end = time.monotonic() + LIMIT_S
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) is not None:
            assert time.monotonic() < end, "a child is left"


class Steady:
    """Counts its ticks."""

    name = "steady"

    def __init__(self) -> None:
        self.ticks = 0

    def sample(self, draft: Draft, tick: Tick) -> None:
        self.ticks += 1
        draft.level("dev:0", "open_files", self.ticks, "counted")
        draft.level("dev:0", "mapped_bytes", tick.elapsed_ns, "counted")
        draft.reads += 1

    def close(self) -> None:
        pass


class Fifo:
    """Reads a number from a FIFO, as from a driver that answers when it likes: without a writer it hangs for ever."""

    name = "fifo"

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def sample(self, draft: Draft, tick: Tick) -> None:
        tick.enter(self.path)
        if self.path in tick.quarantine:
            return
        fd = os.open(self.path, os.O_RDONLY)
        draft.level("dev:0", "power_mw", float(os.read(fd, 1) or 0), self.path)
        os.close(fd)

    def close(self) -> None:
        pass


class Calls:
    """Does whatever a test says, under a path of its choice."""

    def __init__(self, name: str, work: Callable[[Tick], None], path: str = "") -> None:
        self.name, self._work, self._path = name, work, path

    def sample(self, draft: Draft, tick: Tick) -> None:
        if self._path:
            tick.enter(self._path)
            if self._path in tick.quarantine:
                return
        self._work(tick)

    def close(self) -> None:
        pass


class Polls(Protocol):
    """A sampler or a feed."""

    def poll(self, timeout_s: float) -> Snapshot | None: ...


def until(feed: Polls, wanted: Callable[[Snapshot], object]) -> list[Snapshot]:
    """Snapshots up to the first one that is wanted."""
    found: list[Snapshot] = []
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        snapshot = feed.poll(0.1)
        if snapshot is not None:
            found.append(snapshot)
            if wanted(snapshot):
                return found
    raise AssertionError(f"not seen in {LIMIT_S:g} s; the last of {len(found)}: {found[-1:]}")


def health(snapshot: Snapshot, name: str) -> str:
    """State of one source."""
    return next(one.state for one in snapshot.health if one.id == name)


def texts(snapshots: list[Snapshot]) -> list[str]:
    """Texts of all events."""
    return [mark.text for one in snapshots for mark in one.events]


def counted(snapshots: list[Snapshot]) -> list[int]:
    """What Steady counted."""
    return [one.devices[0].open_files for one in snapshots]


def tick(number: int = 0, **more: Any) -> Tick:
    """A tick a second."""
    now = (number + 1) * 1_000_000_000
    return Tick(now, now, 1_000_000_000 if number else 0, lambda path: None)._replace(**more)


class CountingTree:
    """A tree that counts what is read of it, by path."""

    live = False

    def __init__(self, tree: Tree) -> None:
        self.tree, self.name = tree, "counted"
        self.reads: Counter[str] = Counter()

    def read(self, path: str, limit: int) -> bytes:
        self.reads[self.tree.resolve(path)] += 1
        return self.tree.read(path, limit)

    def listdir(self, path: str) -> list[str]:
        return self.tree.listdir(path)

    def readlink(self, path: str) -> str:
        return self.tree.readlink(path)

    def resolve(self, path: str) -> str:
        return self.tree.resolve(path)

    def stat(self, path: str) -> NodeStat:
        return self.tree.stat(path)


class Machine:
    """A synthetic machine below a folder, looked at once, whose sources are asked here and now."""

    def __init__(self, folder: Path, devices: int = 1) -> None:
        self.folder = make_machine(folder, devices)
        self.tree = CountingTree(DirTree(str(folder)))
        self.number = 0

    def look(self) -> None:
        """List the devices anew, and make sources for them."""
        rooms = all_rooms()
        self.devices = list(look(SysRoot(DirTree(str(self.folder))), rooms).devices.values())
        root = SysRoot(self.tree)
        allow_chips(root, rooms, self.devices)
        self.sources = of_devices(root, self.devices)

    def file(self, path: str, device: int = 0) -> Path:
        """A file of a device."""
        address = f"0000:{device + 1:02x}:00.0"
        return next((self.folder / "sys/devices").glob(f"pci*/*/{address}")) / path

    def sample(self) -> Snapshot:
        """One tick."""
        draft, now = Draft(), tick(self.number)
        self.number += 1
        for source in self.sources:
            source.sample(draft, now)
            asleep = (name for name, fields in draft.devices.items() if fields.get("asleep"))
            now = now._replace(asleep=frozenset(asleep))
        return draft.snapshot(now)
