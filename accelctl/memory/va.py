"""Device address space handed out and taken back: `GoodFit`.

With amdgpu, xe, nouveau, panthor and KFD the program chooses the device address (the map ioctl takes it: amdgpu_drm.h,
xe_drm.h, nouveau_drm.h, panthor_drm.h, kfd_ioctl.h); amdgpu only refuses overlaps. An address lost here is lost for the
life of the file descriptor and no kernel counter shows it. It must come back, exactly, and a refusal must be true: "no
room" from an allocator that overlooked a hole would be reported as a defect of the driver.

Why this structure. TLSF (Masmano et al., ECRTS 2004; tinygrad's PCI interface uses one) finds a class of sizes by two
levels of bit maps, but rounds up to a class and so overlooks holes of the very class it was asked for, and with a
larger alignment asks for size + alignment. A sorted list with bisect is exact but moves O(n) words per insertion. Here
the bit maps go on downwards to single sizes (`Ordered`, 64 ways per level), which makes the fit exact (the smallest
hole that holds the request *at its alignment*), and costs O(log64 of the address space), at most 8 levels for 57 bits
in 4 KiB pages, however many holes there are. Each alignment in use (2 or 3 in practice, 4 KiB, 64 KiB and 2 MiB) has
its own index of what a hole offers at that alignment; the first request with a new alignment builds it and is O(holes).
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from accelctl.errors import AccelError
from accelctl.memory import CallerError, in_bytes


class Block(NamedTuple):
    """One range of addresses that is not free."""

    va: int
    size: int
    owner: str
    """What the caller said it is for; may be empty."""
    fixed: bool
    """The caller chose the address (`reserve`)."""

    def __str__(self) -> str:
        name = self.owner or ("fixed range" if self.fixed else "block")
        return f"{name} at {self.va:#x}..{self.va + self.size:#x}"


class Snapshot(NamedTuple):
    """An address space in numbers (bytes unless said otherwise); size = reserved + mapped + free + lost."""

    size: int
    reserved: int
    """Held at addresses that the caller chose."""
    mapped: int
    """Held at addresses that were handed out."""
    free: int
    lost: int
    """Neither held nor to be had again; 0 for an allocator that recycles."""
    blocks: int
    """Count of ranges held."""
    holes: int
    """Count of free ranges; neighbours are one."""
    largest_hole: int
    fragmentation: float
    """1 - largest hole / free: 0 is one hole, near 1 is dust."""
    high_water: int
    """From the base to the end of the highest address ever handed out; fixed ranges do not count."""
    peak: int
    """Most bytes held at one time."""


class VaSpace(Protocol):
    """What the stages ask of an address space, whichever policy is behind it."""

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """Address of a new range; VaExhausted when none fits."""

    def reserve(self, va: int, size: int, owner: str = "") -> None:
        """Take this very range; VaTaken when any of it is held."""

    def free(self, va: int) -> int:
        """Give a range back; its size in bytes. CallerError when no range starts there."""

    def snapshot(self) -> Snapshot:
        """The account of this moment."""

    def check(self) -> None:
        """Assert every invariant; O(ranges)."""


class VaExhausted(AccelError):
    """No hole of the device's address space holds what was asked for.

    wanted, align, free, largest_hole (what the best one offers at this alignment), lost: bytes. free >= wanted with a
    smaller largest_hole is fragmentation; a large `lost` is address space that was freed and is not reused.
    """

    default_kind = "out_of_address_space"

    def __init__(self, wanted: int, align: int, free: int, largest_hole: int, lost: int = 0) -> None:
        text = f"no device address range of {in_bytes(wanted)} (aligned to {in_bytes(align)}) is free"
        text += f": {in_bytes(free)} free in all, largest hole {in_bytes(largest_hole)}"
        text += f", {in_bytes(lost)} given back but not reused" if lost else ""
        super().__init__(text)
        self.wanted, self.align, self.free, self.largest_hole, self.lost = wanted, align, free, largest_hole, lost


class VaTaken(AccelError):
    """A fixed range overlaps one that is held; `holder` is that one (None: given out earlier and never reused)."""

    default_kind = "out_of_address_space"

    def __init__(self, va: int, size: int, holder: Block | None) -> None:
        by = f"held: {holder}" if holder else "passed already, and this space never reuses addresses"
        super().__init__(f"device address range {va:#x}..{va + size:#x} is {by}")
        self.holder = holder


class Ordered:
    """A set of integers in [0, universe) that finds the next member upwards or downwards in O(log64 universe).

    A tree of bit maps: a member is a bit of level 0, a word that is not empty is a bit of the level above.
    """

    def __init__(self, universe: int) -> None:
        self._levels: list[dict[int, int]] = [{}]
        while 64 ** len(self._levels) < universe:
            self._levels.append({})

    def add(self, member: int) -> None:
        """Put a member in; one that is there stays."""
        for level in self._levels:
            word, bit = member >> 6, 1 << (member & 63)
            before = level.get(word, 0)
            level[word] = before | bit
            if before:
                return
            member = word

    def remove(self, member: int) -> None:
        """Take a member out; KeyError when its word is not there."""
        for level in self._levels:
            word = member >> 6
            left = level[word] & ~(1 << (member & 63))
            if left:
                level[word] = left
                return
            del level[word]
            member = word

    def ceil(self, wanted: int) -> int | None:
        """Smallest member >= wanted."""
        for depth, level in enumerate(self._levels):
            word, bit = wanted >> 6, wanted & 63
            bits = level.get(word, 0) >> bit << bit
            if bits:
                found = word << 6 | _lowest(bits)
                for below in reversed(self._levels[:depth]):
                    found = found << 6 | _lowest(below[found])
                return found
            wanted = word + 1
        return None

    def floor(self, wanted: int) -> int | None:
        """Largest member <= wanted."""
        for depth, level in enumerate(self._levels):
            word = wanted >> 6
            bits = level.get(word, 0) & ((2 << (wanted & 63)) - 1)
            if bits:
                found = word << 6 | bits.bit_length() - 1
                for below in reversed(self._levels[:depth]):
                    found = found << 6 | below[found].bit_length() - 1
                return found
            if word == 0:
                return None
            wanted = word - 1
        return None

    def __iter__(self) -> Iterator[int]:
        """Members in rising order."""
        member = self.ceil(0)
        while member is not None:
            yield member
            member = self.ceil(member + 1)


def _lowest(bits: int) -> int:
    """Number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


