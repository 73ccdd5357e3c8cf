"""The Memory contract on PyTorch: tensors of bytes, at addresses that we hand out.

buffer  va -> pages -> cpu_map -> tensor

PyTorch promises no device addresses that arithmetic can be done on. Ours come from Env.space, and a ring finds by them
which tensor an operand lies in. On a CPU that tensor is the mapped pages themselves; elsewhere it is the device's own
memory, which the lifecycle's ``sync`` copies to the pages and back.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right, insort
from contextlib import suppress
from typing import Any

from accelctl.abi import gem
from accelctl.abi.devmem import va_stage
from accelctl.abi.lifecycle import FD, HANDLE, Block, Counter, Env, Lifecycle, Session, Sizes, Stage, Target
from accelctl.backends.torch.ops import platform
from accelctl.backends.torch.ops.line import Line
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import PAGE, File, Syscalls

LIFECYCLE = "buffer"
VA_BASE, VA_BYTES = 1 << 32, 1 << 44


class TorchSession(Session):
    """The tensors that hold its memory, and the line in which its instructions are run."""

    def __init__(self, target: Target, env: Env) -> None:
        self.torch = platform.module()
        self.device = platform.device_of(target.id)
        self.on_host = platform.on_host(self.device)
        try:
            largest = self._probe()
        except RuntimeError as error:
            raise DeviceUnusable(f"{target.id}: {platform.said(error)}") from error
        self.largest = self.total_bytes = largest
        self.line = Line(lambda: platform.finish(self.device))
        self.tensors: dict[int, Any] = {}
        """Address -> tensor of bytes."""
        self._starts: list[int] = []
        self.rings: list[Any] = []
        space = env.space(VA_BASE, VA_BYTES, PAGE)
        stages = (va_stage(space, PAGE, "torch"), _pages(env.syscalls), gem.own_map_stage(), self._tensor())
        sync = None if self.on_host else self._sync
        super().__init__(target, (Lifecycle(LIFECYCLE, stages, Sizes(PAGE, largest), sync),), ())

    def _probe(self) -> int:
        """Bytes that a block may have. RuntimeError for a device without fp64: angles and whole numbers need it."""
        self.torch.ones(1, dtype=self.torch.float64, device=self.device).add(1).item()
        if self.on_host:
            return os.sysconf("SC_PHYS_PAGES") * PAGE
        with suppress(AttributeError, RuntimeError):  # not every device says how much it has
            return int(getattr(self.torch, self.device.type).mem_get_info(self.device)[1]) // PAGE * PAGE
        return 0

    def _tensor(self) -> Stage:
        def acquire(block: Block) -> int:
            try:
                tensor = self._pages_of(block)
                if not self.on_host:
                    tensor = self.torch.empty(block.size, dtype=self.torch.uint8, device=self.device)
            except RuntimeError as error:
                raise OSError(errno.ENOMEM, platform.said(error)) from error
            self.tensors[block.address] = tensor
            insort(self._starts, block.address)
            return int(tensor.data_ptr())

        def release(block: Block) -> None:
            self.line.settle()  # PyTorch does not keep pages that a tensor lies on: nothing may use them any more
            del self.tensors[block.address]
            self._starts.remove(block.address)

        return Stage("tensor", HANDLE, acquire, release)

    def _pages_of(self, block: Block) -> Any:
        return self.torch.frombuffer(block.map, dtype=self.torch.uint8, count=block.size)

    def _sync(self, block: Block, begin: bool) -> None:
        self.line.settle()
        tensor, pages = self.tensors[block.address], self._pages_of(block)
        try:
            if begin:
                pages.copy_(tensor)
            else:
                tensor.copy_(pages)
        except RuntimeError as error:
            raise OSError(errno.EIO, platform.said(error)) from error

    def find(self, address: int, size: int) -> tuple[Any, int] | None:
        """The tensor that holds these bytes, and where in it they start."""
        at = bisect_right(self._starts, address)
        if not at:
            return None
        start = self._starts[at - 1]
        tensor = self.tensors[start]
        return (tensor, address - start) if address + size <= start + tensor.numel() else None

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; -1: not known, as on a host, whose memory is only taken when it is written to."""
        if not self.on_host:
            with suppress(AttributeError, RuntimeError):
                free, total = getattr(self.torch, self.device.type).mem_get_info(self.device)
                return int(free), int(total)
        return -1, self.largest

    def counters(self) -> tuple[Counter, ...]:
        """What is alive in this session, by our own count: PyTorch caches what is given back."""
        return (Counter("tensors", "tensors", "file", "this session", lambda: len(self.tensors), kind=HANDLE),)

    def census(self) -> dict[str, int]:
        """What was still alive."""
        self.line.settle()
        left = len(self.tensors)
        self.tensors.clear()
        self._starts.clear()
        return {"tensors": left}

    def close(self) -> None:
        """Rings, then whatever is in flight, then the thread that ran it."""
        while self.rings:
            self.rings[0].close()
        self.line.close()


def _pages(syscalls: Syscalls) -> Stage:
    def acquire(block: Block) -> int:
        fd = syscalls.memfd("accelctl-torch", block.size, 0)
        block.file = File(fd, "pages of a tensor", syscalls)
        return fd

    return Stage("pages", FD, acquire, gem.close_own_file, "memfd_create / close")


class TorchMemory:
    """The Memory contract."""

    def open(self, target: Target, env: Env) -> Session:
        """NoDeviceError, DeviceUnusable."""
        return TorchSession(target, env)


MEMORY = TorchMemory()
