"""A whole session on VFIO or iommufd with one call failed: opening, joining, mapping, counting, closing.

The sweep of the stages has the device open before it fails anything, and maps into I/O page tables that an undisturbed
cycle has built. Here nothing is there beforehand. After each fault the process must have what it had before, and an
undisturbed session must work: a group that stays in a container could not even be opened again.
"""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import closing
from types import ModuleType

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Env, Target
from accelctl.abi.testbench import descriptors
from accelctl.errors import AccelError
from accelctl.hal.devfile import Syscalls, open_files
from accelctl.hal.trace import calls_of
from accelctl.hal.uapi import iommufd, vfio
from accelctl.stress import sweep
from accelctl.stress.door import Door
from accelctl.stress.failnth import FailNthCalls

from .backendkit import acquire, release, space

HEADERS: dict[str, ModuleType] = {"vfio": vfio, "iommufd": iommufd}
WHOLE = "session"
"""What the doors call the only stage."""
PAGES = 20
"""More than one: then pages are pinned and unpinned in batches, which take memory of their own."""
CALLS = {
    "vfio": {
        "open", "VFIO_GROUP_GET_STATUS", "VFIO_GROUP_SET_CONTAINER", "VFIO_SET_IOMMU", "VFIO_IOMMU_GET_INFO",
        "VFIO_IOMMU_MAP_DMA", "VFIO_IOMMU_UNMAP_DMA", "VFIO_GROUP_UNSET_CONTAINER", "close",
    },
    "iommufd": {"open", "IOMMU_IOAS_ALLOC", "IOMMU_IOAS_MAP", "IOMMU_IOAS_UNMAP", "IOMMU_DESTROY", "close"},
}  # fmt: skip
"""All that the back-end ever calls."""
NO_POINTS = {"VFIO_GROUP_SET_CONTAINER", "close"}
"""Calls in which nothing can be failed: they allocate nothing, and get_user is not instrumented (lib/usercopy.c)."""


class Named(Syscalls):
    """Notes the name of every call."""

    def __init__(self, header: ModuleType) -> None:
        self._names = {number: call.name for number, call in calls_of([header]).items()}
        self.made: list[str] = []

    def open(self, path: str, flags: int) -> int:
        self.made.append("open")
        return super().open(path, flags)

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        self.made.append(self._names[number])
        return super().ioctl(fd, number, argument)

    def close(self, fd: int) -> None:
        self.made.append("close")
        super().close(fd)


def whole(target: Target, calls: Syscalls) -> bool:
    """From opening to closing: each lifecycle once, every counter, the census. Whether these say that nothing is left.
    Raises what the back-end raises."""
    memory = registry.load(target.chip).memory
    assert memory is not None
    with closing(memory.open(target, Env(calls, space=space))) as session:
        for life in session.lifecycles:
            assert not life.unsupported
            block = acquire(life, Block(PAGES * life.sizes.granule))
            release(block)
        found = [*(counter.read() for counter in session.counters()), *session.census().values()]
    return not any(found)


def names(target: Target) -> list[str]:
    """The calls of an undisturbed session, in order."""
    calls = Named(HEADERS[target.chip])
    assert whole(target, calls)
    assert set(calls.made) == CALLS[target.chip]
    return calls.made


class Table:
    """Outcomes per call."""

    def __init__(self, chip: str, kind: str) -> None:
        self.chip, self.kind = chip, kind
        self.rows: dict[str, Counter[str]] = {}
        self.errors: dict[str, set[str]] = {}
        self._before, self._fds = sweep.own_counts(), descriptors()

    def judge(self, name: str, said: str, lost: int) -> None:
        """``lost``: descriptors that a lost answer had given out, and that were closed by now."""
        assert open_files() == {}, (name, said)
        assert descriptors() == self._fds, (name, said)
        assert sweep.own_counts() == self._before, (name, said)
        self.rows.setdefault(name, Counter())["stranded" if lost else "balanced"] += 1
        self.errors.setdefault(name, set()).add(said)

    def lines(self) -> list[str]:
        """Rows for docs/stress-sweeps.md."""
        return [
            f"| {self.chip} | {name} | {self.kind} | {sum(row.values())} | {row['balanced']} | {row['stranded']} |\n"
            for name, row in self.rows.items()
        ]

    def __str__(self) -> str:
        said = (f"{name} says {', '.join(sorted(words))}\n" for name, words in self.errors.items())
        return "".join([*self.lines(), *said])


def attempt(target: Target, calls: Door | FailNthCalls) -> str:
    """A session with a fault: what it says. A call of the census that fails may make it count wrongly."""
    calls.at(WHOLE)
    try:
        return "nothing" if whole(target, calls) else "miscounts"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except AccelError as error:
        return error.kind
