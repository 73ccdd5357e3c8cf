"""Intel Gaudi's memory (drivers/accel/habanalabs, Linux 7.3.4), never run on hardware by us.

    device     object -> gpu_map
    host_map   host_pages -> gpu_map
    command    object (HL_CB, a command buffer in host memory) -> cpu_map

One call does everything to device memory, chosen by ``in.op``; handles are the driver's own and the address is the
driver's choice. The CPU sees command buffers only. The node takes one process at a time, and its last close can reset
the device: that is why this chip is opened by name only. FREE of memory that is mapped is refused, so no object may go
before its gpu_map.
"""

from __future__ import annotations

import array
from contextlib import ExitStack

from accelctl.abi import gem, hostmem
from accelctl.abi.devmem import HeldSession, ask, device_counter, number, opened, whole
from accelctl.abi.lifecycle import GPU_MAP, HANDLE, Block, Counter, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.hal.devfile import DevFile, File
from accelctl.hal.uapi import habanalabs as hl


def _pages(block: Block) -> int:
    block.size = whole(block.size, hostmem.PAGE)
    return block.size


def object_stage(file: File) -> Stage:
    """Device memory, in pages of the driver's choice."""

    def acquire(block: Block) -> int:
        block.handle = number(file, hl.MEMORY, "out_handle", in_op=hl.HL_MEM_OP_ALLOC, in_alloc_mem_size=_pages(block))
        return block.handle

    def release(block: Block) -> None:
        ask(file, hl.MEMORY, in_op=hl.HL_MEM_OP_FREE, in_free_handle=block.handle)

    return Stage("object", HANDLE, acquire, release, "HL_MEMORY ALLOC / FREE")


def map_stage(file: File, *, host: bool) -> Stage:
    """Device memory (``block.handle``), or our own pages (``block.extra``), at an address that the driver chooses."""

    def acquire(block: Block) -> int:
        if host:
            where = block.extra.address
            what = {
                "in_map_host_host_virt_addr": where,
                "in_map_host_mem_size": block.size,
                "in_flags": hl.HL_MEM_USERPTR,
            }
        else:
            what = {"in_map_device_handle": block.handle}
        block.address = number(file, hl.MEMORY, "out_device_virt_addr", in_op=hl.HL_MEM_OP_MAP, **what)
        return block.address

    def release(block: Block) -> None:
        ask(file, hl.MEMORY, in_op=hl.HL_MEM_OP_UNMAP, in_unmap_device_virt_addr=block.address)

    return Stage("gpu_map", GPU_MAP, acquire, release, "HL_MEMORY MAP / UNMAP")


def command_stage(file: File) -> Stage:
    """A command buffer: its handle is also where it is mapped."""

    def acquire(block: Block) -> int:
        block.handle = number(file, hl.CB, "out_cb_handle", in_op=hl.HL_CB_OP_CREATE, in_cb_size=_pages(block))
        block.offset = block.handle
        return block.handle

    def release(block: Block) -> None:
        ask(file, hl.CB, in_op=hl.HL_CB_OP_DESTROY, in_cb_handle=block.handle)

    return Stage("object", HANDLE, acquire, release, "HL_CB CREATE / DESTROY")


def usage(file: File, field: str) -> int:
    """Bytes of device memory: free on the device, or allocated by this file. Raises OSError."""
    layout = hl.INFO_DRAM_USAGE
    answer = array.array("B", bytes(layout.size))
    pointer = answer.buffer_info()[0]
    ask(file, hl.INFO, return_pointer=pointer, return_size=layout.size, op=hl.HL_INFO_DRAM_USAGE)
    return int(layout.field(field).get(answer.tobytes()))


class _Memory:
    def open(self, target: Target, env: Env) -> Session:
        """Open the node, which takes one process at a time. AccelError where that is impossible."""

        def build(held: ExitStack) -> Session:
            file: DevFile = gem.open_node(target.node, env)
            held.callback(file.close)
            gem.require_driver(file, "habanalabs")
            sizes = Sizes(hostmem.PAGE)
            commands = Sizes(hostmem.PAGE, hl.HL_MAX_CB_SIZE // hostmem.PAGE * hostmem.PAGE)
            life = (
                Lifecycle("device", (object_stage(file), map_stage(file, host=False)), sizes),
                Lifecycle("host_map", (hostmem.stage(), map_stage(file, host=True)), sizes),
                Lifecycle("command", (command_stage(file), gem.map_stage(file)), commands),
            )
            source = "HL_INFO_DRAM_USAGE"
            own = Counter("dram-context", "bytes", "file", source, lambda: usage(file, "ctx_dram_mem"))
            free = device_counter("dram-free", "bytes", source, lambda: usage(file, "dram_free_mem"))
            return HeldSession(target, life, (file,), held, more=(own, free))

        return opened(target, build)


MEMORY = _Memory()
