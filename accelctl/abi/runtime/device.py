"""One device of the runtime: an open session, what is allocated in it, and its streams."""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Callable
from contextlib import suppress

from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Block, Env, Lifecycle, Session, Target
from accelctl.abi.ops import Ops
from accelctl.abi.runtime.failure import fail, of_os, of_stage
from accelctl.abi.runtime.pointer import ALIGNMENT, Allocation, Pointer
from accelctl.abi.runtime.stream import Stream
from accelctl.errors import AccelError

BYTES = 256
"""Entries of the table of bytes: entry b holds b four times, so that whole words can be filled from it."""


def contracts(chip: Chip) -> Ops:
    """The chip's Ops. NotSupported where it has no memory or no kernels."""
    if chip.memory is None or chip.ops is None:
        raise fail("not_supported", f"chip {chip.manifest.name} does not offer memory and ops together")
    return chip.ops


class Device:
    """The runtime locks."""

    def __init__(self, index: int, generation: int, chip: Chip, target: Target, env: Env, depth: int) -> None:
        self.index, self.generation, self.depth = index, generation, depth
        self.ops = contracts(chip)
        assert chip.memory is not None
        self.session: Session = chip.memory.open(target, env)
        self.life = self._lifecycle()
        self._info: Callable[[], tuple[int, int]] | None = getattr(self.session, "memory_info", None)
        self.clock: Callable[[], float] = getattr(self.session, "clock", time.monotonic)
        """Seconds. A simulated chip has a time of its own."""
        self.live: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self.streams: list[Stream] = []
        self.pool: list[tuple[Allocation, Stream, int]] = []
        """What free_async gave back: with its stream, and the number there behind which it is nobody's."""
        self.held = 0
        """Bytes of all blocks, in whole granules."""
        self._own: Stream | None = None
        self._table: Block | None = None

    def _lifecycle(self) -> Lifecycle:
        name = self.ops.lifecycle()
        for life in self.session.lifecycles:
            if life.name == name and not life.unsupported:
                return life
        raise fail("not_supported", f"{self.session.target.id}: no memory that kernels use")

    @property
    def coherent(self) -> bool:
        """Host and device see the same bytes, and neither needs a call for it."""
        return self.life.sync is None

    @property
    def tells(self) -> str:
        """What the driver says of its memory: how much is free (and of how much), the total alone, or nothing."""
        if self._info is None:
            return "nothing"
        return "total" if self._info()[0] < 0 else "free"

    @property
    def granularity(self) -> int:
        """Bytes in which memory is taken."""
        return self.life.sizes.granule

    # -- blocks --

    def acquire(self, size: int) -> Block:
        """A block through all stages; nothing is held where one fails."""
        block = Block(size)
        for stage in self.life.stages:
            try:
                stage.acquire(block)
            except (OSError, AccelError) as error:
                self._back(block)
                raise of_stage(error, f"{size} bytes") from error
            block.held.append(stage)
        self.held += block.size
        return block

    def _back(self, block: Block) -> None:
        while block.held:
            stage = block.held.pop()
            if stage.release is not None:
                stage.release(block)

    def release(self, block: Block) -> None:
        """Give a block back."""
        self.held -= block.size
        try:
            self._back(block)
        except OSError as error:
            raise of_os(error, "release") from error

    def allocate(self, size: int, space: str) -> Pointer:
        """Memory of that many bytes; out_of_memory."""
        if self._info is not None:  # else the driver says how much is too much
            free, total = self.memory_info()
            if size > total or size > free:
                raise fail("out_of_memory", f"{size} bytes asked for, {free} of {total} are free")
        block = self.acquire(size)
        pointer = Pointer(block.address, self.index, self.generation, space)
        if block.address % ALIGNMENT:
            self.release(block)
            raise fail("internal", f"a block at {block.address:#x} is not aligned to {ALIGNMENT} bytes")
        self.live[block.address] = Allocation(pointer, size, block)
        insort(self._starts, block.address)
        return pointer

    def forget(self, allocation: Allocation) -> None:
        """It is not alive any more; its block stays."""
        del self.live[allocation.pointer.address]
        self._starts.remove(allocation.pointer.address)

    def revive(self, allocation: Allocation) -> None:
        """The opposite."""
        self.live[allocation.pointer.address] = allocation
        insort(self._starts, allocation.pointer.address)

    def find(self, pointer: Pointer, size: int) -> Allocation:
        """What holds these bytes; invalid_argument."""
        at = bisect_right(self._starts, pointer.address)
        found = self.live[self._starts[at - 1]] if at else None
        if found is None or pointer.generation != self.generation or pointer.address + size > found.end:
            raise fail("invalid_argument", f"{size} bytes at {pointer.address:#x} are not allocated")
        return found

    def base(self, pointer: Pointer, spaces: tuple[str, ...]) -> Allocation:
        """The live allocation that starts there; invalid_argument for anything else."""
        found = self.live.get(pointer.address)
        if found is None or pointer.generation != self.generation or found.pointer.space not in spaces:
            raise fail("invalid_argument", f"{pointer.address:#x} is no live pointer of {' or '.join(spaces)} memory")
        return found

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; where the driver tells only the total, free is what this runtime does not hold."""
        if self._info is None:
            raise fail("not_supported", f"{self.session.target.id} does not say how much memory it has")
        free, total = self._info()
        return (max(0, total - self.held) if free < 0 else free), total

    # -- the CPU's side --

    def read(self, pointer: Pointer, size: int) -> bytes:
        """Bytes, now."""
        found = self.find(pointer, size)
        at = pointer.address - found.pointer.address
        assert found.block.map is not None
        self._sync(found.block, True)
        try:
            return bytes(found.block.map[at : at + size])
        finally:
            self._sync(found.block, False)

    def write(self, pointer: Pointer, data: bytes | bytearray | memoryview) -> None:
        """Bytes, now."""
        found = self.find(pointer, len(data))
        self.write_block(found.block, pointer.address - found.pointer.address, data)

    def write_block(self, block: Block, at: int, data: bytes | bytearray | memoryview) -> None:
        """Bytes into a block."""
        assert block.map is not None
        self._sync(block, True)
        try:
            block.map[at : at + len(data)] = bytes(data)
        finally:
            self._sync(block, False)

    def read_block(self, block: Block, size: int) -> bytes:
        """The first bytes of a block."""
        assert block.map is not None
        self._sync(block, True)
        try:
            return bytes(block.map[:size])
        finally:
            self._sync(block, False)

    def _sync(self, block: Block, begin: bool) -> None:
        if self.life.sync is not None:
            self.life.sync(block, begin)

    # -- streams --

    def stream(self) -> Stream:
        """A new one; out_of_resources."""
        made = Stream(self.index, self.generation, self.ops.open(self.session, self.depth), self.clock)
        self.streams.append(made)
        return made

    @property
    def own(self) -> Stream:
        """The one that synchronous copies between two places of this device go through."""
        if self._own is None:
            self._own = self.stream()
        return self._own

    def byte_table(self) -> int:
        """Address of the table of bytes."""
        if self._table is None:
            self._table = self.acquire(4 * BYTES)
            self.write_block(self._table, 0, b"".join(bytes([one]) * 4 for one in range(BYTES)))
        return self._table.address

    def trim(self, keep: int) -> None:
        """Give back what lies in the pool and is nobody's, until so many are left."""
        for entry in list(self.pool):
            if len(self.pool) <= keep:
                return
            allocation, stream, number = entry
            if not stream.alive or stream.look() >= number:
                self.pool.remove(entry)
                self.release(allocation.block)

    def close(self) -> None:
        """Everything: streams, memory, session. What a dead driver refuses then is not of interest."""
        for stream in self.streams:
            with suppress(AccelError, OSError):
                stream.close()
        blocks = [one.block for one in (*self.live.values(), *(entry[0] for entry in self.pool))]
        self.live.clear()
        self._starts.clear()
        self.pool.clear()
        for block in (*blocks, *([self._table] if self._table else [])):
            with suppress(AccelError, OSError):
                self._back(block)
        with suppress(AccelError, OSError):
            self.session.close()
