"""Number tables, page tables and VRAM of the simulated device. All amounts of memory are pages."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from accelctl.hal.devfile import PAGE
from accelctl.memory.va import GoodFit, VaExhausted

T = TypeVar("T")


def fault(number: int, text: str) -> OSError:
    """An errno as the driver answers it."""
    return OSError(number, text)


class JobFault(Exception):
    """The work ran into numbers that it cannot use (a block that there is not): its queue goes no further."""


class Numbers(Generic[T]):
    """Things by number from 1, lowest free number first, as the kernel's idr gives them."""

    __slots__ = ("_free", "things")

    def __init__(self) -> None:
        self.things: dict[int, T] = {}
        self._free: list[int] = []

    def add(self, thing: T) -> int:
        """Its number."""
        number = heappop(self._free) if self._free else len(self.things) + 1
        self.things[number] = thing
        return number

    def pop(self, number: int, what: str) -> T:
        """Take out; EINVAL where there is none."""
        try:
            thing = self.things.pop(number)
        except KeyError:
            raise fault(errno.EINVAL, f"no {what} {number}") from None
        if self.things:
            heappush(self._free, number)
        else:
            self._free.clear()
        return thing

    def get(self, number: int, what: str) -> T:
        """ENOENT where there is none."""
        try:
            return self.things[number]
        except KeyError:
            raise fault(errno.ENOENT, f"no {what} {number}") from None

    def drain(self) -> Iterator[T]:
        """Take everything out, lowest number first."""
        for number in sorted(self.things):
            yield self.things.pop(number)
        self._free.clear()

    def check(self) -> None:
        """Assert that used and free numbers are those from 1 on, once each."""
        used = sorted([*self.things, *self._free])
        assert used == list(range(1, len(used) + 1)), f"numbers {used}"


class Object:
    """A piece of VRAM and how many hold it: handles, mappings of both sides, dma-bufs, jobs."""

    __slots__ = ("owner", "pages", "refs", "start")

    def __init__(self, start: int, pages: int, owner: object) -> None:
        self.start, self.pages, self.owner, self.refs = start, pages, owner, 0


class Vram:
    """Physical pages: every object has one run of them, as with TTM's range manager.

    Small runs that come back wait on a list of their size: a loop of allocations finds them there in no time. They go
    back into the map of holes as soon as a run cannot be had otherwise, so a refusal is true.
    """

    SMALL, WAITING = 32, 1024
    """Pages of a run that may wait, and of all that wait."""

    def __init__(self, pages: int) -> None:
        self.pages, self.used = pages, 0
        self.objects: dict[int, Object] = {}
        self._holes = GoodFit(0, pages * PAGE, granule=PAGE)
        self._lists: dict[int, list[int]] = {}
        self.waiting = 0

    def take(self, pages: int, owner: object) -> Object:
        """A new object of a file; ENOSPC where no hole is large enough."""
        waiting = self._lists.get(pages)
        if waiting:
            start = waiting.pop()
            self.waiting -= pages
        else:
            start = self._carve(pages)
        made = self.objects[start] = Object(start, pages, owner)
        self.used += pages
        return made

    def hold(self, thing: Object) -> Object:
        """One more holder."""
        thing.refs += 1
        return thing

    def drop(self, thing: Object) -> None:
        """One holder less; the last one frees the pages."""
        thing.refs -= 1
        if thing.refs:
            return
        del self.objects[thing.start]
        pages = thing.pages
        self.used -= pages
        if pages <= self.SMALL and self.waiting + pages <= self.WAITING:
            self._lists.setdefault(pages, []).append(thing.start)
            self.waiting += pages
        else:
            self._holes.free(thing.start * PAGE)

    def largest(self) -> int:
        """The largest run that could be had now."""
        self._flush()
        return self._holes.snapshot().largest_hole // PAGE

    def _carve(self, pages: int) -> int:
        try:
            return self._holes.alloc(pages * PAGE) // PAGE
        except VaExhausted:
            self._flush()
        try:
            return self._holes.alloc(pages * PAGE) // PAGE
        except VaExhausted as error:
            raise fault(errno.ENOSPC, f"no {pages} pages of VRAM") from error

    def _flush(self) -> None:
        for starts in self._lists.values():
            for start in starts:
                self._holes.free(start * PAGE)
        self._lists.clear()
        self.waiting = 0

    def check(self) -> None:
        """Assert: free + used = total, and what is free, waiting and used does not overlap."""
        self._holes.check()
        view = self._holes.snapshot()
        assert self.used == sum(thing.pages for thing in self.objects.values()), "used pages"
        assert self.waiting == sum(pages * len(starts) for pages, starts in self._lists.items()), "waiting pages"
        assert view.free // PAGE + self.waiting + self.used == self.pages, "free + used is not all"
        runs = [(thing.start, thing.pages) for thing in self.objects.values()]
        runs += [(start, pages) for pages, starts in self._lists.items() for start in starts]
        for start, pages in runs:
            block = self._holes.block(start * PAGE)
            assert block is not None, f"page {start} is used, and a hole"
            assert (block.va, block.size) == (start * PAGE, pages * PAGE), f"page {start} belongs to {block}"
        assert len({start for start, _ in runs}) == len(runs), "a run twice"


