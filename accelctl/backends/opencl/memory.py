"""The Memory contract on OpenCL: host pages that the device uses, at addresses that we hand out.

buffer  va -> pages -> cpu_map -> object

OpenCL 1.2 has no device addresses. Ours come from Env.space, and a ring finds by them which cl_mem an operand lies in.
Pages are a memfd's: CL_MEM_USE_HOST_PTR makes them the buffer's memory on a CPU, elsewhere the driver copies when they
are mapped (clEnqueueMapBuffer), which is what the lifecycle's ``sync`` does.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from accelctl.abi import gem
from accelctl.abi.devmem import va_stage
from accelctl.abi.lifecycle import FD, HANDLE, Block, Counter, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.backends.opencl.platform import context_of, device_of, module
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import PAGE, File, Syscalls

LIFECYCLE = "buffer"
VA_BASE, VA_BYTES = 1 << 32, 1 << 44


class ClSession(Session):
    """One in-order queue, and the buffers that were made for it."""

    def __init__(self, target: Target, env: Env) -> None:
        cl = module()
        self.device = device_of(target.id)
        try:
            self.context = context_of(target.id)
            self.queue = cl.CommandQueue(self.context)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            self.fault = cl.Buffer(self.context, flags, hostbuf=bytes(4))
            """Where a kernel says that numbers in memory make no sense (kernels.FAULTS)."""
            self.largest = int(self.device.max_mem_alloc_size) // PAGE * PAGE
        except cl.Error as error:
            raise DeviceUnusable(f"{target.id}: {error}") from error
        self.buffers: dict[int, tuple[int, Any]] = {}
        """Address -> bytes, cl_mem."""
        self._starts: list[int] = []
        self.rings: list[Any] = []
        space = env.space(VA_BASE, VA_BYTES, PAGE)
        stages = (va_stage(space, PAGE, "opencl"), _pages(env.syscalls), gem.own_map_stage(), self._object())
        super().__init__(target, (Lifecycle(LIFECYCLE, stages, Sizes(PAGE, self.largest), self._sync),), ())

    def _object(self) -> Stage:
        cl = module()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR

        def acquire(block: Block) -> int:
            try:
                buffer = cl.Buffer(self.context, flags, hostbuf=block.map)
            except cl.Error as error:
                raise OSError(12, f"clCreateBuffer: {error}") from error
            self.buffers[block.address] = (block.size, buffer)
            insort(self._starts, block.address)
            return int(buffer.int_ptr)

        def release(block: Block) -> None:
            _, buffer = self.buffers.pop(block.address)
            self._starts.remove(block.address)
            self.queue.finish()  # host pages must outlive every command that uses them
            buffer.release()

        return Stage("object", HANDLE, acquire, release, "clCreateBuffer / clReleaseMemObject")

    def _sync(self, block: Block, begin: bool) -> None:
        cl = module()
        size, buffer = self.buffers[block.address]
        if begin:
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            block.extra, _ = cl.enqueue_map_buffer(self.queue, buffer, flags, 0, (size,), "u1", is_blocking=True)
        else:
            block.extra.base.release(self.queue)
            block.extra = None
            self.queue.finish()

    def find(self, address: int, size: int) -> tuple[Any, int] | None:
        """The cl_mem that holds these bytes, and where in it they start."""
        at = bisect_right(self._starts, address)
        if not at:
            return None
        start = self._starts[at - 1]
        length, buffer = self.buffers[start]
        return (buffer, address - start) if address + size <= start + length else None

    def counters(self) -> tuple[Counter, ...]:
        """What is alive in this context, by our own count: OpenCL has no call that says it."""
        return (Counter("cl-buffers", "buffers", "file", "this session", lambda: len(self.buffers), kind=HANDLE),)

    def census(self) -> dict[str, int]:
        """What was still alive."""
        left = len(self.buffers)
        for start in tuple(self.buffers):
            self.buffers.pop(start)[1].release()
        self._starts.clear()
        return {"cl-buffers": left}

    def close(self) -> None:
        """Rings, then whatever is in flight; the queue goes with its last reference."""
        while self.rings:
            self.rings[0].close()
        try:
            self.queue.finish()
        except module().Error as error:
            raise OSError(5, f"clFinish: {error}") from error


def _pages(syscalls: Syscalls) -> Stage:
    def acquire(block: Block) -> int:
        fd = syscalls.memfd("accelctl-opencl", block.size, 0)
        block.file = File(fd, "pages of an OpenCL buffer", syscalls)
        return fd

    return Stage("pages", FD, acquire, gem.close_own_file, "memfd_create / close")


class ClMemory:
    """The Memory contract."""

    def open(self, target: Target, env: Env) -> Session:
        """A context of the device. NoDeviceError, DeviceUnusable."""
        return ClSession(target, env)


MEMORY = ClMemory()
