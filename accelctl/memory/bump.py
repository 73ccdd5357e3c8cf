"""Device addresses that are never reused: `Bump`, and how to see that end coming.

tinygrad's NVIDIA interface hands addresses upwards from a 64 GiB window and never takes one back (`free` releases
memory, not the address), so 64 GiB of allocations in total end in "out of memory" on an empty card; drivers have had
the same defect (NVIDIA/open-gpu-kernel-modules#1274, ROCm/rocm-systems#9823). `stress --va bump` shows what that costs,
`forecast` says when it ends, and `AddressWatch` finds it in the addresses of an allocator that is not ours, long before
the end.
"""

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from accelctl.memory import CallerError, in_bytes
from accelctl.memory.va import (
    Block,
    Snapshot,
    VaExhausted,
    VaTaken,
    checked_align,
    checked_pages,
    checked_range,
    checked_space,
)


class Sample(NamedTuple):
    """How far an address space had got: after that many operations, at that time, `mark` bytes were passed for good."""

    operation: int
    seconds: float
    """Any clock that only goes forward."""
    mark: int


class Forecast(NamedTuple):
    """When an address space that is not reused will be used up."""

    per_operation: float
    """Bytes."""
    per_second: float
    """Bytes; 0.0 when the samples carry no time."""
    operations_left: int
    """Further operations that succeed after the newest sample; the one after them fails."""
    seconds_left: float | None
    """From the newest sample; None when the samples carry no time."""
    last_operation: int
    """Number of the last operation that succeeds."""


def forecast(samples: Sequence[Sample], size: int) -> Forecast | None:
    """Operations and seconds until `size` bytes are passed; None with fewer than two samples or without growth.

    The rate is that from the first to the newest sample: growth is a sum of independent amounts, and for such a sum the
    end points hold all there is to know of its mean (a line fitted to all samples has a larger error). Start after
    warm-up: a one-off at the beginning is no rate.
    """
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    operations, grown, seconds = last.operation - first.operation, last.mark - first.mark, last.seconds - first.seconds
    if operations < 0 or seconds < 0:
        raise CallerError("samples are not in order")
    if operations == 0 or grown <= 0:
        return None
    left = max(0, size - last.mark)
    more = left * operations // grown  # whole numbers: 4 GiB / 16 MiB is 256, not 255.99
    time_left = left * seconds / grown if seconds > 0 else None
    rate = grown / seconds if seconds > 0 else 0.0
    return Forecast(grown / operations, rate, more, time_left, last.operation + more)


