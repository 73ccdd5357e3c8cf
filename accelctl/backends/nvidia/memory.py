"""NVIDIA's own driver by its resource manager and UVM, never run on hardware by us; nouveau is a row of the GEM table.

    vidmem, sysmem   va -> rm_object -> cpu_map -> uvm_range -> gpu_map
    host_map         va -> host_pages -> rm_object (our pages) -> uvm_range -> gpu_map

The session holds a client, device, subdevice and address space of RM, and that space registered with UVM. One file per
CPU mapping: RM_MAP_MEMORY leaves what is to be mapped in a file, and mmap takes it from there, exact size, offset 0.
UNMAP wants the address that MAP answered, not the one in this process.

Addresses are a window below 1 TiB, which every GPU that UVM knows has. From 2 MiB on a block has pages of 2 MiB, and
its size and address with it: UVM refuses an address that is not aligned to the page size of the memory.
"""

from __future__ import annotations

import array
import re
from contextlib import ExitStack
from typing import Any

from accelctl.abi import gemrows, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, opened, whole
from accelctl.abi.lifecycle import (
    CPU_MAP,
    GPU_MAP,
    HANDLE,
    VA,
    AddressSpace,
    Block,
    Counter,
    DriverStatus,
    Env,
    Lifecycle,
    Session,
    Sizes,
    Stage,
    Target,
)
from accelctl.backends.nvidia import uvm
from accelctl.backends.nvidia.rm import Rm, gpu_id
from accelctl.errors import UsageError
from accelctl.hal.devfile import DevFile
from accelctl.hal.uapi import nvidia

_NODE = re.compile(r"nvidia[0-9]+")
_BASE, _SIZE = 0x20_0000_0000, 1 << 39
_HUGE = 2 << 20
_VA_BASE, _VA_BYTES = 0x1000, 0x1_FFFF_FFFB_0000
"""What RM's address space covers: nearly all of 49 bits; tinygrad runs with the same."""
_VASPACE_FLAGS = (
    nvidia.NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED | nvidia.NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING
)  # UVM takes over its page tables
_ALLOC_FLAGS = (
    nvidia.NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED
    | nvidia.NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED
    | nvidia.NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE
    | nvidia.NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT
)
# Lowest bits of fields: NVOS32_ATTR_* 24:23, 26:25, 28:27; NVOS32_ATTR2_* 1:0, 3:2, 21:20; NVOS02_FLAGS_* 7:4, 15:12,
# 31:30.
_PAGE_SIZE, _LOCATION, _PHYSICALITY = 23, 25, 27
_CACHEABLE, _HUGE_SIZE = 2, 20
_USER_FLAGS = (
    nvidia.NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS << 4
    | nvidia.NVOS02_FLAGS_COHERENCY_CACHED << 12
    | nvidia.NVOS02_FLAGS_MAPPING_NO_MAP << 30
)
_FB = (
    ("heap-free", nvidia.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE),
    ("bar1-available", nvidia.NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE),
)


