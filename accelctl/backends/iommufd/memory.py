"""iommufd: I/O address spaces (IOAS), which need no device: an IOAS without a domain maps pages and pins none.

Three lives: an IOAS of its own for each buffer, a mapping where the kernel chooses the address, one where we do.
Documentation/userspace-api/iommufd.rst, drivers/iommu/iommufd/ioas.c and io_pagetable.c.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from accelctl.abi import hostmem
from accelctl.abi.gem import Handles
from accelctl.abi.lifecycle import (
    HANDLE,
    IOVA,
    AddressSpace,
    Block,
    Counter,
    DriverStatus,
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
from accelctl.hal.uapi import iommufd

_BASE, _SIZE = 1 << 40, 1 << 36
"""Addresses that we choose lie there; the kernel chooses from the first page upwards (iopt_alloc_iova)."""
_CHUNK = 16 << 20
"""Bytes asked about with one call, and how far above the highest known address a lost mapping is looked for."""
_BOTH = iommufd.IOMMU_IOAS_MAP_READABLE | iommufd.IOMMU_IOAS_MAP_WRITEABLE
_EVERYTHING = (1 << 64) - 1


def alloc(file: File) -> int:
    """A new IOAS: its id. Raises OSError."""
    argument = iommufd.IOAS_ALLOC.layout.pack()
    file.ioctl(iommufd.IOAS_ALLOC.number, argument)
    return int(iommufd.IOAS_ALLOC.layout.field("out_ioas_id").get(argument))


def destroy(file: File, number: int) -> None:
    """DESTROY, with all that is mapped in it. Raises OSError."""
    file.ioctl(iommufd.DESTROY.number, iommufd.DESTROY.layout.pack(id=number))


def map_(file: File, ioas: int, va: int, size: int, iova: int | None = None) -> int:
    """IOAS_MAP of our pages, at ``iova`` or where the kernel likes: the address. Raises OSError."""
    layout, fixed = iommufd.IOAS_MAP.layout, 0 if iova is None else iommufd.IOMMU_IOAS_MAP_FIXED_IOVA
    argument = layout.pack(flags=_BOTH | fixed, ioas_id=ioas, user_va=va, length=size, iova=iova or 0)
    file.ioctl(iommufd.IOAS_MAP.number, argument)
    return int(layout.field("iova").get(argument))


def unmap(file: File, ioas: int, iova: int, size: int) -> int:
    """IOAS_UNMAP: bytes unmapped. Raises OSError (ENOENT: nothing is mapped there)."""
    layout = iommufd.IOAS_UNMAP.layout
    argument = layout.pack(ioas_id=ioas, iova=iova, length=size)
    file.ioctl(iommufd.IOAS_UNMAP.number, argument)
    return int(layout.field("length").get(argument))


class Ranges:
    """What is mapped in one IOAS, asked of the kernel: a fixed mapping is refused (EEXIST) where anything is mapped.

    Halving a refused range finds every page that is. The probe's pages are never touched: without a domain nothing is
    pinned, so one page of ours stands for any length.
    """

    def __init__(self, file: File, ioas: int) -> None:
        self._file, self._ioas = file, ioas
        self._probe = hostmem.pages(hostmem.PAGE)
        self._ends = {hostmem.PAGE: hostmem.PAGE, _BASE: _BASE}

    def seen(self, iova: int, size: int) -> int:
        """Note a mapping that was made."""
        base = _BASE if iova >= _BASE else hostmem.PAGE
        self._ends[base] = max(self._ends[base], iova + size)
        return iova

    def used(self) -> int:
        """Bytes mapped now. Raises OSError."""
        return sum(
            self._within(start, start + _CHUNK)
            for base, end in self._ends.items()
            for start in range(base, end + _CHUNK, _CHUNK)
        )

    def _within(self, start: int, end: int) -> int:
        try:
            map_(self._file, self._ioas, self._probe.address, end - start, start)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            if end - start == hostmem.PAGE:
                return hostmem.PAGE
            middle = start + (end - start) // hostmem.PAGE // 2 * hostmem.PAGE
            return self._within(start, middle) + self._within(middle, end)
        unmap(self._file, self._ioas, start, end - start)
        return 0


class _Space(NamedTuple):
    file: DevFile
    ioas: int
    objects: Handles
    ranges: Ranges

    def own(self) -> Stage:
        """An IOAS for one block: ``block.handle``."""

        def acquire(block: Block) -> int:
            block.handle = self.objects.seen(alloc(self.file))
            return block.handle

        return Stage("ioas", HANDLE, acquire, lambda block: destroy(self.file, block.handle), "IOAS_ALLOC / DESTROY")

    def iova(self, *, shared: bool = True, fixed: AddressSpace | None = None) -> Stage:
        """A mapping in the session's IOAS or in the block's own: at ``block.address``, which ``fixed`` handed out, or
        where it comes."""

        def ioas(block: Block) -> int:
            return self.ioas if shared else block.handle

        def acquire(block: Block) -> int:
            place = block.address if fixed is not None else None
            try:
                block.address = map_(self.file, ioas(block), block.extra.address, block.size, place)
            except OSError as error:
                if fixed is not None and error.errno == errno.EEXIST:
                    hostmem.set_aside(fixed, block, "iommufd")  # something is mapped there, although it was given back
                raise
            if shared:
                return self.ranges.seen(block.address, block.size)
            return block.handle  # the first address of every IOAS is the same one

        def release(block: Block) -> None:
            unmapped = unmap(self.file, ioas(block), block.address, block.size)
            if unmapped != block.size:
                raise DriverStatus(unmapped, f"unmapped {unmapped} of {block.size} bytes at {block.address:#x}")

        return Stage("iova", IOVA, acquire, release, "IOAS_MAP / IOAS_UNMAP")


def _lifecycles(space: _Space, chosen: AddressSpace | None, why: str) -> tuple[Lifecycle, ...]:
    sizes, host = Sizes(hostmem.PAGE), hostmem.stage()
    fixed = () if chosen is None else (hostmem.va_stage(chosen, "iommufd"), host, space.iova(fixed=chosen))
    return (
        Lifecycle("ioas", (space.own(), host, space.iova(shared=False)), sizes),
        Lifecycle("map", (host, space.iova()), sizes),
        Lifecycle("map-fixed", fixed, sizes, unsupported=why),
    )


class _Session(Session):
    def __init__(self, target: Target, space: _Space, lifecycles: tuple[Lifecycle, ...]) -> None:
        super().__init__(target, lifecycles, (space.file,))
        self._space = space

    def counters(self) -> tuple[Counter, ...]:
        """IOASes of this file, and bytes mapped in the session's own."""
        space = self._space
        return (
            Counter("ioas", "objects", "file", "ids of probe allocations", space.objects.live),
            Counter("iova-bytes", "bytes", "file", "probe mappings at fixed addresses", space.ranges.used, kind=IOVA),
        )

    def census(self) -> dict[str, int]:
        """Both, counted by destroying and unmapping everything."""
        space = self._space
        return {"ioas": space.objects.sweep(), "iova-bytes": unmap(space.file, space.ioas, 0, _EVERYTHING)}

    def close(self) -> None:
        """Destroy the session's IOAS, then close."""
        try:
            if self._space.file.fd >= 0:
                destroy(self._space.file, self._space.ioas)
        finally:
            super().close()


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open /dev/iommu and make an IOAS. AccelError where that is impossible."""
        file = DevFile(target.node, syscalls=env.syscalls)
        try:
            ioas = alloc(file)
            space = _Space(
                file, ioas, Handles(lambda: alloc(file), lambda number: destroy(file, number), ioas), Ranges(file, ioas)
            )
        except OSError as error:
            file.close()
            raise DeviceUnusable(f"{target.node}: IOAS_ALLOC: {error.strerror}") from error
        chosen, why = None, ""
        try:
            chosen = env.space(_BASE, _SIZE, hostmem.PAGE)
        except NotOffered as error:
            why = error.reason
        return _Session(target, space, _lifecycles(space, chosen, why))


MEMORY = _Memory()