class Bump:
    """Same interface as `va.GoodFit`, but an address that was passed never comes back. O(1) per operation.

    Fixed ranges above the mark are stepped over; the gap before one, and what alignment skips, is lost.
    """

    def __init__(self, base: int, size: int, *, granule: int = 4096) -> None:
        checked_space(base, size, granule)
        self.base, self.size, self.granule = base, size, granule
        self._next = base
        self._blocks: dict[int, Block] = {}
        self._ahead: list[tuple[int, int]] = []  # (address, bytes) of fixed ranges above the mark, rising, freed or not
        self._mapped = self._fixed = self._high = self._peak = 0

    @property
    def end(self) -> int:
        """First address behind the space."""
        return self.base + self.size

    @property
    def mark(self) -> int:
        """Bytes from the base that are passed for good; what `forecast` wants in its samples."""
        return self._next - self.base

    def alloc(self, size: int, align: int | None = None, owner: str = "") -> int:
        """The next address that is a multiple of `align` with `size` bytes before the next fixed range or the end.

        VaExhausted otherwise, and then the mark stays: a smaller request may still fit.
        """
        want = checked_pages(size, self.granule) * self.granule
        step = checked_align(align, self.granule)
        va, passed = -(-self._next // step) * step, 0
        for start, length in self._ahead:
            if va + want <= start:
                break
            va, passed = -(-(start + length) // step) * step, passed + 1
        if va + want > self.end:
            view = self.snapshot()
            raise VaExhausted(want, step, view.free, view.largest_hole, view.lost)
        del self._ahead[:passed]
        self._next = va + want
        self._high = self._next - self.base
        self._mapped += want
        self._hold(Block(va, want, owner, fixed=False))
        return va

    def reserve(self, va: int, size: int, owner: str = "") -> None:
        """Take [va, va + size): VaTaken when any of it is held, passed, or was fixed before. O(fixed ranges ahead)."""
        want = checked_range(va, size, (self.base, self.size, self.granule)) * self.granule
        if va < self._next:
            holders = (b for b in self._blocks.values() if b.va < va + want and va < b.va + b.size)
            raise VaTaken(va, want, min(holders, default=None))
        for start, length in self._ahead:
            if start < va + want and va < start + length:
                raise VaTaken(va, want, self._blocks.get(start))
        insort(self._ahead, (va, want))
        self._fixed += want
        self._hold(Block(va, want, owner, fixed=True))

    def free(self, va: int) -> int:
        """Account for a range given back; its size in bytes. The address stays used. CallerError: not held."""
        block = self._blocks.pop(va, None)
        if block is None:
            raise CallerError(f"free of device address {va:#x}: not held (freed already, or never handed out)")
        self._mapped -= 0 if block.fixed else block.size
        self._fixed -= block.size if block.fixed else 0
        return block.size

    def snapshot(self) -> Snapshot:
        """The account of this moment; O(fixed ranges ahead)."""
        holes = self._gaps()
        free, largest = sum(holes), max(holes, default=0)
        return Snapshot(
            size=self.size,
            reserved=self._fixed,
            mapped=self._mapped,
            free=free,
            lost=self.size - free - self._fixed - self._mapped,
            blocks=len(self._blocks),
            holes=len(holes),
            largest_hole=largest,
            fragmentation=1 - largest / free if free else 0.0,
            high_water=self._high,
            peak=self._peak,
        )

    def check(self) -> None:
        """Assert: held ranges are apart and inside, none begins above the mark but fixed ones, sums agree."""
        at = self.base
        for va in sorted(self._blocks):
            block = self._blocks[va]
            assert block.va == va >= at, f"overlap at {va:#x}"
            assert block.fixed or va + block.size <= self._next, f"{va:#x} is above the mark"
            at = va + block.size
        assert at <= self.end, "a range ends behind the space"
        assert self._fixed == sum(b.size for b in self._blocks.values() if b.fixed), "fixed bytes"
        assert self._mapped == sum(b.size for b in self._blocks.values() if not b.fixed), "mapped bytes"
        assert self._ahead == sorted(self._ahead), "fixed ranges out of order"
        assert self.snapshot().lost >= 0, "more held than there is"

    def forecast(self, samples: Sequence[Sample]) -> Forecast | None:
        """`forecast` over this space; fixed ranges ahead count as used up."""
        return forecast(samples, self.size - sum(length for _, length in self._ahead))

    def _hold(self, block: Block) -> None:
        self._blocks[block.va] = block
        self._peak = max(self._peak, self._mapped + self._fixed)

    def _gaps(self) -> list[int]:
        """Bytes of every range that can still be handed out."""
        at, found = self._next, []
        for start, length in [*self._ahead, (self.end, 0)]:
            found += [start - at] if start > at else []
            at = start + length
        return found


class Climb(NamedTuple):
    """Addresses that only go up while what is held does not."""

    per_operation: float
    """Bytes."""
    held: int
    """Most bytes held at the end of an operation while the addresses rose."""
    mark: int
    ahead: Forecast

    def __str__(self) -> str:
        held = "bytes held return to 0" if self.held == 0 else f"never more than {in_bytes(self.held)} are held"
        text = "device address space not reused after free: high-water mark "
        text += f"+{in_bytes(round(self.per_operation))} per operation while {held}"
        return f"{text}, exhausted after operation {self.ahead.last_operation}"


class AddressWatch:
    """Sees address space that is not reused, in the addresses that a driver or runtime returns.

    Two look-alikes are told apart: a leak, because what is held rises as well; and an allocator that goes once round
    its space before it reuses, but that only after the first round, when its mark rests at the end. Memory is bounded:
    at SAMPLES samples every second one is dropped, and from then on half as many are taken.
    """

    SAMPLES = 256
    LEAST = 4
    """Rises of the mark before that is called a climb, and how many usual intervals without one end it."""

    def __init__(self, base: int, size: int) -> None:
        self.base, self.size = base, size
        self.samples: list[Sample] = []
        self._operation = self._mark = self._held = 0
        self._rises = self._stale = self._last_mark = self._first_held = self._most_held = 0
        self._every = 1

    def took(self, va: int, size: int) -> None:
        """An address was returned for so many bytes."""
        self._mark = max(self._mark, va + size - self.base)
        self._held += size

    def gave(self, size: int) -> None:
        """So many bytes were freed, successfully."""
        self._held -= size

    def tick(self, seconds: float = 0.0) -> None:
        """One operation (an iteration of the loop) is over; the first one is warm-up, its mark no rise."""
        self._operation += 1
        if self._operation == 1:
            self._first_held = self._held
        elif self._mark > self._last_mark:
            self._rises, self._stale = self._rises + 1, 0
        else:
            self._stale += 1
        self._last_mark = self._mark
        self._most_held = max(self._most_held, self._held)
        if self._operation % self._every == 0:
            self.samples.append(Sample(self._operation, seconds, self._mark))
        if len(self.samples) >= self.SAMPLES:
            del self.samples[1::2]
            self._every *= 2

    def climb(self) -> Climb | None:
        """The climb, or None: too few rises, the mark rests, or what is held grows at least half as fast."""
        if self._rises < self.LEAST or self._stale * self._rises > self.LEAST * self._operation:
            return None
        ahead = forecast(self.samples, self.size)
        grown = self._mark - self.samples[0].mark
        if ahead is None or 2 * (self._most_held - self._first_held) >= grown:
            return None
        return Climb(ahead.per_operation, self._most_held, self._mark, ahead)