class _Gpu:
    """One open GPU: its nodes, its objects in RM, and its address space in UVM."""

    def __init__(self, target: Target, env: Env, held: ExitStack) -> None:
        self._syscalls, self._node = env.syscalls, _own_node(target)
        self._control = _beside(target, self._node, "nvidiactl")
        control = self._open(self._control, held)
        self.file = self._open(self._node, held)
        self.rm = Rm(control, held)
        self.calls = self.rm.calls
        ask(self.file, self.calls.register_fd, ctl_fd=control.fd)
        self._objects(gpu_id(control, self.file.number[1]), held)
        self.uuid = self._uuid()
        memory = _beside(target, self._node, "nvidia-uvm")
        self.uvm = self._open(memory, held)
        self._register(memory, held)
        self.space: AddressSpace = env.space(_BASE, _SIZE, hostmem.PAGE)

    def _open(self, node: str, held: ExitStack) -> DevFile:
        file = DevFile(node, syscalls=self._syscalls)
        held.callback(file.close)
        return file

    def _objects(self, gpu: int, held: ExitStack) -> None:
        rm = self.rm
        command, layout = nvidia.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, nvidia.GPU_GET_ID_INFO_V2
        told = rm.control(rm.client, command, layout, gpuId=gpu)
        device = nvidia.NV0080_ALLOC_PARAMETERS.pack(
            deviceId=told["deviceInstance"],
            hClientShare=rm.client,
            vaMode=nvidia.NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES,
        )
        self.device = self._held(rm.client, nvidia.NV01_DEVICE_0, device, held)
        sub = nvidia.NV2080_ALLOC_PARAMETERS.pack(subDeviceId=told["subDeviceInstance"])
        self.subdevice = self._held(self.device, nvidia.NV20_SUBDEVICE_0, sub, held)
        space = self.calls.struct("NV_VASPACE_ALLOCATION_PARAMETERS")
        space_params = space.pack(vaBase=_VA_BASE, vaSize=_VA_BYTES, flags=_VASPACE_FLAGS)
        self.vaspace = self._held(self.device, nvidia.FERMI_VASPACE_A, space_params, held)

    def _held(self, parent: int, kind: int, params: bytearray, held: ExitStack) -> int:
        handle = self.rm.alloc(parent, kind, params)
        held.callback(self.rm.free, parent, handle)
        return handle

    def _uuid(self) -> bytes:
        told = self.rm.control(
            self.subdevice,
            nvidia.NV2080_CTRL_CMD_GPU_GET_GID_INFO,
            nvidia.GPU_GET_GID_INFO,
            flags=nvidia.NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY,
            length=16,
        )
        return bytes(told["data"][:16])

    def _register(self, node: str, held: ExitStack) -> None:
        uvm.call(self.uvm, self.calls.uvm_initialize)
        if self.calls.uvm_mm_initialize is not None:
            second = self._open(node, held)
            try:
                uvm.call(second, self.calls.uvm_mm_initialize, uvmFd=self.uvm.fd)
            except DriverStatus as error:
                # It only ends the address space with the process's memory. Kernels where that needs no file say so.
                if error.status not in (nvidia.NV_WARN_NOTHING_TO_DO, nvidia.NV_ERR_NOT_SUPPORTED):
                    raise
        uvm.call(self.uvm, self.calls.uvm_register_gpu, gpu_uuid_uuid=self.uuid, rmCtrlFd=-1)
        held.callback(uvm.call, self.uvm, self.calls.uvm_unregister_gpu, gpu_uuid_uuid=self.uuid)
        space = {"rmCtrlFd": self.rm.file.fd, "hClient": self.rm.client, "hVaSpace": self.vaspace}
        uvm.call(self.uvm, self.calls.uvm_register_gpu_vaspace, gpuUuid_uuid=self.uuid, **space)
        held.callback(uvm.call, self.uvm, self.calls.uvm_unregister_gpu_vaspace, gpuUuid_uuid=self.uuid)

    def mapping_file(self, system: bool) -> DevFile:
        """A fresh file for one CPU mapping: of the GPU for its own memory, of the control node for system memory.
        Raises OSError, AccelError."""
        if system:
            return DevFile(self._control, syscalls=self._syscalls)
        file = DevFile(self._node, syscalls=self._syscalls)
        try:
            ask(file, self.calls.register_fd, ctl_fd=self.rm.file.fd)
        except BaseException:
            file.close()
            raise
        return file

    def memory_params(self, size: int, system: bool) -> bytearray:
        """What a memory object of so many bytes is made from."""
        huge = not system and size >= _HUGE
        attr = nvidia.NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS << _PHYSICALITY
        attr2 = nvidia.NVOS32_ATTR2_ZBC_PREFER_NO_ZBC
        if system:
            attr |= nvidia.NVOS32_ATTR_LOCATION_PCI << _LOCATION
            attr2 |= nvidia.NVOS32_ATTR2_GPU_CACHEABLE_NO << _CACHEABLE
        else:
            pages = nvidia.NVOS32_ATTR_PAGE_SIZE_HUGE if huge else nvidia.NVOS32_ATTR_PAGE_SIZE_4KB
            attr |= pages << _PAGE_SIZE
            attr2 |= nvidia.NVOS32_ATTR2_GPU_CACHEABLE_YES << _CACHEABLE
            attr2 |= nvidia.NVOS32_ATTR2_PAGE_SIZE_HUGE_2MB << _HUGE_SIZE if huge else 0
        return self.calls.struct("NV_MEMORY_ALLOCATION_PARAMS").pack(
            owner=self.rm.client,
            type=nvidia.NVOS32_TYPE_NOTIFIER if system else nvidia.NVOS32_TYPE_IMAGE,
            flags=_ALLOC_FLAGS | (0 if system else nvidia.NVOS32_ALLOC_FLAGS_PERSISTENT_VIDMEM),
            attr=attr,
            attr2=attr2,
            size=size,
            limit=size - 1,
            alignment=_HUGE if huge else hostmem.PAGE,
        )

    def fb_info(self, index: int) -> int:
        """A number about video memory, in bytes. Raises OSError, DriverStatus."""
        entry = array.array("B", nvidia.FB_INFO.pack(index=index))
        command, layout = nvidia.NV2080_CTRL_CMD_FB_GET_INFO, nvidia.FB_GET_INFO
        self.rm.control(self.subdevice, command, layout, fbInfoListSize=1, fbInfoList=entry.buffer_info()[0])
        return int(nvidia.FB_INFO.field("data").get(entry.tobytes())) << 10


