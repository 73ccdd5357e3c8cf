"""KFD, AMD's compute interface (drivers/gpu/drm/amd/amdkfd, Linux 7.3.4), never run on hardware by us.

    vram, gtt   va -> object -> cpu_map -> gpu_map
    host_map    va -> host_pages -> object (our pages) -> gpu_map
    peer_map    va -> object -> cpu_map -> peer_map, on every GPU whose render node was named

The KFD node stands for all GPUs, and there is one KFD object per process: ACQUIRE_VM ties it to a render file for good,
and another file for the same GPU is EBUSY from then on. Closing the files gives little back; only the end of the
process does, on a work queue. So a clean baseline needs a child process for each round, and one session is all that a
process gets.

Mapping is done GPU by GPU and may succeed for some of them. ``n_success`` is where to start as well as how many were
done, so it is 0 in each call, and must be the number of GPUs afterwards. FREE is EBUSY while anything is mapped, so no
object may go before its gpu_map.

There is no way from Python to a mapping at a chosen address, so the CPU sees a block elsewhere than the GPU does, and
doorbells (whose offsets do not fit into mmap's) are out of reach.
"""

from __future__ import annotations

import array
import errno
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from accelctl.abi import gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, inside, number, opened, va_stage
from accelctl.abi.lifecycle import (
    GPU_MAP,
    HANDLE,
    AddressSpace,
    Block,
    DriverStatus,
    Env,
    Lifecycle,
    NotOffered,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.errors import AbiError, DeviceUnusable, UsageError
from accelctl.hal.devfile import DevFile
from accelctl.hal.uapi import kfd
from accelctl.hal.uapi._struct import Ioctl

if TYPE_CHECKING:
    from accelctl.hal.root import SysRoot

NODE = "kfd"
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_MAJOR = 1
_MOST_GPUS = 1024
"""What more than this many GPUs in an answer says is that it is none."""
_COMMON = kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | kfd.KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
_VRAM = _COMMON | kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM | kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC
_GTT = _COMMON | kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT | kfd.KFD_IOC_ALLOC_MEM_FLAGS_COHERENT
_USER = _COMMON | kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | kfd.KFD_IOC_ALLOC_MEM_FLAGS_COHERENT


class Gpu(NamedTuple):
    """One GPU of KFD and the addresses of its compute address space, ``limit`` included."""

    id: int
    base: int
    limit: int


def gpus(file: DevFile) -> list[Gpu]:
    """All GPUs that KFD has. Raises OSError; ValueError for an answer that makes no sense."""
    call, entry = kfd.GET_PROCESS_APERTURES_NEW, kfd.PROCESS_DEVICE_APERTURES
    count = number(file, call, "num_of_nodes")  # no room: the kernel only counts
    if count > _MOST_GPUS:
        raise ValueError(f"{count} GPUs in one machine")
    room = array.array("B", bytes(count * entry.size))
    pointer = room.buffer_info()[0] if count else 0
    found = number(file, call, "num_of_nodes", kfd_process_device_apertures_ptr=pointer, num_of_nodes=count)
    entries = [entry.unpack(room.tobytes()[place * entry.size :]) for place in range(min(found, count))]
    return [Gpu(one["gpu_id"], one["gpuvm_base"], one["gpuvm_limit"]) for one in entries]


def render_minors(root: SysRoot) -> dict[int, int]:
    """Minor number of a render node -> KFD's id of that GPU, from the topology; what cannot be read is left out."""
    found: dict[int, int] = {}
    base = root.resolve(TOPOLOGY)
    for node in root.listdir(base):
        words = (root.text(f"{base}/{node}/properties") or "").split()
        values = dict(zip(words[::2], words[1::2]))  # noqa: B905 (a last word without a number says nothing)
        minor, gpu = values.get("drm_render_minor", ""), root.text(f"{base}/{node}/gpu_id") or ""
        if minor.isdecimal() and gpu.isdecimal() and int(gpu):
            found[int(minor)] = int(gpu)
    return found


def _topology() -> dict[int, int]:
    from accelctl.hal.root import open_root

    return render_minors(open_root("/"))


def _choose(known: Sequence[Gpu], render: DevFile, options: str) -> Gpu:
    """The GPU behind a render node: named by option, the only one, or found in the topology."""
    if options:
        wanted = int(options, 0)
    elif len(known) == 1:
        wanted = known[0].id
    else:
        wanted = _topology().get(render.number[1], 0)
    for gpu in known:
        if gpu.id == wanted:
            return gpu
    raise DeviceUnusable(f"{render.path}: KFD has {len(known)} GPUs, and which of them this is cannot be told")


def _nodes(target: Target) -> tuple[str, list[str]]:
    """KFD's node and the render nodes of the target; of none, the first that the topology has. Raises UsageError."""
    every = (target.node, *target.others)
    own = [node for node in every if node.rpartition("/")[2] == NODE]
    renders = [node for node in every if "/renderD" in node]
    if own and not renders:
        renders = [f"{own[0].rpartition('/')[0]}/dri/renderD{minor}" for minor in sorted(_topology())[:1]]
    if not own or not renders:
        raise UsageError(f"{target.node}: KFD needs its own node and the render node of a GPU")
    return own[0], renders


class _Process:
    """The KFD object of this process: its node, and the GPUs that were acquired."""

    def __init__(self, target: Target, env: Env, held: ExitStack) -> None:
        own, renders = _nodes(target)
        self.file = DevFile(own, syscalls=env.syscalls)
        held.callback(self.file.close)
        major = number(self.file, kfd.GET_VERSION, "major_version")
        if major != _MAJOR:
            raise AbiError(f"{own}: KFD's interface is version {major}, known is {_MAJOR}")
        known = gpus(self.file)
        self.renders = [self._open(node, env, held) for node in renders]
        chosen = [_choose(known, render, env.options.get("gpu_id", "")) for render in self.renders]
        for gpu, render in zip(chosen, self.renders, strict=True):
            self._acquire(gpu, render)
        self.ids = [gpu.id for gpu in chosen]
        base, size = inside(max(gpu.base for gpu in chosen), min(gpu.limit for gpu in chosen) + 1, hostmem.PAGE)
        self.space: AddressSpace = env.space(base, size, hostmem.PAGE)

    @staticmethod
    def _open(node: str, env: Env, held: ExitStack) -> DevFile:
        file = gem.open_node(node, env)
        held.callback(file.close)
        gem.require_driver(file, "amdgpu")
        return file

    def _acquire(self, gpu: Gpu, render: DevFile) -> None:
        try:
            ask(self.file, kfd.ACQUIRE_VM, drm_fd=render.fd, gpu_id=gpu.id)
        except OSError as error:
            if error.errno == errno.EBUSY:
                reason = "this process has its compute address space by another file, until it ends"
                raise DeviceUnusable(f"{render.path}: {reason}", hint="one KFD session per process") from error
            raise

    def available(self) -> int:
        """Bytes that can still be had on the first GPU. Raises OSError."""
        return number(self.file, kfd.AVAILABLE_MEMORY, "available", gpu_id=self.ids[0])


def object_stage(process: _Process, flags: int, name: str = "object") -> Stage:
    """Memory of the first GPU, at ``block.address``. With PUBLIC it can be mapped by the CPU, which wants a large BAR:
    EINVAL otherwise, so that one is "not offered"."""
    layout = kfd.ALLOC_MEMORY_OF_GPU.layout
    handle, offset = layout.field("handle"), layout.field("mmap_offset")

    def acquire(block: Block) -> int:
        user = block.extra.address if flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR else 0  # in: where our pages are
        values = {"va_addr": block.address, "size": block.size, "mmap_offset": user, "gpu_id": process.ids[0]}
        try:
            answer = ask(process.file, kfd.ALLOC_MEMORY_OF_GPU, flags=flags, **values)
        except OSError as error:
            if error.errno == errno.EINVAL and flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC:
                raise NotOffered("VRAM that the CPU can map: the BAR is too small for it") from error
            raise
        block.handle, block.offset = handle.get(answer), offset.get(answer)
        return block.handle

    def release(block: Block) -> None:
        ask(process.file, kfd.FREE_MEMORY_OF_GPU, handle=block.handle)

    return Stage(name, HANDLE, acquire, release, "ALLOC_MEMORY_OF_GPU / FREE_MEMORY_OF_GPU")


def _each(process: _Process, call: Ioctl, handle: int, ids: array.array[int]) -> None:
    """MAP or UNMAP on these GPUs. Raises OSError, whose ``done`` GPUs are in the reply; DriverStatus for too few."""
    argument = call.layout.pack(handle=handle, device_ids_array_ptr=ids.buffer_info()[0], n_devices=len(ids))
    try:
        process.file.ioctl(call.number, argument)
    except OSError as error:
        raise _Partly(int(call.layout.field("n_success").get(argument)), error) from error
    done = int(call.layout.field("n_success").get(argument))
    if done != len(ids):
        raise _Partly(done, DriverStatus(done, f"{call.name}: done on {done} of {len(ids)} GPUs"))


class _Partly(Exception):
    """A call that reached only the first GPUs: how many, and what is to be raised."""

    def __init__(self, done: int, error: OSError) -> None:
        super().__init__(str(error))
        self.done, self.error = done, error


def gpu_stage(process: _Process, ids: Sequence[int], name: str = "gpu_map") -> Stage:
    """The object on these GPUs, all or none of them."""

    def acquire(block: Block) -> int:
        try:
            _each(process, kfd.MAP_MEMORY_TO_GPU, block.handle, array.array("I", ids))
        except _Partly as partly:
            first = array.array("I", ids[: min(partly.done, len(ids))])
            if first:
                _undo(block, first)
            raise partly.error from None
        return block.address

    def _undo(block: Block, first: array.array[int]) -> None:
        try:
            _each(process, kfd.UNMAP_MEMORY_FROM_GPU, block.handle, first)
        except _Partly as partly:  # worse than what led here: the object stays mapped, and cannot be freed
            raise partly.error from None

    def release(block: Block) -> None:
        _undo(block, array.array("I", ids))

    return Stage(name, GPU_MAP, acquire, release, "MAP_MEMORY_TO_GPU / UNMAP_MEMORY_FROM_GPU")


def _lifecycles(process: _Process) -> tuple[Lifecycle, ...]:
    va, sizes = va_stage(process.space, hostmem.PAGE, "kfd"), Sizes(hostmem.PAGE)
    cpu, one = gem.map_stage(process.renders[0]), gpu_stage(process, process.ids[:1])
    found = (
        Lifecycle("vram", (va, object_stage(process, _VRAM), cpu, one), sizes),
        Lifecycle("gtt", (va, object_stage(process, _GTT), cpu, one), sizes),
        Lifecycle("host_map", (va, hostmem.stage(), object_stage(process, _USER), one), sizes),
    )
    if len(process.ids) == 1:
        return found
    every = gpu_stage(process, process.ids, "peer_map")
    return (*found, Lifecycle("peer_map", (va, object_stage(process, _GTT), cpu, every), sizes))


def open_session(target: Target, env: Env) -> Session:
    """Open KFD's node and the render nodes among node and others, the first of which is the GPU that holds the memory;
    with none named, the first GPU of the topology. AccelError where that is impossible, for one in a process that had
    a session already."""

    def build(held: ExitStack) -> Session:
        process = _Process(target, env, held)
        more = (device_counter("kfd-available", "bytes", "AMDKFD_IOC_AVAILABLE_MEMORY", process.available),)
        return HeldSession(target, _lifecycles(process), (process.file, *process.renders), held, more=more)

    return opened(target, build)
