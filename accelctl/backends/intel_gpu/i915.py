"""i915's objects (drivers/gpu/drm/i915/gem, Linux 7.3.4), never run on hardware by us.

    system, local   object -> offset -> cpu_map
    host_map        host_pages -> object (GEM_USERPTR)

There is no gpu_map: an object has a device address only while EXECBUFFER2 uses it, and a bound address stays until the
object is idle. So what is accounted for here are handles and pages.

On cards with memory of their own every mapping is of the type FIXED (caching follows from where the object lies), on
all others FIXED is refused (ENODEV, i915_gem_mman.c); which it is follows from the regions.
"""

from __future__ import annotations

import array
import errno
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from accelctl.abi import dumb, gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, number, offset_stage, opened
from accelctl.abi.dumb import Book
from accelctl.abi.lifecycle import Block, Counter, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import i915

_MOST_BYTES = 1 << 20
"""An answer that wants more room than this is none."""


class Region(NamedTuple):
    """A kind of memory. ``free`` equals ``size`` also where the caller may not know it (no CAP_PERFMON)."""

    kind: int
    instance: int
    size: int
    free: int

    @property
    def name(self) -> str:
        """system0, local0, ..."""
        return f"{'local' if self.kind == i915.I915_MEMORY_CLASS_DEVICE else 'system'}{self.instance}"


def _query(file: File, data: int, length: int) -> int:
    """One query item; the length that the kernel wrote, negative: its error. Raises OSError."""
    item = array.array(
        "B",
        bytes(
            i915.QUERY_ITEM.pack(query_id=i915.DRM_I915_QUERY_MEMORY_REGIONS, length=length, data_ptr=data),
        ),
    )
    ask(file, i915.QUERY, num_items=1, items_ptr=item.buffer_info()[0])
    answer = int(i915.QUERY_ITEM.field("length").get(item.tobytes()))
    if answer < 0:  # the call is fine, its item is not
        raise OSError(-answer, f"DRM_I915_QUERY_MEMORY_REGIONS: error {-answer}")
    return answer


def regions(file: File) -> list[Region]:
    """All memory regions. Raises OSError; ValueError for an answer that makes no sense."""
    head, entry = i915.QUERY_MEMORY_REGIONS, i915.MEMORY_REGION_INFO
    length = _query(file, 0, 0)  # no room: the kernel only says how much it wants
    if not head.size <= length <= _MOST_BYTES:
        raise ValueError(f"memory regions in {length} bytes")
    room = array.array("B", bytes(length))
    _query(file, room.buffer_info()[0], length)
    data = room.tobytes()
    count = int(head.field("num_regions").get(data))
    if head.size + count * entry.size > length:
        raise ValueError(f"{count} memory regions in {length} bytes")
    found = []
    for place in range(count):
        one = entry.unpack(data[head.size + place * entry.size :])
        kind, instance = one["region_memory_class"], one["region_memory_instance"]
        found.append(Region(kind, instance, one["probed_size"], one["unallocated_size"]))
    return found


def create(file: File, size: int) -> tuple[int, int]:
    """GEM_CREATE, in system memory: the handle, and the size that the driver made of it. Raises OSError."""
    answer, layout = ask(file, i915.GEM_CREATE, size=size), i915.GEM_CREATE.layout
    return int(layout.field("handle").get(answer)), int(layout.field("size").get(answer))


def create_in(file: File, size: int, region: Region) -> tuple[int, int]:
    """GEM_CREATE_EXT in this region and no other: handle and size. Raises OSError."""
    place = i915.GEM_MEMORY_CLASS_INSTANCE.pack(memory_class=region.kind, memory_instance=region.instance)
    places = array.array("B", bytes(place))
    chain = i915.GEM_CREATE_EXT_MEMORY_REGIONS.pack(
        base_name=i915.I915_GEM_CREATE_EXT_MEMORY_REGIONS, num_regions=1, regions=places.buffer_info()[0]
    )
    extension, layout = array.array("B", bytes(chain)), i915.GEM_CREATE_EXT.layout
    answer = ask(file, i915.GEM_CREATE_EXT, size=size, extensions=extension.buffer_info()[0])
    return int(layout.field("handle").get(answer)), int(layout.field("size").get(answer))


def object_stage(file: File, book: Book, make: Callable[[int], tuple[int, int]], calls: str) -> Stage:
    """An object; ``block.size`` becomes the driver's."""

    def acquire(block: Block) -> int:
        block.handle, block.size = make(block.size)
        return book.handles.seen(block.handle)

    return gem.handle_stage(file, acquire, calls)


def user_stage(file: File, book: Book) -> Stage:
    """Our own pages (``block.extra``) as an object. PROBE, so that pages that cannot be used fail now and not when work
    is submitted."""

    def acquire(block: Block) -> int:
        where, flags = block.extra.address, i915.I915_USERPTR_PROBE
        block.handle = number(file, i915.GEM_USERPTR, "handle", user_ptr=where, user_size=block.size, flags=flags)
        return book.handles.seen(block.handle)

    return gem.handle_stage(file, acquire, "I915_GEM_USERPTR")


def _free(file: File, index: int) -> int:
    region = regions(file)[index]
    if region.free == region.size:
        raise ValueError(f"{region.name}: all free, or hidden: usage needs CAP_PERFMON")
    return region.free


def _counter(file: File, index: int, region: Region) -> Counter:
    source = "DRM_I915_QUERY_MEMORY_REGIONS"
    return device_counter(f"{region.name}-free", "bytes", source, lambda: _free(file, index))


def _lifecycles(file: File, book: Book, found: list[Region]) -> tuple[Lifecycle, ...]:
    local = next((region for region in found if region.kind == i915.I915_MEMORY_CLASS_DEVICE), None)
    mode = i915.I915_MMAP_OFFSET_FIXED if local else i915.I915_MMAP_OFFSET_WB
    rest = (offset_stage(file, i915.GEM_MMAP_OFFSET, flags=mode), gem.map_stage(file))
    sizes = Sizes(hostmem.PAGE)
    system = object_stage(file, book, lambda size: create(file, size), "I915_GEM_CREATE")
    user = user_stage(file, book)._replace(early=False)  # there is no mapping that would outlive it
    made = (Lifecycle("system", (system, *rest), sizes), Lifecycle("host_map", (hostmem.stage(), user), sizes))
    if local is None:
        return made
    card = object_stage(file, book, lambda size: create_in(file, size, local), "I915_GEM_CREATE_EXT")
    return (*made, Lifecycle("local", (card, *rest), sizes))


def open_session(target: Target, env: Env) -> Session:
    """Open the node. AccelError where that is impossible."""

    def build(held: ExitStack) -> Session:
        file: DevFile = gem.open_node(target.node, env)
        held.callback(file.close)
        gem.require_driver(file, "i915")
        try:
            found = regions(file)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            found = []  # before 5.16: no such query, and no card with memory of its own
        book = dumb.book(file, lambda: create(file, hostmem.PAGE)[0])
        more = tuple(_counter(file, index, region) for index, region in enumerate(found))
        return HeldSession(target, _lifecycles(file, book, found), (file,), held, (book,), more)

    return opened(target, build)