def _own_node(target: Target) -> str:
    """The GPU's node of NVIDIA's own. With nvidia-drm a GPU has DRM nodes as well, which know nothing of all this.
    Raises UsageError where the target has none."""
    for node in (target.node, *target.others):
        if _NODE.fullmatch(node.rpartition("/")[2]):
            return node
    raise UsageError(f"{target.node}: NVIDIA's driver is called through nvidiaN, and this target has no such node")


def _beside(target: Target, node: str, name: str) -> str:
    """A node of the driver as a whole: named with the target, or in the folder of the GPU's."""
    named = [other for other in target.others if other.rpartition("/")[2] == name]
    return named[0] if named else f"{node.rpartition('/')[0]}/{name}"


def va_stage(gpu: _Gpu) -> Stage:
    """A device address; sizes and addresses of whole pages, huge ones where the block is large."""

    def acquire(block: Block) -> int:
        page = _HUGE if block.size >= _HUGE else hostmem.PAGE
        block.size = whole(block.size, page)
        block.address = gpu.space.alloc(block.size, page, "nvidia")
        return block.address

    def release(block: Block) -> None:
        gpu.space.free(block.address)

    return Stage("va", VA, acquire, release)


def object_stage(gpu: _Gpu, system: bool) -> Stage:
    """A memory object of RM."""
    kind = nvidia.NV1_MEMORY_SYSTEM if system else nvidia.NV1_MEMORY_USER

    def acquire(block: Block) -> int:
        block.handle = gpu.rm.alloc(gpu.device, kind, gpu.memory_params(block.size, system))
        return block.handle

    return Stage("rm_object", HANDLE, acquire, _free(gpu), "RM_ALLOC / RM_FREE")


def user_stage(gpu: _Gpu) -> Stage:
    """Our own pages (``block.extra``), pinned, as a memory object. This call goes to the GPU's node, and wants a handle
    of our choice."""

    def acquire(block: Block) -> int:
        handle = gpu.rm.handle()
        values = {
            "params_hRoot": gpu.rm.client,
            "params_hObjectParent": gpu.device,
            "params_hObjectNew": handle,
            "params_hClass": nvidia.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
            "params_flags": _USER_FLAGS,
            "params_pMemory": block.extra.address,
            "params_limit": block.size - 1,
        }
        gpu.rm.call(gpu.file, gpu.calls.rm_alloc_memory, "params_status", fd=-1, **values)
        block.handle = handle
        return handle

    return Stage("rm_object", HANDLE, acquire, _free(gpu), "RM_ALLOC_MEMORY / RM_FREE")


def _free(gpu: _Gpu) -> Any:
    return lambda block: gpu.rm.free(gpu.device, block.handle)