class PageTable:
    """One VM. ``forgotten``: objects whose unmapping was acknowledged but that it still holds (an ordered leak)."""

    def __init__(self, vram: Vram, slots: int) -> None:
        self._vram, self._slots = vram, slots
        self._starts: list[int] = []
        self.mappings: dict[int, tuple[int, Object]] = {}
        """Device address -> bytes, and the object behind it."""
        self.forgotten: list[Object] = []
        self.pages = 0
        self.changes = 0
        """How often something was mapped or unmapped."""

    def map(self, va: int, size: int, thing: Object) -> None:
        """EINVAL: not whole pages of the object; EEXIST: overlaps; ENOSPC: no slot is left."""
        if not size or va % PAGE or size % PAGE or size > thing.pages * PAGE or va + size > 1 << 64:
            raise fault(errno.EINVAL, f"{size} bytes at {va:#x} are not pages of the object")
        starts = self._starts
        at = bisect_right(starts, va)
        if (at and starts[at - 1] + self.mappings[starts[at - 1]][0] > va) or (
            at < len(starts) and starts[at] < va + size
        ):
            raise fault(errno.EEXIST, f"{size} bytes at {va:#x} overlap a mapping")
        if len(starts) + len(self.forgotten) >= self._slots:
            raise fault(errno.ENOSPC, f"all {self._slots} slots are taken")
        starts.insert(at, va)
        self.mappings[va] = (size, self._vram.hold(thing))
        self.changes += 1
        self.pages += size // PAGE

    def unmap(self, va: int, size: int, *, forget: bool = False) -> None:
        """ENOENT unless exactly that is mapped."""
        found = self.mappings.get(va)
        if found is None or found[0] != size:
            raise fault(errno.ENOENT, f"{size} bytes at {va:#x} are not mapped")
        del self.mappings[va]
        self.changes += 1
        del self._starts[bisect_right(self._starts, va) - 1]
        if forget:
            self.forgotten.append(found[1])
            return
        self.pages -= size // PAGE
        self._vram.drop(found[1])

    def find(self, va: int, size: int) -> tuple[Object, int]:
        """The object behind a range, and where in it (bytes). EFAULT unless one mapping covers all of it."""
        at = bisect_right(self._starts, va)
        start = self._starts[at - 1] if at else 0
        length, thing = self.mappings.get(start, (0, None))
        if thing is None or va + size > start + length:
            raise fault(errno.EFAULT, f"the device cannot reach {size} bytes at {va:#x}")
        return thing, va - start

    def clear(self) -> None:
        """Unmap everything."""
        self.changes += 1
        for thing in [*(thing for _, thing in self.mappings.values()), *self.forgotten]:
            self._vram.drop(thing)
        self.mappings.clear()
        self._starts.clear()
        self.forgotten.clear()
        self.pages = 0

    def check(self) -> None:
        """Assert that mappings are in order and apart, and that pages agree."""
        assert self._starts == sorted(self.mappings), "order of mappings"
        ends = [va + self.mappings[va][0] for va in self._starts]
        assert all(end <= start for end, start in zip(ends, self._starts[1:], strict=False)), "mappings overlap"
        kept = self.pages - sum(size for size, _ in self.mappings.values()) // PAGE
        most = sum(thing.pages for thing in self.forgotten)
        assert len(self.forgotten) <= kept <= most, "pages of the VM"
