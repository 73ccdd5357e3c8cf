"""amdgpu's objects (drivers/gpu/drm/amd/amdgpu/amdgpu_gem.c, Linux 7.3.4), never run on hardware by us.

    vram, gtt   va -> object -> cpu_map -> gpu_map
    host_map    va -> host_pages -> object (GEM_USERPTR) -> gpu_map
    peer_map    va -> object -> gpu_map -> export -> import -> peer_va -> peer_map, on a second amdgpu

Two successes that hide a failure. GEM_CREATE retries silently, first without CPU access, then in GTT as well: GEM_OP
tells what became of it, and an object that is not in VRAM alone is given back. GEM_VA answers 0 when the interval is
registered; that its page tables could not be written goes to the kernel's log only ("Couldn't update BO_VA"), so
gpu_map proves the bookkeeping, not the translation.

GEM_CLOSE drops the object's mapping in the address space: no object here may go before its gpu_map, whose unmap would
find neither (ENOENT).
"""

from __future__ import annotations

import array
import errno
from contextlib import ExitStack

from accelctl.abi import dumb, gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, inside, number, opened, va_stage
from accelctl.abi.lifecycle import (
    GPU_MAP,
    HANDLE,
    VA,
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
from accelctl.hal.uapi import amdgpu
from accelctl.hal.uapi._struct import Struct

_PAGE_FLAGS = (
    amdgpu.AMDGPU_VM_PAGE_READABLE | amdgpu.AMDGPU_VM_PAGE_WRITEABLE | amdgpu.AMDGPU_VM_PAGE_EXECUTABLE
)  # what libdrm maps with
_USER_FLAGS = amdgpu.AMDGPU_GEM_USERPTR_REGISTER | amdgpu.AMDGPU_GEM_USERPTR_VALIDATE
"""REGISTER: without a notifier only read-only pages are taken (EACCES); VALIDATE: fail now, not at first use."""
_USAGE = (
    ("vram-used", amdgpu.AMDGPU_INFO_VRAM_USAGE),
    ("visible-vram-used", amdgpu.AMDGPU_INFO_VIS_VRAM_USAGE),
    ("gtt-used", amdgpu.AMDGPU_INFO_GTT_USAGE),
)


def query(file: File, what: int, layout: Struct) -> bytes:
    """What INFO says. The kernel copies at most as much as it knows; the rest stays 0. Raises OSError."""
    answer = array.array("B", bytes(layout.size))
    ask(file, amdgpu.INFO, return_pointer=answer.buffer_info()[0], return_size=layout.size, query=what)
    return answer.tobytes()


def window(info: bytes) -> tuple[int, int, int]:
    """Base, size and granule in bytes of the addresses that are ours, from DEV_INFO: the lower range, as libdrm takes
    it by default. Raises ValueError for an answer that makes no sense."""
    known = amdgpu.INFO_DEVICE.unpack(info)
    granule = max(known["virtual_address_alignment"], known["gart_page_size"], hostmem.PAGE)
    if granule & (granule - 1):
        raise ValueError(f"alignment of device addresses is {granule}, no power of two")
    base, size = inside(known["virtual_address_offset"], known["virtual_address_max"], granule)
    return base, size, granule


class _Device:
    """One open amdgpu: its file, its addresses, its book of handles."""

    def __init__(self, node: str, env: Env, held: ExitStack, name: str = "gem-handles") -> None:
        self.file: DevFile = gem.open_node(node, env)
        held.callback(self.file.close)
        gem.require_driver(self.file, "amdgpu")
        base, size, self.granule = window(query(self.file, amdgpu.AMDGPU_INFO_DEV_INFO, amdgpu.INFO_DEVICE))
        self.space: AddressSpace = env.space(base, size, self.granule)
        self.book = dumb.book(self.file, lambda: self.create(hostmem.PAGE, amdgpu.AMDGPU_GEM_DOMAIN_GTT), name)

    def create(self, size: int, domain: int) -> int:
        """GEM_CREATE: a handle. Raises OSError."""
        return number(
            self.file,
            amdgpu.GEM_CREATE,
            "out_handle",
            in_bo_size=size,
            in_alignment=self.granule,
            in_domains=domain,
            in_domain_flags=amdgpu.AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED,
        )

    def placed(self, handle: int) -> tuple[int, int]:
        """Size in bytes and domains of an object, as it was made in the end. Raises OSError."""
        answer = array.array("B", bytes(amdgpu.GEM_CREATE_IN.size))
        pointer, info = answer.buffer_info()[0], amdgpu.AMDGPU_GEM_OP_GET_GEM_CREATE_INFO
        ask(self.file, amdgpu.GEM_OP, handle=handle, op=info, value=pointer)
        made = amdgpu.GEM_CREATE_IN.unpack(answer.tobytes())
        return made["bo_size"], made["domains"]

    def mapping(self, operation: int, handle: int, address: int, size: int) -> None:
        """GEM_VA, whole object. Raises OSError (EINVAL also for an interval that is taken)."""
        ask(
            self.file,
            amdgpu.GEM_VA,
            handle=handle,
            operation=operation,
            flags=_PAGE_FLAGS,
            va_address=address,
            map_size=size,
        )

    def usage(self, what: int) -> int:
        """A number of bytes that INFO tells. Raises OSError."""
        return int.from_bytes(query(self.file, what, _U64), "little")


_U64 = Struct("__u64", "Q", "value")


def object_stage(device: _Device, domain: int) -> Stage:
    """An object in this domain and in no other."""

    def acquire(block: Block) -> int:
        handle = device.book.handles.seen(device.create(block.size, domain))
        if domain == amdgpu.AMDGPU_GEM_DOMAIN_VRAM:
            try:
                size, domains = device.placed(handle)
                if domains != domain or size < block.size:
                    told = f"asked for {block.size} bytes of VRAM, got {size} in domains {domains:#x}"
                    raise OSError(errno.ENOMEM, told)
            except OSError:
                gem.close_handle(device.file, handle)
                raise
        block.handle = handle
        return handle

    return gem.handle_stage(device.file, acquire, "AMDGPU_GEM_CREATE")._replace(early=False)


def user_stage(device: _Device) -> Stage:
    """Our own pages (``block.extra``) as an object."""

    def acquire(block: Block) -> int:
        block.handle = number(
            device.file, amdgpu.GEM_USERPTR, "handle", addr=block.extra.address, size=block.size, flags=_USER_FLAGS
        )
        return device.book.handles.seen(block.handle)

    return gem.handle_stage(device.file, acquire, "AMDGPU_GEM_USERPTR")._replace(early=False)


def cpu_stage(device: _Device) -> Stage:
    """GEM_MMAP, which only tells an offset, and the mapping."""
    plain = gem.map_stage(device.file)

    def acquire(block: Block) -> int:
        block.offset = number(device.file, amdgpu.GEM_MMAP, "out_addr_ptr", in_handle=block.handle)
        return plain.acquire(block)

    return plain._replace(acquire=acquire, calls="AMDGPU_GEM_MMAP, mmap / munmap")


def gpu_stage(device: _Device) -> Stage:
    """The object at its device address."""

    def acquire(block: Block) -> int:
        device.mapping(amdgpu.AMDGPU_VA_OP_MAP, block.handle, block.address, block.size)
        return block.address

    def release(block: Block) -> None:
        device.mapping(amdgpu.AMDGPU_VA_OP_UNMAP, block.handle, block.address, block.size)

    return Stage("gpu_map", GPU_MAP, acquire, release, "AMDGPU_GEM_VA MAP / UNMAP")


class _Import:
    """What a block is on the second device."""

    __slots__ = ("address", "handle")

    def __init__(self, handle: int) -> None:
        self.handle, self.address = handle, 0


def peer_stages(peer: _Device) -> tuple[Stage, ...]:
    """``block.file``, a dma-buf, on a second device: import -> peer_va -> peer_map, in ``block.extra``."""
    plain = gem.import_stage(peer.file, peer.book.handles)

    def take(block: Block) -> int:
        handle = plain.acquire(block)
        block.extra = _Import(handle)
        return handle

    def drop(block: Block) -> None:
        gem.close_handle(peer.file, block.extra.handle)
        block.extra = None  # only now: after a failure it can be tried again

    def reserve(block: Block) -> int:
        block.extra.address = peer.space.alloc(block.size, peer.granule, "amdgpu")
        return int(block.extra.address)

    def give_back(block: Block) -> None:
        peer.space.free(block.extra.address)

    def bind(block: Block) -> int:
        peer.mapping(amdgpu.AMDGPU_VA_OP_MAP, block.extra.handle, block.extra.address, block.size)
        return int(block.extra.address)

    def unbind(block: Block) -> None:
        peer.mapping(amdgpu.AMDGPU_VA_OP_UNMAP, block.extra.handle, block.extra.address, block.size)

    return (
        Stage("import", HANDLE, take, drop, plain.calls),
        Stage("peer_va", VA, reserve, give_back),
        Stage("peer_map", GPU_MAP, bind, unbind, "AMDGPU_GEM_VA MAP / UNMAP"),
    )


def _lifecycles(device: _Device, peer: _Device | None, env: Env) -> tuple[Lifecycle, ...]:
    sizes = Sizes(device.granule)
    va, mapped = va_stage(device.space, device.granule, "amdgpu"), gpu_stage(device)
    in_gtt = object_stage(device, amdgpu.AMDGPU_GEM_DOMAIN_GTT)
    own = (
        Lifecycle("vram", (va, object_stage(device, amdgpu.AMDGPU_GEM_DOMAIN_VRAM), cpu_stage(device), mapped), sizes),
        Lifecycle("gtt", (va, in_gtt, cpu_stage(device), mapped), sizes),
        Lifecycle("host_map", (va, hostmem.stage(), user_stage(device), mapped), sizes),
    )
    if peer is None:
        return own
    # GTT, because whether a peer reaches VRAM depends on the bridges of the machine.
    shared = (va, in_gtt, mapped, gem.export_stage(device.file, env.syscalls), *peer_stages(peer))
    return (*own, Lifecycle("peer_map", shared, Sizes(max(device.granule, peer.granule))))


def _counter(device: _Device, name: str, what: int) -> Counter:
    return device_counter(name, "bytes", "DRM_IOCTL_AMDGPU_INFO", lambda: device.usage(what))


def open_session(target: Target, env: Env) -> Session:
    """Open the node; the first other render node is its peer. AccelError where that is impossible."""

    def build(held: ExitStack) -> Session:
        devices = [_Device(target.node, env, held)]
        others = [node for node in target.others if "/renderD" in node]  # a card node is the device again
        devices += [_Device(node, env, held, "gem-handles peer") for node in others[:1]]
        return HeldSession(
            target,
            _lifecycles(devices[0], devices[1] if others else None, env),
            tuple(device.file for device in devices),
            held,
            tuple(device.book for device in devices),
            tuple(_counter(devices[0], name, what) for name, what in _USAGE),
        )

    return opened(target, build)
