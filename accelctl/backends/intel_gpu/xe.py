"""xe's address spaces, objects and binds (drivers/gpu/drm/xe, Linux 7.3.4), never run on hardware by us.

    system, vram   vm -> object -> cpu_map -> gpu_map: an address space for each block, which its object belongs to
    shared_vm      va -> object -> cpu_map -> gpu_map: one address space for all blocks, and an object of none
    host_map       va -> host_pages -> gpu_map (bind of our pages)

A bind without a sync object and without a queue is done when the call returns. An address space keeps alive what is
bound in it: an object may be closed before it is unbound, and fdinfo does not see it any more then.

The caching of CPU maps goes with the place: VRAM takes write-combined only. Cached system memory (and our own pages)
can only be bound through an entry of the GPU's page-attribute table that keeps caches coherent, and which index that
is, is known to no query: the first one that a bind of such an object accepts is taken. Entry 0 does for write-combined
memory on all of them.
"""

from __future__ import annotations

import array
import errno
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from accelctl.abi import dumb, gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, inside, number, opened, va_stage, whole
from accelctl.abi.lifecycle import (
    GPU_MAP,
    HANDLE,
    AddressSpace,
    Block,
    Counter,
    Env,
    Lifecycle,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import xe

_MOST_BYTES = 1 << 20
"""An answer that wants more room than this is none."""
_FIRST = 1 << 20
"""Lowest device address in use: what lies below catches null pointers of the GPU."""
_VA_BITS = (32, 57)
_PAT_ENTRIES = 32
_PLACES = 32


class Region(NamedTuple):
    """A kind of memory; ``granule`` and the others in bytes."""

    kind: int
    instance: int
    granule: int
    size: int
    used: int

    @property
    def name(self) -> str:
        """system0, vram1, ..."""
        return f"{'vram' if self.vram else 'system'}{self.instance}"

    @property
    def vram(self) -> bool:
        """On the card."""
        return self.kind == xe.DRM_XE_MEM_REGION_CLASS_VRAM


def query(file: File, what: int, least: int) -> bytes:
    """One device query: asked for its size, then for its data. Raises OSError; ValueError for less than ``least`` bytes
    or for far too many."""
    size = number(file, xe.DEVICE_QUERY, "size", query=what)
    if not least <= size <= _MOST_BYTES:
        raise ValueError(f"DEVICE_QUERY {what} answers {size} bytes")
    room = array.array("B", bytes(size))
    ask(file, xe.DEVICE_QUERY, query=what, size=size, data=room.buffer_info()[0])
    return room.tobytes()


def regions(file: File) -> list[Region]:
    """All memory regions. Raises OSError, ValueError."""
    head, entry = xe.QUERY_MEM_REGIONS, xe.MEM_REGION
    data = query(file, xe.DRM_XE_DEVICE_QUERY_MEM_REGIONS, head.size)
    count = int(head.field("num_mem_regions").get(data))
    if head.size + count * entry.size > len(data):
        raise ValueError(f"{count} memory regions in {len(data)} bytes")
    found = []
    for place in range(count):
        one = entry.unpack(data[head.size + place * entry.size :])
        granule = max(one["min_page_size"], hostmem.PAGE)
        if one["instance"] >= _PLACES:
            raise ValueError(f"memory region {one['instance']}, a placement has {_PLACES} bits")
        found.append(Region(one["mem_class"], one["instance"], granule, one["total_size"], one["used"]))
    return found


def config(file: File) -> tuple[int, int]:
    """Alignment in bytes that every bind keeps, and bits of a device address. Raises OSError, ValueError."""
    head = xe.QUERY_CONFIG
    data = query(file, xe.DRM_XE_DEVICE_QUERY_CONFIG, head.size)
    count = min(int(head.field("num_params").get(data)), (len(data) - head.size) // 8)
    values = struct.unpack_from(f"<{count}Q", data, head.size)
    if count <= xe.DRM_XE_QUERY_CONFIG_VA_BITS:
        raise ValueError(f"DEVICE_QUERY CONFIG has {count} values")
    align, bits = values[xe.DRM_XE_QUERY_CONFIG_MIN_ALIGNMENT], values[xe.DRM_XE_QUERY_CONFIG_VA_BITS]
    if align & (align - 1) or align > _MOST_BYTES << 10 or not _VA_BITS[0] <= bits <= _VA_BITS[1]:
        raise ValueError(f"DEVICE_QUERY CONFIG: alignment {align}, addresses of {bits} bits")
    return max(align, hostmem.PAGE), bits


class _Device:
    """One open xe: what it told, its own address space, and what of it is to be given back."""

    def __init__(self, target: Target, env: Env, held: ExitStack) -> None:
        self.file: DevFile = gem.open_node(target.node, env)
        held.callback(self.file.close)
        gem.require_driver(self.file, "xe")
        self.regions = regions(self.file)
        align, bits = config(self.file)
        self.granule = max([align, *(region.granule for region in self.regions)])
        if not any(not region.vram for region in self.regions) or self.granule & (self.granule - 1):
            raise ValueError(f"memory regions make no sense: {', '.join(map(str, self.regions)) or 'none'}")
        self.system = next(region for region in self.regions if not region.vram)
        base, size = inside(_FIRST, 1 << bits - 1, self.granule)  # the upper half is the sign-extended one
        self.space: AddressSpace = env.space(base, size, self.granule)
        self.first = base
        self.vm = self.vm_create()
        held.callback(self.vm_destroy, self.vm)
        self.book = dumb.book(self.file, lambda: self.create(self.granule, self.system))
        self.pat = self._coherent()

    def vm_create(self) -> int:
        """An address space. Raises OSError."""
        return number(self.file, xe.VM_CREATE, "vm_id")

    def vm_destroy(self, vm: int) -> None:
        """Its end, and that of everything bound in it. Raises OSError."""
        ask(self.file, xe.VM_DESTROY, vm_id=vm)

    def create(self, size: int, region: Region, vm: int = 0) -> int:
        """GEM_CREATE in this region and no other; ``vm`` 0: an object that any address space may bind. Raises
        OSError."""
        caching = xe.DRM_XE_GEM_CPU_CACHING_WC if region.vram else xe.DRM_XE_GEM_CPU_CACHING_WB
        flags = xe.DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM if region.vram else 0
        place = 1 << region.instance
        return number(
            self.file, xe.GEM_CREATE, "handle", size=size, placement=place, flags=flags, vm_id=vm, cpu_caching=caching
        )

    def bind(self, vm: int, operation: int, address: int, size: int, **more: int) -> None:
        """One synchronous bind. Raises OSError."""
        ask(
            self.file,
            xe.VM_BIND,
            vm_id=vm,
            num_binds=1,
            bind_op=operation,
            bind_addr=address,
            bind_range=size,
            **more,
        )

    def unbind(self, vm: int, address: int, size: int) -> None:
        """Whatever is bound there. Raises OSError."""
        self.bind(vm, xe.DRM_XE_VM_BIND_OP_UNMAP, address, size)

    def _coherent(self) -> int:
        """The first index of the page-attribute table that takes cached memory. Raises OSError."""
        handle = self.create(self.granule, self.system)
        try:
            for index in range(_PAT_ENTRIES):
                try:
                    self.bind(
                        self.vm,
                        xe.DRM_XE_VM_BIND_OP_MAP,
                        self.first,
                        self.granule,
                        bind_obj=handle,
                        bind_pat_index=index,
                    )
                except OSError as error:
                    if error.errno != errno.EINVAL or index == _PAT_ENTRIES - 1:
                        raise
                    continue
                self.unbind(self.vm, self.first, self.granule)
                return index
        finally:
            gem.close_handle(self.file, handle)
        raise AssertionError("the last index returns or raises")


def vm_stage(device: _Device) -> Stage:
    """An address space of the block's own (``block.extra``). Every address in it is free, so the block lies at the
    first one."""

    def acquire(block: Block) -> int:
        block.size = whole(block.size, device.granule)
        block.extra = device.vm_create()
        block.address = device.first
        return int(block.extra)

    def release(block: Block) -> None:
        device.vm_destroy(block.extra)
        block.extra = None  # only now: after a failure it can be tried again

    return Stage("vm", HANDLE, acquire, release, "XE_VM_CREATE / XE_VM_DESTROY")


def object_stage(device: _Device, region: Region, private: bool) -> Stage:
    """An object in this region; ``private``: it belongs to the block's address space."""

    def acquire(block: Block) -> int:
        block.handle = device.create(block.size, region, block.extra if private else 0)
        return device.book.handles.seen(block.handle)

    return gem.handle_stage(device.file, acquire, "XE_GEM_CREATE")


def cpu_stage(device: _Device) -> Stage:
    """GEM_MMAP_OFFSET, which only tells an offset, and the mapping."""
    plain = gem.map_stage(device.file)

    def acquire(block: Block) -> int:
        block.offset = number(device.file, xe.GEM_MMAP_OFFSET, "offset", handle=block.handle)
        return plain.acquire(block)

    return plain._replace(acquire=acquire, calls="XE_GEM_MMAP_OFFSET, mmap / munmap")


def gpu_stage(device: _Device, vm: Callable[[Block], int], pat: int, operation: int) -> Stage:
    """The object, or our own pages (``block.extra``), at ``block.address``."""

    def acquire(block: Block) -> int:
        if operation == xe.DRM_XE_VM_BIND_OP_MAP_USERPTR:
            what = {"bind_userptr": block.extra.address}
        else:
            what = {"bind_obj": block.handle}
        device.bind(vm(block), operation, block.address, block.size, bind_pat_index=pat, **what)
        return block.address

    def release(block: Block) -> None:
        device.unbind(vm(block), block.address, block.size)

    return Stage("gpu_map", GPU_MAP, acquire, release, "XE_VM_BIND MAP / UNMAP")


def _lifecycles(device: _Device) -> tuple[Lifecycle, ...]:
    sizes, cpu = Sizes(device.granule), cpu_stage(device)
    ours, own = (lambda block: device.vm), (lambda block: int(block.extra))
    at, bind = va_stage(device.space, device.granule, "xe"), xe.DRM_XE_VM_BIND_OP_MAP

    def private(region: Region) -> tuple[Stage, ...]:
        pat = 0 if region.vram else device.pat
        return (vm_stage(device), object_stage(device, region, True), cpu, gpu_stage(device, own, pat, bind))

    shared = (at, object_stage(device, device.system, False), cpu, gpu_stage(device, ours, device.pat, bind))
    pages = gpu_stage(device, ours, device.pat, xe.DRM_XE_VM_BIND_OP_MAP_USERPTR)
    found = [
        Lifecycle("system", private(device.system), sizes),
        Lifecycle("shared_vm", shared, sizes),
        Lifecycle("host_map", (at, hostmem.stage(), pages), sizes),
    ]
    card = next((region for region in device.regions if region.vram), None)
    return (*found, Lifecycle("vram", private(card), sizes)) if card else tuple(found)


def _used(device: _Device, index: int) -> int:
    return regions(device.file)[index].used


def _counter(device: _Device, index: int, region: Region) -> Counter:
    source = "DRM_XE_DEVICE_QUERY_MEM_REGIONS"
    return device_counter(f"{region.name}-used", "bytes", source, lambda: _used(device, index))


def open_session(target: Target, env: Env) -> Session:
    """Open the node and make an address space. AccelError where that is impossible."""

    def build(held: ExitStack) -> Session:
        device = _Device(target, env, held)
        more = tuple(_counter(device, index, region) for index, region in enumerate(device.regions))
        return HeldSession(target, _lifecycles(device), (device.file,), held, (device.book,), more)

    return opened(target, build)
