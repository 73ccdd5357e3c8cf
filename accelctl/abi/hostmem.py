"""Pages of our own that a device is to see (VFIO, iommufd), at an address that we know.

Python does not tell where a mapping lies. An array does (``buffer_info``): one with a page to spare has whole pages of
its own in it. They come from the C library, so no system call of ours can be traced or failed here.
"""

from __future__ import annotations

import array
import errno
import os
from typing import NamedTuple, cast

from accelctl.abi.lifecycle import HOST_PAGES, VA, AddressSpace, Block, Stage
from accelctl.hal.devfile import Mapped

PAGE = os.sysconf("SC_PAGE_SIZE")


class View:
    """What the CPU sees of them, used as a mapping is: a slice is read as bytes."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, place: slice) -> bytes:
        return self._view[place].tobytes()

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._view[place] = data


class Pages(NamedTuple):
    """Whole pages: their address, and their bytes. They live as long as this does."""

    address: int
    view: View


def pages(size: int) -> Pages:
    """Zeroed pages, at least ``size`` bytes. Raises OSError (ENOMEM)."""
    size = -(-size // PAGE) * PAGE
    try:
        room = array.array("B", b"\0") * (size + PAGE)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "no memory for host pages") from error
    start = room.buffer_info()[0]
    skip = -start % PAGE
    return Pages(start + skip, View(memoryview(room)[skip : skip + size]))


def stage() -> Stage:
    """Host pages: in ``block.extra``, and the CPU's view of them in ``block.map``."""

    def acquire(block: Block) -> int:
        mine = pages(block.size)
        block.size = len(mine.view)
        block.extra, block.map = mine, cast(Mapped, mine.view)
        return mine.address

    def release(block: Block) -> None:
        block.extra = block.map = None

    return Stage("host_pages", HOST_PAGES, acquire, release)


def va_stage(space: AddressSpace, owner: str) -> Stage:
    """A device address for ``block``, handed out by user space: ``block.address``."""

    def acquire(block: Block) -> int:
        block.size = -(-block.size // PAGE) * PAGE
        block.address = space.alloc(block.size, PAGE, owner)
        return block.address

    def release(block: Block) -> None:
        space.free(block.address)

    return Stage("va", VA, acquire, release)


def set_aside(space: AddressSpace, block: Block, owner: str) -> None:
    """Another address for ``block``, because the kernel still has something mapped at the one that it got.

    The rollback of the refused block then gives the new address back, and the old one stays out of use. Without that an
    allocator hands it out again at once, every later block is refused, and one mapping that was not undone ends a run
    before anybody can tell whether more would follow. Raises AccelError when the space is full.
    """
    block.address = space.alloc(block.size, PAGE, owner)
