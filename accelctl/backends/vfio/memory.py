"""VFIO type 1: host pages pinned and mapped for the devices of a group, at addresses that we choose.

A container maps nothing until a group is in it, so ``target.others`` holds the group's node; the device itself is never
asked for. Documentation/driver-api/vfio.rst, drivers/vfio/vfio_iommu_type1.c.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

from accelctl.abi import hostmem
from accelctl.abi.lifecycle import (
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
from accelctl.errors import AccelError, DeviceUnusable, PermissionDenied
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import vfio

NO_GROUP = "no group bound to vfio-pci: a container without one maps nothing"
_INFO_BYTES = 1024
"""Room for the capabilities, which are a few dozen bytes and 16 per range of addresses."""
_MOST = 1 << 40
"""Bytes of address space that a session uses at most."""


def _capabilities(container: File) -> Iterator[tuple[int, int, bytearray]]:
    """(id, offset, buffer) of each capability behind IOMMU_GET_INFO. Raises OSError, ValueError (no room for all)."""
    layout = vfio.IOMMU_GET_INFO.layout
    argument = layout.pack(argsz=_INFO_BYTES) + bytearray(_INFO_BYTES - layout.size)
    container.ioctl(vfio.IOMMU_GET_INFO.number, argument)
    info = layout.unpack(argument)
    if info["argsz"] > _INFO_BYTES:
        raise ValueError(f"IOMMU_GET_INFO needs {info['argsz']} bytes")
    place = info["cap_offset"] if info["flags"] & vfio.VFIO_IOMMU_INFO_CAPS else 0
    while place:
        header = vfio.INFO_CAP_HEADER.unpack(argument[place:])
        yield header["id"], place, argument
        place = header["next"]


def available(container: File) -> int:
    """How many more mappings this container takes (dma_entry_limit less those alive). Raises OSError, ValueError."""
    for number, place, argument in _capabilities(container):
        if number == vfio.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL:
            return int(vfio.INFO_DMA_AVAIL.unpack(argument[place:])["avail"])
    raise ValueError("this kernel does not tell DMA_AVAIL")


def window(container: File) -> tuple[int, int]:
    """Base and size in bytes of the largest range of addresses that the IOMMU leaves to us. Raises OSError,
    ValueError."""
    ranges: list[tuple[int, int]] = []
    for number, place, argument in _capabilities(container):
        if number == vfio.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE:
            count = struct.unpack_from("<I", argument, place + vfio.INFO_CAP_HEADER.size)[0]
            first = place + vfio.INFO_CAP_HEADER.size + 8
            ranges = [struct.unpack_from("<QQ", argument, first + 16 * number) for number in range(count)]
    if not ranges:
        raise ValueError("this kernel does not tell which I/O addresses are usable")
    start, end = max(ranges, key=lambda pair: pair[1] - pair[0])
    base = -(-max(start, hostmem.PAGE) // hostmem.PAGE) * hostmem.PAGE
    return base, min(end + 1 - base, _MOST) // hostmem.PAGE * hostmem.PAGE


def _iova(container: File, space: AddressSpace) -> Stage:
    into, out = vfio.IOMMU_MAP_DMA, vfio.IOMMU_UNMAP_DMA
    both = vfio.VFIO_DMA_MAP_FLAG_READ | vfio.VFIO_DMA_MAP_FLAG_WRITE

    def acquire(block: Block) -> int:
        argument = into.layout.pack(flags=both, vaddr=block.extra.address, iova=block.address, size=block.size)
        try:
            container.ioctl(into.number, argument)
        except OSError as error:
            if error.errno == errno.EEXIST:  # something is mapped there, although it was given back
                hostmem.set_aside(space, block, "vfio")
            raise
        return block.address

    def release(block: Block) -> None:
        argument = out.layout.pack(iova=block.address, size=block.size)
        container.ioctl(out.number, argument)
        unmapped = int(out.layout.field("size").get(argument))
        if unmapped != block.size:  # the call returns 0 even when there was nothing to unmap
            raise DriverStatus(unmapped, f"unmapped {unmapped} of {block.size} bytes at {block.address:#x}")

    return Stage("iova", IOVA, acquire, release, "VFIO_IOMMU_MAP_DMA / VFIO_IOMMU_UNMAP_DMA")


class _Session(Session):
    """A container with a group in it, and how many of its map slots were free at the start."""

    def __init__(self, target: Target, lifecycle: Lifecycle, files: tuple[DevFile, ...]) -> None:
        super().__init__(target, (lifecycle,), files)
        self._container, self._usable = files[0], not lifecycle.unsupported
        self._group = files[1] if len(files) > 1 else None
        self._slots = available(self._container) if self._usable else 0

    def mapped(self) -> int:
        """Mappings alive in the container. Raises OSError, ValueError."""
        return self._slots - available(self._container)

    def counters(self) -> tuple[Counter, ...]:
        """The container's mappings."""
        source = "VFIO_IOMMU_GET_INFO, DMA_AVAIL"
        return (Counter("dma-mappings", "map slots", "file", source, self.mapped, kind=IOVA),) if self._usable else ()

    def census(self) -> dict[str, int]:
        """Mappings still alive; all are unmapped at once. DriverStatus when some stay."""
        if not self._usable:
            return {}
        alive, call = self.mapped(), vfio.IOMMU_UNMAP_DMA
        self._container.ioctl(call.number, call.layout.pack(flags=vfio.VFIO_DMA_UNMAP_FLAG_ALL))
        left = self.mapped()
        if left:
            raise DriverStatus(left, f"{left} mappings stay after all were unmapped")
        return {"dma-mappings": alive}

    def close(self) -> None:
        """Take the group out of the container (the last one takes the IOMMU with it), then close both."""
        try:
            if self._group is not None and self._group.fd >= 0:
                self._group.ioctl(vfio.GROUP_UNSET_CONTAINER.number)
        finally:
            super().close()


