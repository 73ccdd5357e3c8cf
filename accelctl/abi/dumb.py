"""Dumb buffers, which every DRM driver with a display makes the same way, and sessions made of DRM files.

CREATE_DUMB and MAP_DUMB have no DRM_RENDER_ALLOW (drm_ioctl.c): they need the card node. The driver chooses pitch and
size from width, height and bits per pixel; rows of whole pages and 32 bits, which all of them take (virtio-gpu nothing
else), make its size the one that was asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi import gem
from accelctl.abi.gem import Handles
from accelctl.abi.lifecycle import (
    CPU_MAP,
    NOTHING,
    Block,
    Counter,
    Env,
    Lifecycle,
    NotOffered,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import dma_buf, drm

PAGE = 4096
_ROW = 1024
"""Pixels of 4 bytes: one page."""
_ROWS = 16384
"""Above this rows grow longer instead: hosts of virtual displays bound the height of an image."""
_CREATE = drm.MODE_CREATE_DUMB.layout.packer("height", "width", "bpp")
_CREATED = drm.MODE_CREATE_DUMB.layout.reader("handle", "size")
_LOCATE = drm.MODE_MAP_DUMB.layout.packer("handle")
_LOCATED = drm.MODE_MAP_DUMB.layout.reader("offset")
_ACCESS = dma_buf.DMA_BUF_SYNC_RW
_NOT_OFFERED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES, errno.EINVAL, errno.ENOTTY)
NEEDS_CARD = "dumb buffers need the card node; this is a render node"


def pages(size: int) -> int:
    """Bytes, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def geometry(size: int) -> tuple[int, int]:
    """Width and height, in pixels of 4 bytes, of at least ``size`` bytes; exactly so many pages up to 64 MiB."""
    width, height = _ROW, max(1, pages(size) // PAGE)
    while height > _ROWS:
        width, height = width * 2, -(-height // 2)
    return width, height


@lru_cache(maxsize=4096)
def _wanted(size: int) -> bytes:
    """The argument of CREATE_DUMB for so many bytes."""
    width, height = geometry(size)
    return _CREATE(height, width, 32)


def create(file: File, size: int) -> tuple[int, int]:
    """CREATE_DUMB: the handle and the driver's size in bytes. Raises OSError."""
    argument = bytearray(_wanted(size))
    file.ioctl(drm.MODE_CREATE_DUMB.number, argument)
    handle, given = _CREATED(argument)
    return handle, given


def why_not(file: File) -> str:
    """Why this open node makes no dumb buffers, found by making one; empty: it does. Raises OSError where that says
    nothing (ENOMEM). DRM_CAP_DUMB_BUFFER would not do: drivers without a display (vgem) make them, and GET_CAP refuses
    to answer there (drm_getcap: only KMS)."""
    if "renderD" in file.path:
        return NEEDS_CARD
    try:
        handle, _ = create(file, PAGE)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        return f"{file.path}: the driver makes no dumb buffers ({error.strerror})"
    gem.close_handle(file, handle)
    return ""


class Book(NamedTuple):
    """The handles of one file: how a probe is made there (None: nothing can be, ``why`` says it), and what its counter
    is called."""

    handles: Handles
    make: Callable[[], int] | None
    name: str = "gem-handles"
    why: str = ""

    def counters(self) -> tuple[Counter, ...]:
        """Its counter, where there is a probe."""
        return (self.handles.counter()._replace(name=self.name),) if self.make else ()

    def sweep(self) -> int:
        """Close everything alive and count it."""
        return self.handles.sweep()


def book(file: File, make: Callable[[], int] | None, name: str = "gem-handles", why: str = "") -> Book:
    """A book of the handles of ``file``."""
    return Book(Handles(make, lambda handle: gem.close_handle(file, handle)), make, name, why)


def dumb_book(file: File, name: str = "gem-handles") -> Book:
    """A book whose probes are dumb buffers of one page; one that cannot count while it runs where there are none."""
    why = why_not(file)
    return book(file, None if why else lambda: create(file, PAGE)[0], name, why)


class GemSession(Session):
    """A session whose kernel book is that of handles."""

    def __init__(
        self, target: Target, lifecycles: tuple[Lifecycle, ...], files: tuple[File, ...], books: Sequence[Book]
    ) -> None:
        super().__init__(target, lifecycles, files)
        self._books = tuple(books)

    def counters(self) -> tuple[Counter, ...]:
        """gem-handles, one for each file that can make objects."""
        return tuple(counter for book_ in self._books for counter in book_.counters())

    def census(self) -> dict[str, int]:
        """What was still alive in each file."""
        return {book_.name: book_.sweep() for book_ in self._books}


def object_stage(file: File, handles: Handles) -> Stage:
    """A dumb buffer; ``block.size`` becomes the driver's."""
    call, number = file.call, drm.MODE_CREATE_DUMB.number

    def acquire(block: Block) -> int:
        argument = bytearray(_wanted(block.size))
        try:
            call(file.fd, number, argument)
        except OSError as error:
            file.again(error, number, argument)
        handle, block.size = _CREATED(argument)
        block.handle = handle
        if handle > handles.highest:
            handles.seen(handle)
        return handle

    return gem.handle_stage(file, acquire, "MODE_CREATE_DUMB")


def offset_stage(file: File) -> Stage:
    """Where the CPU maps it. Holds nothing: the offset goes with the object."""
    call, number = file.call, drm.MODE_MAP_DUMB.number

    def acquire(block: Block) -> int:
        argument = bytearray(_LOCATE(block.handle))
        try:
            call(file.fd, number, argument)
        except OSError as error:
            file.again(error, number, argument)
        (block.offset,) = _LOCATED(argument)
        return 0

    return Stage("offset", NOTHING, acquire, None, "MODE_MAP_DUMB")


def lifecycle(file: File, handles: Handles, largest: int = 0, unsupported: str = "") -> Lifecycle:
    """object -> offset -> cpu_map."""
    stages = (object_stage(file, handles), offset_stage(file), gem.map_stage(file))
    return Lifecycle("dumb", stages, Sizes(PAGE, largest), unsupported=unsupported)


def sync(block: Block, begin: bool) -> None:
    """DMA_BUF_IOCTL_SYNC on ``block.file``, around what the CPU does to it. Raises OSError."""
    assert block.file is not None
    edge = dma_buf.DMA_BUF_SYNC_START if begin else dma_buf.DMA_BUF_SYNC_END
    block.file.ioctl(dma_buf.SYNC.number, dma_buf.SYNC.layout.pack(flags=_ACCESS | edge))


def shared_map_stage() -> Stage:
    """mmap(2) of the dma-buf: "not supported" where its exporter has no such operation (EINVAL by
    dma_buf_mmap_internal; the other numbers are taken to mean it too, no driver of the guests gives any)."""
    plain = gem.own_map_stage()
    refusals = (errno.EINVAL, errno.ENOSYS, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP)

    def acquire(block: Block) -> int:
        try:
            return plain.acquire(block)
        except OSError as error:
            if error.errno in refusals:
                reason = f"this dma-buf cannot be mapped ({error.strerror})"
                raise NotOffered(reason, error.errno or errno.EOPNOTSUPP) from error
            raise

    return Stage("cpu_map", CPU_MAP, acquire, plain.release, plain.calls)


@contextmanager
def closing_on_error(node: str, *files: File) -> Iterator[None]:
    """What opens a device further: when that fails the files are closed, and an OSError becomes DeviceUnusable."""
    try:
        yield
    except BaseException as error:
        for file in reversed(files):
            file.close()
        if isinstance(error, OSError):
            raise DeviceUnusable(f"{node}: {error.strerror}") from error
        raise


class Importer(NamedTuple):
    """A second device, open, that takes dma-bufs."""

    file: DevFile
    driver: str
    book: Book

    def stage(self) -> Stage:
        """The import."""
        return gem.import_stage(self.file, self.book.handles)


def open_importers(nodes: Sequence[str], env: Env) -> tuple[Importer, ...]:
    """Open each node. AccelError where one cannot be opened or does not answer as DRM; nothing stays open then."""
    found: list[Importer] = []
    try:
        for number, node in enumerate(nodes, 1):
            file = gem.open_node(node, env)
            with closing_on_error(node, file):
                driver = gem.driver_name(file)
                found.append(Importer(file, driver, dumb_book(file, f"gem-handles import {number} ({driver})")))
    except BaseException:
        for importer in reversed(found):
            importer.file.close()
        raise
    return tuple(found)


def import_lifecycles(
    stages: tuple[Stage, ...], importers: Sequence[Importer], sizes: Sizes, names: Sequence[str], unsupported: str = ""
) -> tuple[Lifecycle, ...]:
    """Per importer: what ``stages`` made (a dma-buf), imported there, and mapped by the CPU while it is imported."""
    mapped = shared_map_stage()
    return tuple(
        Lifecycle(name, (*stages, importer.stage(), mapped), sizes, sync, unsupported)
        for name, importer in zip(names, importers, strict=True)
    )


def import_names(importers: Sequence[Importer], before: str = "import-") -> tuple[str, ...]:
    """One name per importer: its driver's, with a number from the second of a driver on."""
    drivers = [importer.driver for importer in importers]
    counts = [drivers[: place + 1].count(driver) for place, driver in enumerate(drivers)]
    return tuple(
        before + driver + (f"-{count}" if count > 1 else "") for driver, count in zip(drivers, counts, strict=True)
    )


More = Callable[[DevFile, Book, Env], tuple[Lifecycle, ...]]
"""What a driver has beside dumb buffers."""


class DumbMemory:
    """Memory of a driver whose objects are dumb buffers, and more where it says so."""

    def __init__(self, driver: str, largest: int = 0, more: More | None = None) -> None:
        self._driver, self._largest, self._more = driver, largest, more

    def open(self, target: Target, env: Env) -> Session:
        """Open the card. AccelError: it cannot be opened, or another driver answers."""
        file = gem.open_node(target.node, env)
        gem.require_driver(file, self._driver)
        with closing_on_error(target.node, file):
            mine = dumb_book(file)
            found: tuple[Lifecycle, ...] = (lifecycle(file, mine.handles, self._largest, mine.why),)
            if self._more is not None:
                found += self._more(file, mine, env)
        return GemSession(target, found, (file,), (mine,))