class _Fits:
    """Holes by what they offer at one alignment; all numbers are pages, addresses relative to the base."""

    def __init__(self, align: int, base: int, pages: int) -> None:
        self._align, self._base = align, base
        self._sizes = Ordered(pages + 1)
        self._starts: dict[int, dict[int, None]] = {}
        self._most = pages

    def pad(self, start: int) -> int:
        """Pages from there to the next aligned address."""
        return -(self._base + start) % self._align

    def add(self, start: int, pages: int) -> None:
        """A new hole; one without an aligned page in it is not indexed."""
        offered = pages - self.pad(start)
        if offered <= 0:
            return
        starts = self._starts.get(offered)
        if starts is None:
            starts = self._starts[offered] = {}
            self._sizes.add(offered)
        starts[start] = None

    def remove(self, start: int, pages: int) -> None:
        """A hole that is gone or has changed."""
        offered = pages - self.pad(start)
        if offered <= 0:
            return
        starts = self._starts[offered]
        del starts[start]
        if not starts:
            del self._starts[offered]
            self._sizes.remove(offered)

    def best(self, pages: int) -> int | None:
        """Start of a smallest hole that is large enough; of several equal ones the newest.

        popitem, because looking at the last key of a dict walks over entries deleted behind it.
        """
        offered = self._sizes.ceil(pages)
        if offered is None:
            return None
        starts = self._starts[offered]
        start, _ = starts.popitem()
        starts[start] = None
        return start

    def largest(self) -> int:
        """What the best hole offers; 0 without one."""
        return self._sizes.floor(self._most) or 0

    def check(self, holes: dict[int, int]) -> None:
        """Assert that exactly these holes are indexed."""
        want = {(n - self.pad(s), s) for s, n in holes.items() if n > self.pad(s)}
        have = {(offered, start) for offered, starts in self._starts.items() for start in starts}
        assert want == have, f"index for alignment {self._align}: {sorted(want ^ have)}"
        assert list(self._sizes) == sorted(self._starts), f"sizes for alignment {self._align}"