def _join(container: DevFile, group: DevFile) -> None:
    """Put the group into the container and choose the IOMMU driver. AccelError where the kernel does not let us."""
    status = vfio.GROUP_GET_STATUS.layout.pack()
    try:
        group.ioctl(vfio.GROUP_GET_STATUS.number, status)
    except OSError as error:
        raise DeviceUnusable(f"{group.path}: not a VFIO group ({error.strerror})") from error
    if not vfio.GROUP_GET_STATUS.layout.field("flags").get(status) & vfio.VFIO_GROUP_FLAGS_VIABLE:
        raise DeviceUnusable(f"{group.path}: not every device of the group is bound to vfio-pci or to no driver")
    try:
        group.ioctl(vfio.GROUP_SET_CONTAINER.number, bytearray(struct.pack("<i", container.fd)))
    except OSError as error:
        raise DeviceUnusable(f"{group.path}: does not join a container ({error.strerror})") from error
    try:
        container.ioctl(vfio.SET_IOMMU.number, vfio.VFIO_TYPE1v2_IOMMU)
    except OSError as error:
        group.ioctl(vfio.GROUP_UNSET_CONTAINER.number)
        if error.errno == errno.EPERM:
            raise PermissionDenied(
                f"{container.path}: SET_IOMMU: {error.strerror}",
                hint="without interrupt remapping: vfio_iommu_type1.allow_unsafe_interrupts=1",
            ) from error
        raise DeviceUnusable(f"{container.path}: SET_IOMMU: {error.strerror}") from error


def _space(container: DevFile, env: Env) -> tuple[AddressSpace | None, str]:
    try:
        base, size = window(container)
        return env.space(base, size, hostmem.PAGE), ""
    except NotOffered as error:
        return None, error.reason


def _stages(container: File, space: AddressSpace) -> tuple[Stage, ...]:
    return hostmem.va_stage(space, "vfio"), hostmem.stage(), _iova(container, space)


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the container, and the group (``target.others``). AccelError where one cannot be opened or joined."""
        files = [DevFile(target.node, syscalls=env.syscalls)]
        try:
            space, why = None, NO_GROUP
            if target.others:
                files.append(DevFile(target.others[0], syscalls=env.syscalls))
                _join(files[0], files[1])
                space, why = _space(files[0], env)
            stages = () if space is None else _stages(files[0], space)
            return _Session(target, Lifecycle("map", stages, Sizes(hostmem.PAGE), unsupported=why), tuple(files))
        except (OSError, ValueError) as error:
            _close(files)
            raise DeviceUnusable(f"{target.node}: {error}") from error
        except AccelError:
            _close(files)
            raise


def _close(files: list[DevFile]) -> None:
    for file in reversed(files):  # closing the group's descriptor takes it out of its container
        file.close()


MEMORY = _Memory()
