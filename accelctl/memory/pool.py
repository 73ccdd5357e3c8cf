"""Blocks kept for the next request of their size: `Pool`, one per chip.

A program that frees to the driver each time pays the driver's map and unmap; one that keeps blocks must say what it
keeps, or its cache is taken for a leak ("cached" and "in use" are the two numbers that a before/after check confuses).
Blocks of two chips never meet: the same size class of another device is another memory, and a handle from there means
something else here.

Size classes: four per doubling (4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ... pages; jemalloc's spacing). Finer classes hit
less often, coarser ones waste more: powers of two alone up to half of a block, this at most a fifth above 4 pages.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from accelctl.memory import CallerError, in_bytes
from accelctl.memory.va import checked_pages, power_of_two

H = TypeVar("H")
"""What the chip's driver returned for a block: a handle, an address, an object."""


class PoolBlock(Generic[H]):
    """A block that the pool gave out. `size` is what it really has, `asked` what the last request wanted (bytes)."""

    __slots__ = ("asked", "chip", "handle", "serial", "size")

    def __init__(self, chip: str, serial: int, size: int, handle: H) -> None:
        self.chip, self.serial, self.size, self.handle = chip, serial, size, handle
        self.asked = 0


class ClassStats(NamedTuple):
    """One size class, or (as the pool's total) all of them."""

    hits: int
    """Requests answered from the cache."""
    misses: int
    """Requests that the driver answered; those that it refused are in ``ops``."""
    in_use: int
    """Bytes given out."""
    cached: int
    """Bytes kept for later."""


class PoolStats(NamedTuple):
    """A pool in numbers; bytes unless said otherwise."""

    chip: str
    in_use: int
    cached: int
    hits: int
    misses: int
    asked: int
    """What callers wanted of what is in use."""
    fragmentation: float
    """1 - asked / in use: what rounding up to size classes costs now."""
    high_water: int
    """Most bytes held from the driver at one time, in use and cached."""
    classes: dict[int, ClassStats]
    """Bytes of a class -> its counts; rising."""
    ops: dict[str, int]
    """How often: acquire, release, trim; of the driver's calls allocate, give_back, and refused when one raised;
    wrong for calls that broke the rules."""


class _Class(Generic[H]):
    """One size class: its idle blocks, the newest last."""

    __slots__ = ("hits", "idle", "misses", "out")

    def __init__(self) -> None:
        self.idle: dict[int, PoolBlock[H]] = {}
        self.hits = self.misses = self.out = 0


