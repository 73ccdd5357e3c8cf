"""A session's device memory: allocations over a pool, found by number or by address, and never outside of them.

None of this locks: a session's lock is held by whoever calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import NamedTuple

from accelctl.abi.lifecycle import Block
from accelctl.memory import in_bytes
from accelctl.memory.pool import Pool, PoolBlock, PoolStats
from accelctl.umd import wire
from accelctl.umd.blocks import Source
from accelctl.umd.refusal import Refusal

_SERIAL = (1 << 48) - 1
CLIENT = "client"
"""For what AllocTensor was asked for, where allocations are counted by op."""


class Allocation:
    """Memory with a number. ``end`` is where the bytes that were asked for end, not the block."""

    __slots__ = ("alive", "block", "end", "fence", "number", "op", "pins", "start", "wire")

    def __init__(self, number: int, block: PoolBlock[Block], size: int, op: str) -> None:
        self.number, self.block, self.op = number, block, op
        self.wire = wire.number(1, number)
        """The number as a TensorDesc's tensor_id."""
        self.start = block.handle.address
        self.end = self.start + size
        self.alive = True
        self.fence = 0
        """The queue uses it until this point is passed."""
        self.pins = 0
        """Transfers that use its bytes now."""

    @property
    def size(self) -> int:
        """Bytes asked for."""
        return self.end - self.start


class Place(NamedTuple):
    """Where an operand lies; ``allocation`` is None for one without any bytes."""

    allocation: Allocation | None
    address: int


class SessionMemory:
    """Allocations of one session."""

    def __init__(self, chip: str, source: Source, tag: int) -> None:
        self._source = source
        self.pool: Pool[Block] = Pool(
            chip, source.acquire, source.release, granule=source.lifecycle.sizes.granule or 4096
        )
        self._tag = (tag & 0xFFFF or 1) << 48
        """In every number, so that one of another session is noticed."""
        self._serial = 0
        self._by_number: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._by_address: list[Allocation] = []
        self._limbo: list[Allocation] = []
        self.allocations: Counter[str] = Counter()
        """Op, or CLIENT -> how often memory was allocated for it."""
        self.frees: Counter[str] = Counter()

    @property
    def waiting(self) -> bool:
        """Something that was freed waits for the queue."""
        return bool(self._limbo)

    def __len__(self) -> int:
        return len(self._by_number)

    def allocate(self, size: int, op: str = CLIENT) -> Allocation:
        """Memory for ``size`` bytes (0 is one that no byte of can be used). Refusal."""
        block = self.pool.acquire(max(1, size))
        self._serial += 1
        made = Allocation(self._tag | self._serial, block, size, op)
        self._by_number[made.number] = made
        at = bisect_right(self._starts, made.start)
        self._starts.insert(at, made.start)
        self._by_address.insert(at, made)
        self.allocations[op] += 1
        return made

    def get(self, number: int, field: str = "tensor_id") -> Allocation:
        """The allocation of that number. Refusal saying why there is none."""
        found = self._by_number.get(number)
        if found is None:
            raise Refusal(field, self._why_not(number), "invalid_handle")
        return found

    def _why_not(self, number: int) -> str:
        if number & ~_SERIAL != self._tag:
            return "not a tensor of this session"
        if 0 < number & _SERIAL <= self._serial:
            return "this tensor was freed"
        return "this session never had such a tensor"

    def place(self, number: int, address: int, size: int, align: int, field: str) -> Place:
        """Where ``size`` bytes of an operand lie: all in one allocation, or nowhere. Refusal."""
        if number:
            found = self.get(number, f"{field}.tensor_id")
            address = address or found.start
        elif address:
            at = bisect_right(self._starts, address)
            if not at:
                raise _outside(field, address, size)
            found = self._by_address[at - 1]
        elif size:
            raise Refusal(field, "neither tensor_id nor device_addr says where it is")
        else:
            return Place(None, 0)
        if not (found.start <= address and address + size <= found.end):
            raise _outside(field, address, size)
        if address % align:
            raise Refusal(f"{field}.device_addr", f"{address:#x} is not a multiple of {align}", "misaligned_access")
        return Place(found, address)

    def free(self, number: int, *, idle: bool = True) -> int:
        """Give one back; its bytes. One that is not ``idle`` waits for the queue. Refusal."""
        found = self.get(number)
        if found.pins:
            raise Refusal("tensor_id", "a transfer uses this tensor now", "busy")
        del self._by_number[number]
        at = bisect_right(self._starts, found.start) - 1
        del self._starts[at], self._by_address[at]
        found.alive = False
        self.frees[found.op] += 1
        if idle:
            self.pool.release(found.block)
        else:
            self._limbo.append(found)
        return found.size

    def settle(self, passed: int) -> None:
        """The queue has come so far: what waited for that goes back to the pool."""
        if self._limbo:
            waiting = [one for one in self._limbo if one.fence > passed]
            for one in self._limbo:
                if one.fence <= passed:
                    self.pool.release(one.block)
            self._limbo = waiting

    def trim(self) -> int:
        """Give back to the driver what is kept idle; bytes."""
        return self.pool.trim()

    def stats(self) -> PoolStats:
        """The pool's account."""
        return self.pool.stats()

    def close(self) -> tuple[int, int]:
        """Give everything back, newest first; bytes and tensors that were still held. The queue must be closed. Raises
        the first failure when all is tried."""
        size = sum(one.size for one in self._by_number.values())
        count = len(self._by_number)
        for one in [*self._limbo, *self._by_number.values()]:
            one.alive = False
            self.pool.release(one.block)
        self.frees.update(one.op for one in self._by_number.values())
        self._limbo, self._by_number, self._starts, self._by_address = [], {}, [], []
        self.pool.trim()
        if self._source.wrong is not None:
            raise self._source.wrong
        return size, count


def _outside(field: str, address: int, size: int) -> Refusal:
    text = f"{in_bytes(size)} at {address:#x} are not inside one tensor of this session"
    return Refusal(f"{field}.device_addr", text, "invalid_argument")
