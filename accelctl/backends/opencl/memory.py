"""The Memory contract on OpenCL: host pages that the device uses, at addresses that we hand out.

buffer  va -> pages -> cpu_map -> object

OpenCL 1.2 has no device addresses. Ours come from Env.space, and a ring finds by them which cl_mem an operand lies in.
Pages are a memfd's: CL_MEM_USE_HOST_PTR makes them the buffer's memory on a CPU, elsewhere the driver copies when they
are mapped (clEnqueueMapBuffer), which is what the lifecycle's ``sync`` does.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EIO
from threading import Lock
from typing import Any
from weakref import WeakSet

from accelctl.abi import codes, gem
from accelctl.abi.devmem import va_stage
from accelctl.abi.lifecycle import FD, HANDLE, Block, Counter, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.backends.opencl.platform import context_of, device_of, module
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import PAGE, File, Syscalls

LIFECYCLE = "buffer"
VA_BASE, VA_BYTES = 1 << 32, 1 << 44


@contextmanager
def _driver(call: str) -> Iterator[None]:
    """What the OpenCL driver refuses is an OSError, as from every other driver."""
    try:
        yield
    except module().Error as error:
        code = getattr(error, "code", None)  # of pyopencl's own checks: none
        raise OSError(codes.errno_of("opencl", code) if isinstance(code, int) else EIO, f"{call}: {error}") from error


class Pages:
    """One buffer, mapped while at least one reader or writer is at it: transfers of several threads may overlap, and
    OpenCL's map hands out one pointer for all of them."""

    def __init__(self, size: int, buffer: Any) -> None:
        self.size, self.buffer = size, buffer
        self._lock = Lock()
        self._users = 0
        self._view: Any = None

    def begin(self, queue: Any) -> None:
        """One more user."""
        cl = module()
        flags = cl.map_flags.READ | cl.map_flags.WRITE
        with self._lock, _driver("clEnqueueMapBuffer"):
            if not self._users:
                self._view, _ = cl.enqueue_map_buffer(
                    queue, self.buffer, flags, 0, (self.size,), "u1", is_blocking=True
                )
            self._users += 1

    def end(self, queue: Any) -> None:
        """One less. The device has its memory back before whatever is enqueued next."""
        with self._lock, _driver("clEnqueueUnmapMemObject"):
            self._users -= 1
            if not self._users:
                self._view.base.release(queue)
                self._view = None
                queue.flush()


class ClSession(Session):
    """One in-order queue, and the buffers that were made for it."""

    def __init__(self, target: Target, env: Env) -> None:
        cl = module()
        self.device = device_of(target.id)
        try:
            self.context = context_of(target.id)
            self.queue = cl.CommandQueue(self.context)
            self.blank = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, PAGE)
            """For arguments that nothing is read from or written to."""
            self.total_bytes = int(self.device.global_mem_size)
            self.largest = int(self.device.max_mem_alloc_size) // PAGE * PAGE
        except cl.Error as error:
            raise DeviceUnusable(f"{target.id}: {error}") from error
        self.buffers: dict[int, Pages] = {}
        """By address."""
        self._starts: list[int] = []
        self.rings: list[Any] = []
        self.lists: WeakSet[Any] = WeakSet()
        """Recorded lists (opencl.schedule), which must let go of a buffer before its pages can go."""
        space = env.space(VA_BASE, VA_BYTES, PAGE)
        stages = (va_stage(space, PAGE, "opencl"), _pages(env.syscalls), gem.own_map_stage(), self._object())
        super().__init__(target, (Lifecycle(LIFECYCLE, stages, Sizes(PAGE, self.largest), self._sync),), ())

    def _object(self) -> Stage:
        cl = module()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR

        def acquire(block: Block) -> int:
            with _driver("clCreateBuffer"):
                buffer = cl.Buffer(self.context, flags, hostbuf=block.map)
            self.buffers[block.address] = Pages(block.size, buffer)
            insort(self._starts, block.address)
            return int(buffer.int_ptr)

        def release(block: Block) -> None:
            pages = self.buffers.pop(block.address)
            self._starts.remove(block.address)
            for listed in tuple(self.lists):
                listed.forget(pages.buffer)
            with _driver("clReleaseMemObject"):
                try:
                    self.queue.finish()  # host pages must outlive every command that uses them
                finally:
                    pages.buffer.release()

        return Stage("object", HANDLE, acquire, release, "clCreateBuffer / clReleaseMemObject")

    def _sync(self, block: Block, begin: bool) -> None:
        pages = self.buffers[block.address]
        (pages.begin if begin else pages.end)(self.queue)

    def find(self, address: int, size: int) -> tuple[Any, int] | None:
        """The cl_mem that holds these bytes, and where in it they start."""
        at = bisect_right(self._starts, address)
        if not at:
            return None
        start = self._starts[at - 1]
        pages = self.buffers[start]
        return (pages.buffer, address - start) if address + size <= start + pages.size else None

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; -1: OpenCL has no question for what is free."""
        return -1, self.total_bytes

    def counters(self) -> tuple[Counter, ...]:
        """What is alive in this context, by our own count: OpenCL has no call that says it."""
        return (Counter("cl-buffers", "buffers", "file", "this session", lambda: len(self.buffers), kind=HANDLE),)

    def census(self) -> dict[str, int]:
        """What was still alive."""
        left = len(self.buffers)
        for start in tuple(self.buffers):
            with suppress(module().Error):  # what is counted is what was left
                self.buffers.pop(start).buffer.release()
        self._starts.clear()
        return {"cl-buffers": left}

    def close(self) -> None:
        """Rings, then whatever is in flight; the queue goes with its last reference."""
        while self.rings:
            self.rings[0].close()
        with _driver("clFinish"):
            self.queue.finish()


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