def cpu_stage(gpu: _Gpu, system: bool) -> Stage:
    """A file of its own (``block.file``), RM's mapping in it (its address in ``block.extra``), and ours."""
    rm, calls = gpu.rm, gpu.calls

    def unmap(handle: int, linear: int) -> None:
        values = {"hClient": rm.client, "hDevice": gpu.device, "hMemory": handle, "pLinearAddress": linear}
        rm.call(rm.file, calls.rm_unmap_memory, "status", **values)

    def acquire(block: Block) -> int:
        undo = ExitStack()
        with undo:
            file = gpu.mapping_file(system)
            undo.callback(file.close)
            values = {"params_hClient": rm.client, "params_hDevice": gpu.device, "params_hMemory": block.handle}
            answer = rm.call(
                rm.file, calls.rm_map_memory, "params_status", params_length=block.size, fd=file.fd, **values
            )
            linear = int(calls.rm_map_memory.layout.field("params_pLinearAddress").get(answer))
            undo.callback(unmap, block.handle, linear)
            block.map = file.map(block.size, 0)
            block.file, block.extra = file, linear
            undo.pop_all()
        return block.serial

    def release(block: Block) -> None:
        mapping, file, linear = block.map, block.file, block.extra
        block.map = block.file = block.extra = None
        assert mapping is not None
        assert file is not None
        with ExitStack() as rest:  # all three go, whatever one of them says
            rest.callback(file.close)
            rest.callback(unmap, block.handle, linear)
            file.unmap(mapping)

    return Stage("cpu_map", CPU_MAP, acquire, release, "open, RM_MAP_MEMORY, mmap / munmap, RM_UNMAP_MEMORY, close")


def range_stage(gpu: _Gpu) -> Stage:
    """A range of UVM's for memory that it does not manage."""
    free = gpu.calls.uvm_free

    def acquire(block: Block) -> int:
        uvm.call(gpu.uvm, gpu.calls.uvm_create_external_range, base=block.address, length=block.size)
        return block.address

    def release(block: Block) -> None:
        length = {"length": block.size} if "length" in free.layout.fields else {}
        uvm.call(gpu.uvm, free, base=block.address, **length)

    return Stage("uvm_range", VA, acquire, release, "UVM_CREATE_EXTERNAL_RANGE / UVM_FREE")


def gpu_stage(gpu: _Gpu) -> Stage:
    """The object in its range."""
    attributes = nvidia.GPU_MAPPING_ATTRIBUTES.pack(
        gpuUuid_uuid=gpu.uuid, gpuMappingType=nvidia.UvmGpuMappingTypeReadWriteAtomic
    )

    def acquire(block: Block) -> int:
        uvm.call(
            gpu.uvm,
            gpu.calls.uvm_map_external_allocation,
            base=block.address,
            length=block.size,
            perGpuAttributes=bytes(attributes),
            gpuAttributesCount=1,
            rmCtrlFd=gpu.rm.file.fd,
            hClient=gpu.rm.client,
            hMemory=block.handle,
        )
        return block.address

    def release(block: Block) -> None:
        where = {"base": block.address, "length": block.size}
        uvm.call(gpu.uvm, gpu.calls.uvm_unmap_external, gpuUuid_uuid=gpu.uuid, **where)

    return Stage("gpu_map", GPU_MAP, acquire, release, "UVM_MAP_EXTERNAL_ALLOCATION / UVM_UNMAP_EXTERNAL")


def _lifecycles(gpu: _Gpu) -> tuple[Lifecycle, ...]:
    va, end, sizes = va_stage(gpu), (range_stage(gpu), gpu_stage(gpu)), Sizes(hostmem.PAGE)
    return (
        Lifecycle("vidmem", (va, object_stage(gpu, False), cpu_stage(gpu, False), *end), sizes),
        Lifecycle("sysmem", (va, object_stage(gpu, True), cpu_stage(gpu, True), *end), sizes),
        Lifecycle("host_map", (va, hostmem.stage(), user_stage(gpu), *end), sizes),
    )


def _counter(gpu: _Gpu, name: str, index: int) -> Counter:
    return device_counter(name, "bytes", "NV2080_CTRL_CMD_FB_GET_INFO", lambda: gpu.fb_info(index))


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the GPU; the control and UVM nodes are among the others, or beside it. AccelError where that is
        impossible, AbiError for a release before 525 or after 595; nothing stays open then."""
        if target.driver == "nouveau":
            return gemrows.open_session(target, env, ("nouveau",))

        def build(held: ExitStack) -> Session:
            gpu = _Gpu(target, env, held)
            more = tuple(_counter(gpu, name, index) for name, index in _FB)
            return HeldSession(target, _lifecycles(gpu), (gpu.rm.file, gpu.file, gpu.uvm), held, more=more)

        return opened(target, build)


MEMORY = _Memory()