def size_class(size: int, granule: int = 4096) -> int:
    """Bytes of the smallest class that holds `size`: whole granules, four classes per doubling."""
    pages = checked_pages(size, granule)
    step = 1 << max(0, (pages - 1).bit_length() - 3)
    return -(-pages // step) * step * granule


class Pool(Generic[H]):
    """Blocks of one chip. O(1) per block.

    allocate(bytes) asks the driver for a block and give_back(handle, bytes) returns one; what they raise passes through
    and leaves the pool as it was, so a block whose return failed stays in the cache and in the books.
    """

    def __init__(
        self, chip: str, allocate: Callable[[int], H], give_back: Callable[[H, int], None], *, granule: int = 4096
    ) -> None:
        if not power_of_two(granule):
            raise CallerError(f"granule {granule} is not a power of two")
        self.chip, self.granule = chip, granule
        self._allocate, self._give_back = allocate, give_back
        self._classes: dict[int, _Class[H]] = {}
        self._out: dict[int, PoolBlock[H]] = {}
        self._age: OrderedDict[int, PoolBlock[H]] = OrderedDict()  # idle blocks of all classes, longest idle first
        self._serial = self._in_use = self._cached = self._asked = self._high = 0
        self._ops = dict.fromkeys(("acquire", "release", "trim", "allocate", "give_back", "refused", "wrong"), 0)

    def acquire(self, size: int) -> PoolBlock[H]:
        """A block of at least `size` bytes: the one of its class that was released last (its pages are the warmest),
        or a new one from the driver.
        """
        self._ops["acquire"] += 1
        length = size_class(size, self.granule)
        cls = self._classes.get(length) or self._classes.setdefault(length, _Class())
        if cls.idle:
            serial, block = cls.idle.popitem()
            del self._age[serial]
            self._cached -= length
            cls.hits += 1
        else:
            block = self._new(length)
            cls.misses += 1
        block.asked = size
        self._out[block.serial] = block
        cls.out += 1
        self._in_use += length
        self._asked += size
        self._high = max(self._high, self._in_use + self._cached)
        return block

    def release(self, block: PoolBlock[H]) -> None:
        """Keep a block for later. CallerError: released twice, trimmed since, or of another pool or chip."""
        if self._out.get(block.serial) is not block:
            self._ops["wrong"] += 1
            raise CallerError(self._why_not(block))
        self._ops["release"] += 1
        del self._out[block.serial]
        cls = self._classes[block.size]
        cls.out -= 1
        cls.idle[block.serial] = self._age[block.serial] = block
        self._in_use -= block.size
        self._asked -= block.asked
        self._cached += block.size

    def trim(self, size: int | None = None) -> int:
        """Return idle blocks, longest idle first, until `size` bytes are back (None: all); the bytes returned."""
        self._ops["trim"] += 1
        returned = 0
        while self._age and (size is None or returned < size):
            block = next(iter(self._age.values()))
            self._call_back(block)
            del self._age[block.serial]
            del self._classes[block.size].idle[block.serial]
            self._cached -= block.size
            returned += block.size
        return returned

    def stats(self) -> PoolStats:
        """The account of this moment."""
        classes = {
            length: ClassStats(cls.hits, cls.misses, cls.out * length, len(cls.idle) * length)
            for length, cls in sorted(self._classes.items())
        }
        return PoolStats(
            chip=self.chip,
            in_use=self._in_use,
            cached=self._cached,
            hits=sum(cls.hits for cls in classes.values()),
            misses=sum(cls.misses for cls in classes.values()),
            asked=self._asked,
            fragmentation=1 - self._asked / self._in_use if self._in_use else 0.0,
            high_water=self._high,
            classes=classes,
            ops=dict(self._ops),
        )

    def check(self) -> None:
        """Assert: every block is in one place, in its class, of this chip, and the sums agree; O(blocks)."""
        idle = {serial: block for cls in self._classes.values() for serial, block in cls.idle.items()}
        assert idle == dict(self._age), "cache and age list differ"
        assert not idle.keys() & self._out.keys(), "a block is both idle and in use"
        assert all(b.size == n for n, cls in self._classes.items() for b in cls.idle.values()), "wrong class"
        assert all(b.chip == self.chip for b in [*idle.values(), *self._out.values()]), "a block of another chip"
        assert self._cached == sum(b.size for b in idle.values()), "cached bytes"
        assert self._in_use == sum(b.size for b in self._out.values()), "bytes in use"
        assert self._asked == sum(b.asked for b in self._out.values()) <= self._in_use, "bytes asked"
        assert self._high >= self._in_use + self._cached, "high water"

    def _new(self, length: int) -> PoolBlock[H]:
        try:
            handle = self._allocate(length)
        except BaseException:
            self._ops["refused"] += 1
            raise
        self._ops["allocate"] += 1
        self._serial += 1
        return PoolBlock(self.chip, self._serial, length, handle)

    def _call_back(self, block: PoolBlock[H]) -> None:
        try:
            self._give_back(block.handle, block.size)
        except BaseException:
            self._ops["refused"] += 1
            raise
        self._ops["give_back"] += 1

    def _why_not(self, block: PoolBlock[H]) -> str:
        what = f"release of a block of {in_bytes(block.size)} of {block.chip}"
        if block.chip != self.chip:
            return f"{what} into the pool of {self.chip}: pools of two chips do not mix"
        if self._age.get(block.serial) is block:
            return f"{what}: it is released already"
        return f"{what}: not given out by this pool, or returned to the driver since"


class Pools(Generic[H]):
    """The pools of several chips, by chip: the only way to one is its chip's name."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool[H]] = {}

    def add(self, pool: Pool[H]) -> None:
        """A chip's pool; CallerError when it has one."""
        if pool.chip in self._pools:
            raise CallerError(f"{pool.chip} has a pool already")
        self._pools[pool.chip] = pool

    def of(self, chip: str) -> Pool[H]:
        """The pool of a chip; CallerError without one."""
        try:
            return self._pools[chip]
        except KeyError:
            raise CallerError(f"{chip} has no pool") from None

    def release(self, block: PoolBlock[H]) -> None:
        """Back to where it came from, whoever holds it."""
        self.of(block.chip).release(block)

    def stats(self) -> dict[str, PoolStats]:
        """Chip -> account."""
        return {chip: pool.stats() for chip, pool in sorted(self._pools.items())}
