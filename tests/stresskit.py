"""A driver for tests of the engine: real memory (memfds) behind handles that a table gives out, lowest first."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from accelctl.abi.lifecycle import CPU_MAP, HANDLE, NOTHING, Block, Counter, Env, Lifecycle, Session, Stage, Target
from accelctl.hal.devfile import File, Syscalls

TARGET = Target("toy:0", "toy", "toy", "/dev/toy")


class Toy:
    """One open toy device: what is alive, a log of what was done, and knobs."""

    def __init__(self, syscalls: Syscalls) -> None:
        self.syscalls = syscalls
        self.objects: dict[int, File] = {}
        self.log: list[str] = []
        self.refuse: dict[str, int] = {}
        """Stage -> errno that its acquire raises."""
        self.keep_every = 0
        """Every so many objects are not given back."""
        self.released = 0
        self.lock = threading.Lock()

    def make(self, block: Block) -> int:
        self._may("object")
        with self.lock:
            block.handle = min(set(range(1, len(self.objects) + 2)) - set(self.objects))
            self.objects[block.handle] = File(self.syscalls.memfd("toy", block.size, 0), "toy", self.syscalls)
        return block.handle

    def destroy(self, block: Block) -> None:
        self.log.append("-object")
        self.released += 1
        if self.keep_every and self.released % self.keep_every == 0:
            return
        with self.lock:
            self.objects.pop(block.handle).close()

    def offset(self, block: Block) -> int:
        self._may("offset")
        return 0

    def map(self, block: Block) -> int:
        self._may("cpu_map")
        block.map = self.objects[block.handle].map(block.size)
        return block.serial

    def unmap(self, block: Block) -> None:
        self.log.append("-cpu_map")
        assert block.map is not None
        self.objects[block.handle].unmap(block.map)
        block.map = None

    def _may(self, stage: str) -> None:
        self.log.append(stage)
        if stage in self.refuse:
            raise OSError(self.refuse[stage], "as ordered")


class ToySession(Session):
    def __init__(self, toy: Toy, lifecycles: tuple[Lifecycle, ...]) -> None:
        super().__init__(TARGET, lifecycles, ())
        self.toy = toy

    def counters(self) -> tuple[Counter, ...]:
        return (
            Counter("toy-handles", "handles", "file", "the toy's table", lambda: len(self.toy.objects), kind=HANDLE),
        )

    def census(self) -> dict[str, int]:
        left = len(self.toy.objects)
        for file in self.toy.objects.values():
            file.close()
        self.toy.objects.clear()
        return {"toy-handles": left}


class ToyMemory:
    def __init__(self, adjust: Callable[[Toy], None] = lambda toy: None) -> None:
        self._adjust = adjust

    def open(self, target: Target, env: Env) -> ToySession:
        toy = Toy(env.syscalls)
        self._adjust(toy)
        stages = (
            Stage("object", HANDLE, toy.make, toy.destroy, "TOY_MAKE / TOY_DESTROY"),
            Stage("offset", NOTHING, toy.offset, None, "TOY_OFFSET"),
            Stage("cpu_map", CPU_MAP, toy.map, toy.unmap, "mmap / munmap"),
        )
        return ToySession(toy, (Lifecycle("plain", stages), Lifecycle("never", stages, unsupported="the toy is small")))


def toy_session(adjust: Callable[[Toy], None] = lambda toy: None) -> ToySession:
    return ToyMemory(adjust).open(TARGET, Env())


ENOSPC = errno.ENOSPC