def power_of_two(value: int) -> bool:
    """1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


def checked_space(base: int, size: int, granule: int) -> None:
    """CallerError unless the three describe whole pages."""
    if not power_of_two(granule):
        raise CallerError(f"granule {granule} is not a power of two")
    if base < 0 or size <= 0 or base % granule or size % granule:
        raise CallerError(f"address space {base:#x} + {size:#x} is not whole pages of {granule}")


def checked_align(align: int | None, granule: int) -> int:
    """Alignment in bytes, at least one page; CallerError unless a power of two."""
    if align is None:
        return granule
    if not power_of_two(align):
        raise CallerError(f"alignment {align} is not a power of two")
    return max(align, granule)


def checked_pages(size: int, granule: int) -> int:
    """A size in whole pages, rounded up; CallerError for none."""
    if size <= 0:
        raise CallerError(f"{size} bytes asked for")
    return -(-size // granule)


def checked_range(va: int, size: int, space: tuple[int, int, int]) -> int:
    """Pages of a fixed range within (base, size, granule); CallerError when it is misaligned or outside."""
    base, whole, granule = space
    pages = checked_pages(size, granule)
    if va % granule:
        raise CallerError(f"fixed address {va:#x} is not a multiple of {granule}")
    if va < base or va + pages * granule > base + whole:
        raise CallerError(f"fixed range {va:#x} + {size:#x} is outside {base:#x}..{base + whole:#x}")
    return pages


class GoodFit:
    """A recycling allocator over [base, base + size): best fit at the asked alignment, freed neighbours are one hole.

    Alignments are of the absolute address. Sizes are rounded up to whole granules (bytes, a power of two: the device's
    smallest page). Every operation is O(log) as the module says; `check` and `holes` are linear.
    """

    def __init__(self, base: int, size: int, *, granule: int = 4096) -> None:
        checked_space(base, size, granule)
        self.base, self.size, self.granule = base, size, granule
        self._total = size // granule
        self._bounds = Ordered(self._total)  # where a block or a hole starts: finds a range's neighbours by address
        self._holes: dict[int, int] = {}
        self._blocks: dict[int, Block] = {}
        self._fits = {1: _Fits(1, base // granule, self._total)}
        self._free = self._fixed = self._high = self._peak = 0
        self._add_hole(0, self._total)

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """Address of `size` bytes (rounded up to granules) at a multiple of `align` (default: granule).

        VaExhausted when no hole holds it: that is exact, no hole was overlooked.
        """
        pages = checked_pages(size, self.granule)
        step = checked_align(align, self.granule)
        fits = self._fits.get(step // self.granule) or self._index(step // self.granule)
        start = fits.best(pages)
        if start is None:
            free, largest = self._free * self.granule, fits.largest() * self.granule
            raise VaExhausted(pages * self.granule, step, free, largest)
        found = start + fits.pad(start)
        self._take(start, found, pages, Block(self._va(found), pages * self.granule, owner, fixed=False))
        self._high = max(self._high, found + pages)
        return self._va(found)

    def reserve(self, va: int, size: int, owner: str = "") -> None:
        """Take [va, va + size): VaTaken, naming the holder, when any of it is held."""
        pages = checked_range(va, size, (self.base, self.size, self.granule))
        start = (va - self.base) // self.granule
        around = self._bounds.floor(start)
        assert around is not None, "the space starts with a block or a hole"
        end = around + self._holes.get(around, 0)
        if around in self._blocks or end < start + pages:
            # a hole that ends too early ends at a block: neighbouring holes are one
            raise VaTaken(va, pages * self.granule, self._blocks[around if around in self._blocks else end])
        self._take(around, start, pages, Block(va, pages * self.granule, owner, fixed=True))
        self._fixed += pages

    def free(self, va: int) -> int:
        """Give back what starts at `va`; its size in bytes. CallerError when nothing does (freed already?)."""
        start, odd = divmod(va - self.base, self.granule)
        block = None if odd else self._blocks.pop(start, None)
        if block is None:
            raise CallerError(f"free of device address {va:#x}: {self._why_not(start)}")
        pages = block.size // self.granule
        self._fixed -= pages if block.fixed else 0
        self._join(start, pages)
        return block.size

    def block(self, va: int) -> Block | None:
        """The range that holds this address, if one does."""
        start = (va - self.base) // self.granule
        if not 0 <= start < self._total:
            return None
        around = self._bounds.floor(start)
        return None if around is None else self._blocks.get(around)

    def holes(self) -> Iterator[tuple[int, int]]:
        """(address, bytes) of every hole, rising."""
        for start in sorted(self._holes):
            yield self._va(start), self._holes[start] * self.granule

    def snapshot(self) -> Snapshot:
        """The account of this moment; O(log)."""
        largest, held = self._fits[1].largest(), self._total - self._free
        return Snapshot(
            size=self.size,
            reserved=self._fixed * self.granule,
            mapped=(held - self._fixed) * self.granule,
            free=self._free * self.granule,
            lost=0,
            blocks=len(self._blocks),
            holes=len(self._holes),
            largest_hole=largest * self.granule,
            fragmentation=1 - largest / self._free if self._free else 0.0,
            high_water=self._high * self.granule,
            peak=self._peak * self.granule,
        )

    def check(self) -> None:
        """Assert: ranges tile the space, no two holes touch, sums and every index agree; O(ranges x alignments)."""
        at, hole_before, count = 0, False, 0
        for start in self._bounds:
            hole = start in self._holes
            assert start == at, f"gap or overlap at {self._va(at):#x}"
            assert hole != (start in self._blocks), f"{self._va(at):#x} is both or neither"
            assert not (hole and hole_before), f"two holes touch at {self._va(at):#x}"
            at += self._holes[start] if hole else self._blocks[start].size // self.granule
            hole_before, count = hole, count + 1
        assert at == self._total, "the ranges do not fill the space"
        assert count == len(self._holes) + len(self._blocks), "a range without a bound"
        assert self._free == sum(self._holes.values()), "free bytes"
        assert all(block.va == self._va(start) for start, block in self._blocks.items()), "a block's own address"
        assert self._fixed * self.granule == sum(b.size for b in self._blocks.values() if b.fixed), "fixed bytes"
        assert self._total - self._free <= self._peak <= self._total, "peak"
        for fits in self._fits.values():
            fits.check(self._holes)

    def _va(self, start: int) -> int:
        return self.base + start * self.granule

    def _index(self, align: int) -> _Fits:
        """A new alignment, in pages: index what every hole offers at it."""
        fits = self._fits[align] = _Fits(align, self.base // self.granule, self._total)
        for start, pages in self._holes.items():
            fits.add(start, pages)
        return fits

    def _add_hole(self, start: int, pages: int) -> None:
        self._holes[start] = pages
        self._bounds.add(start)
        self._free += pages
        for fits in self._fits.values():
            fits.add(start, pages)

    def _remove_hole(self, start: int) -> int:
        pages = self._holes.pop(start)
        self._bounds.remove(start)
        self._free -= pages
        for fits in self._fits.values():
            fits.remove(start, pages)
        return pages

    def _take(self, hole: int, start: int, pages: int, block: Block) -> None:
        """Cut a block out of a hole; what is left on its two sides are holes."""
        end = hole + self._remove_hole(hole)
        if start > hole:
            self._add_hole(hole, start - hole)
        if end > start + pages:
            self._add_hole(start + pages, end - start - pages)
        self._blocks[start] = block
        self._bounds.add(start)
        self._peak = max(self._peak, self._total - self._free)

    def _join(self, start: int, pages: int) -> None:
        """A block that became free, together with the holes beside it."""
        self._bounds.remove(start)
        if start + pages in self._holes:
            pages += self._remove_hole(start + pages)
        left = self._bounds.floor(start - 1) if start else None
        if left is not None and left in self._holes:
            pages += self._remove_hole(left)
            start = left
        self._add_hole(start, pages)

    def _why_not(self, start: int) -> str:
        inside = self.block(self._va(start))
        return f"inside {inside}, not its start" if inside else "not held (freed already, or never handed out)"


def space(base: int, size: int, granule: int) -> GoodFit:
    """What an Env hands to chips that choose device addresses in user space (abi.lifecycle.Env.space)."""
    return GoodFit(base, size, granule=granule)
