"""sim's lifecycles, counters and clock.

vram    va -> object -> cpu_map -> gpu_map
export  object -> export -> cpu_map           (of the dma-buf itself)
queue   va -> object -> gpu_map -> queue -> job
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from accelctl.abi import gem
from accelctl.abi.devmem import ask, number, opened, va_stage
from accelctl.abi.lifecycle import (
    CPU_MAP,
    FD,
    GPU_MAP,
    HANDLE,
    NOTHING,
    QUEUE,
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
from accelctl.backends.sim import uapi
from accelctl.backends.sim.driver import SimSyscalls
from accelctl.backends.sim.options import SimOptions, parse
from accelctl.hal.devfile import PAGE, SYSCALLS, DevFile, File, Syscalls

VA_BASE = 1 << 21
TICK_S = 5e-6
"""Seconds of a tick: about what one call costs here, so that simulated times look like those of a machine."""
FOREVER = (1 << 48) - 1
_DEPTH = 4


class Closable(Protocol):
    """What a session closes before its files: a ring."""

    def close(self) -> None:
        """Give it back."""


class SimSession(Session):
    """An open simulated device."""

    def __init__(self, target: Target, file: DevFile, env: Env, options: SimOptions) -> None:
        super().__init__(target, (), (file,))
        self.file, self.options = file, options
        self.total_bytes = options.vram_bytes
        self.rings: list[Closable] = []
        self.vm = number(file, uapi.VM_CREATE, "vm")
        space = env.space(VA_BASE, options.va_bytes, PAGE)
        if "va" in options.leak:
            space = _Forgetful(space, options.leak["va"])
        self._left = 0.0
        self.lifecycles = _lifecycles(self, env, space)

    def counters(self) -> tuple[Counter, ...]:
        """What this file has, exactly; and VRAM in use, with all that others do to it."""
        found = [
            Counter(name, unit, "file", "the simulated driver", partial(self._count, index), kind=kind)
            for index, (name, (unit, kind)) in enumerate(zip(uapi.COUNTERS, _UNITS, strict=False))
        ]
        noisy = Counter(
            "vram_used",
            "bytes",
            "device",
            "the simulated device (noisy)",
            partial(self._count, len(found)),
            exact=False,
        )
        return (noisy,) if self.options.books == "device" else (*found, noisy)

    def _count(self, index: int) -> int:
        return number(self.file, uapi.COUNT, "value", counter=index)

    def census(self) -> dict[str, int]:
        """What the driver still has of this file. With ``books=device`` nothing is told."""
        self._close_rings()
        found = uapi.SWEEP.layout.unpack(ask(self.file, uapi.SWEEP))
        return {} if self.options.books == "device" else dict(zip(uapi.COUNTERS, found.values(), strict=False))

    def idle(self, seconds: float) -> None:
        """Let so much of the device's time pass, at once. What is less than a tick is kept for the next time."""
        ticks = seconds / TICK_S + self._left
        self._left = ticks - int(ticks)
        ask(self.file, uapi.IDLE, ticks=int(ticks))

    def clock(self) -> float:
        """Seconds of device time. Who compares cycling with idling measures both with this: idle time is the device's
        own, and per second of it others do as much as per second of cycling."""
        return number(self.file, uapi.INFO, "ticks") * TICK_S

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of VRAM, what others have counted in."""
        return self.options.vram_bytes - self._count(len(uapi.COUNTERS) - 1), self.options.vram_bytes

    def close(self) -> None:
        """Rings, then the file."""
        try:
            self._close_rings()
        finally:
            super().close()

    def _close_rings(self) -> None:
        while self.rings:
            self.rings.pop().close()


_UNITS = (("handles", HANDLE), ("pages", ""), ("mappings", CPU_MAP), ("dma-bufs", ""), ("queues", ""))
"""Unit of each counter, and the kind of the stages that move it."""


class _Forgetful:
    """An address space of which every so many addresses never come back (an ordered leak)."""

    def __init__(self, inner: AddressSpace, every: int) -> None:
        self._inner, self._every, self._freed = inner, every, 0

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        return self._inner.alloc(size, align, owner)

    def free(self, va: int) -> int:
        self._freed += 1
        return self._inner.free(va) if self._freed % self._every else 0


def _lifecycles(session: SimSession, env: Env, space: AddressSpace) -> tuple[Lifecycle, ...]:
    file = session.file
    sizes = Sizes(PAGE, max(PAGE, session.options.vram_bytes // 4 // PAGE * PAGE))
    va, thing, gpu = va_stage(space, PAGE, "sim"), _object(file), _gpu_map(file, session.vm)
    return (
        Lifecycle("vram", (va, thing, gem.map_stage(file), gpu), sizes),
        Lifecycle("export", (thing, _export(file, env.syscalls), gem.own_map_stage()), sizes),
        Lifecycle("queue", (va, thing, gpu, _queue(file), _job(file)), sizes),
    )


def _object(file: File) -> Stage:
    """Mappings of either side and dma-bufs keep it, so its handle may go first."""

    create_number, destroy_number = uapi.CREATE.number, uapi.DESTROY.number
    codec, pack = uapi.CODECS[create_number], uapi.CODECS[destroy_number].pack  # quicker than by name: this is the loop

    def create(block: Block) -> int:
        argument = bytearray(codec.pack(block.size, 0, 0, 0))
        file.ioctl(create_number, argument)
        block.size, block.offset, block.handle, _ = codec.unpack(argument)
        return block.handle

    def destroy(block: Block) -> None:
        file.ioctl(destroy_number, bytearray(pack(block.handle, 0)))

    return Stage("object", HANDLE, create, destroy, "CREATE / DESTROY", early=True)


def _gpu_map(file: File, vm: int) -> Stage:
    map_number, unmap_number = uapi.MAP.number, uapi.UNMAP.number
    pack = uapi.CODECS[map_number].pack  # UNMAP has the same layout

    def acquire(block: Block) -> int:
        file.ioctl(map_number, bytearray(pack(block.address, block.size, block.handle, vm)))
        return block.address

    def release(block: Block) -> None:
        file.ioctl(unmap_number, bytearray(pack(block.address, block.size, vm, 0)))

    return Stage("gpu_map", GPU_MAP, acquire, release, "MAP / UNMAP")


def _export(file: File, syscalls: Syscalls) -> Stage:
    def acquire(block: Block) -> int:
        fd = number(file, uapi.EXPORT, "fd", handle=block.handle)
        block.file = File(fd, "dma-buf", syscalls)
        return fd

    return Stage("export", FD, acquire, gem.close_own_file, "EXPORT / close")


def _queue(file: File) -> Stage:
    def acquire(block: Block) -> int:
        block.extra = number(file, uapi.QUEUE_CREATE, "queue", depth=_DEPTH)
        return int(block.extra)

    def release(block: Block) -> None:
        ask(file, uapi.QUEUE_DESTROY, queue=block.extra)

    return Stage("queue", QUEUE, acquire, release, "QUEUE_CREATE / QUEUE_DESTROY")


def _job(file: File) -> Stage:
    """One job in flight: who gives the memory back waits for it first."""
    point: Callable[[Block], int] = lambda block: number(file, uapi.SUBMIT, "point", queue=block.extra)  # noqa: E731

    def release(block: Block) -> None:
        ask(file, uapi.WAIT, queue=block.extra, point=1, ticks=FOREVER)

    return Stage("job", NOTHING, point, release, "SUBMIT / WAIT")


class SimMemory:
    """The Memory contract, and the driver that it needs beneath."""

    def syscalls(self, target: Target, env: Env) -> Syscalls:
        """A new simulated chip with its driver, over ``env.syscalls``. Who wraps system calls wraps this, and passes
        what comes out as the environment of :meth:`open`. UsageError for options that make no sense."""
        return SimSyscalls(parse(env.options), env.syscalls)

    def open(self, target: Target, env: Env) -> Session:
        """Open the chip beneath ``env.syscalls``; where those are the plain ones, a chip of its own. UsageError."""
        options = parse(env.options)
        if env.syscalls is SYSCALLS:
            env = Env(SimSyscalls(options), env.space, env.options)
        return opened(
            target,
            lambda held: SimSession(
                target, held.enter_context(DevFile(target.node, syscalls=env.syscalls)), env, options
            ),
        )


MEMORY = SimMemory()
