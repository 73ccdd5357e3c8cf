"""The Memory contract: how one allocation of a driver lives, as an ordered list of stages.

A chip says *what* can be acquired and how each thing is given back; one engine (`stress`) decides when, in which order
and what happens when a stage fails. So rollback is written once, and a chip's code has no error path of its own.

Rules for a stage, checked by the conformance suite and swept by fault injection:

- It acquires ONE thing. If it needs two calls and the second fails, it undoes the first and raises.
- Success is what the driver's status says, not the ioctl's return value (:class:`DriverStatus`).
- ``release`` gives back exactly what ``acquire`` took, and is called once, whatever happened later.
- Every descriptor, call and mapping goes through :mod:`accelctl.hal.devfile` with the environment's system calls.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from accelctl.hal.devfile import SYSCALLS, File, Mapped, Syscalls

HANDLE, FD, CPU_MAP, GPU_MAP, VA, IOVA, HOST_PAGES, QUEUE, NOTHING = (
    "handle",
    "fd",
    "cpu_map",
    "gpu_map",
    "va",
    "iova",
    "host_pages",
    "queue",
    "",
)
"""Kinds of things that a stage holds; NOTHING is for a stage that only asks (an offset to map at)."""


class DriverStatus(OSError):
    """The call was dispatched, and the driver's own status says that it failed.

    ``status`` is that number, ``name`` its name there; ``errno`` the errno it corresponds to (EIO where there is none).
    """

    def __init__(self, status: int, name: str, errno_: int = errno.EIO) -> None:
        super().__init__(errno_, name)
        self.status, self.name = status, name


class NotOffered(OSError):
    """This driver, or this pair of drivers, does not do that: reported as "not supported", never as a failure."""

    def __init__(self, reason: str, errno_: int = errno.EOPNOTSUPP) -> None:
        super().__init__(errno_, reason)
        self.reason = reason


class Block:
    """One allocation on its way through the stages. Stages leave here what later ones and their release need."""

    handle = 0
    offset = 0
    """Where the CPU maps it."""
    address = 0
    """Where the device sees it (GPU VA, IOVA)."""
    map: Mapped | None = None
    file: File | None = None
    """A descriptor of the object's own: a dma-buf, a memfd."""
    fd = -1
    extra: Any = None
    """Whatever else the chip's stages share."""

    def __init__(self, size: int, serial: int = 0) -> None:
        self.size = size
        """Bytes asked for; a stage may round it up to what the driver gave."""
        self.serial = serial
        """Number of the allocation within the run: part of the pattern that is written to it."""
        self.held: list[Stage] = []
        """Stages acquired and not yet released, in order: for whoever runs stages one by one."""


class Stage(NamedTuple):
    """One step. ``acquire`` returns the number by which the kernel knows the thing (handle, descriptor, address), or 0.

    ``early``: the driver allows releasing this while later stages are held (GEM_CLOSE before munmap); the engine then
    tries both orders. ``calls`` names the system calls, for people.
    """

    name: str
    kind: str
    acquire: Callable[[Block], int]
    release: Callable[[Block], None] | None
    calls: str = ""
    early: bool = False


class Sizes(NamedTuple):
    """Sizes that make sense: whole granules up to ``largest`` bytes (0: whatever the plan allows)."""

    granule: int = 4096
    largest: int = 0


class Lifecycle(NamedTuple):
    """Stages in the order of acquiring; released in reverse. A chip may have several (dumb, blob, userptr, ...).

    ``sync(block, begin)`` stands around CPU accesses where the driver wants that (DMA_BUF_IOCTL_SYNC).
    ``unsupported`` says why this lifecycle cannot run on this device; empty: it can.
    """

    name: str
    stages: tuple[Stage, ...]
    sizes: Sizes = Sizes()
    sync: Callable[[Block, bool], None] | None = None
    unsupported: str = ""


class Counter(NamedTuple):
    """One number of the kernel's book. ``read`` raises OSError or ValueError where it cannot be read now.

    ``scope`` is file, process, device or system. ``exact``: at rest it moves only by what this session does, so a
    difference of one is a difference; otherwise others move it too and only statistics decide.
    """

    name: str
    unit: str
    scope: str
    source: str
    read: Callable[[], int]
    exact: bool = True
    settle_s: float = 0.0
    """How long the kernel may take to give back after the last release."""
    capacity: int = 0
    """The value at which it is exhausted; 0: not known."""
    kind: str = ""
    """Kind of the stages that move it; empty: several, or not known."""


class AddressSpace(Protocol):
    """Device addresses that user space hands out (accelctl.memory.va has the implementations)."""

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """An address; raises AccelError when there is none."""

    def free(self, va: int) -> int:
        """Give back; the bytes."""


class Target(NamedTuple):
    """A device that a chip can open. ``node`` is absolute; ``others`` are further nodes that belong to it."""

    id: str
    chip: str
    driver: str
    node: str
    others: tuple[str, ...] = ()
    made_up: bool = False
    """The chip's manifest is of tier "simulated"; set by whoever lists devices, not by the chip."""

    @property
    def simulated(self) -> bool:
        """Nothing real behind it."""
        return self.made_up or self.chip == "sim"


def _no_space(base: int, size: int, granule: int) -> AddressSpace:
    raise NotOffered("no address-space allocator was given")


@dataclass(frozen=True)
class Env:
    """What the outside decides for a session: the system calls, the address-space allocator, chip options."""

    syscalls: Syscalls = SYSCALLS
    space: Callable[[int, int, int], AddressSpace] = _no_space
    """(base, size, granule) in bytes -> allocator; called once per device address space."""
    options: Mapping[str, str] = field(default_factory=dict)


class Session:
    """One open device: its lifecycles, its part of the kernel's book, and the one way to close it."""

    total_bytes: int = 0
    """Memory of the device; 0: it does not say."""

    def __init__(self, target: Target, lifecycles: tuple[Lifecycle, ...], files: tuple[File, ...]) -> None:
        self.target, self.lifecycles = target, lifecycles
        self.files = files
        """Everything open, in the order of opening; the first is the device's own node."""

    def counters(self) -> tuple[Counter, ...]:
        """What only this chip knows how to count (live handles of this file, free map slots, used VRAM)."""
        return ()

    def census(self) -> dict[str, int]:
        """Name of a counter -> what was still alive, counted exactly by giving it all back. The session's last act
        before :meth:`close`: everything it held is gone afterwards."""
        return {}

    def close(self) -> None:
        """Release everything that belongs to the session itself, then the files, last one first: all of them, whatever
        one of them answers (its error is raised at the end)."""
        wrong: OSError | None = None
        for file in reversed(self.files):
            try:
                file.close()
            except OSError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong


class Memory(Protocol):
    """What a chip with memory offers."""

    def open(self, target: Target, env: Env) -> Session:
        """Open the device. AccelError where that is impossible; nothing stays open then."""
