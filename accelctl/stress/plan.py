"""What a run does: how many cycles, of which sizes, in which orders, how much is held meanwhile. All from one seed.

A cycle takes one slot: what is in it is released, in the order that the cycle says, and a new block is acquired into
it. One slot makes the plain alloc-map-touch-unmap-free loop; more slots make a held set with random replacement, which
is what fragments address space and finds numbers that are given out twice.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accelctl.abi.lifecycle import Sizes
from accelctl.errors import UsageError

KIB = 1024
MIB = KIB * KIB
DISTRIBUTIONS = ("page", "small", "mixed", "large")
"""page: one granule; small: up to 64 KiB; mixed: mostly small, now and then up to the limit; large: 1 MiB and up."""
ORDERS = ("reverse", "early", "random")
"""reverse: last acquired, first released; early: what may go early goes first; random: either."""
TOUCHES = ("none", "ends", "full")
"""What of a mapping is written and verified: nothing, first and last 8 bytes, or all of it."""
DEFAULT_BYTES = 256 * MIB
DEFAULT_SECONDS = 30.0
_BATCH = 1024


class Step(NamedTuple):
    """One cycle. ``depth``: how many stages are acquired; ``early``: the order in which the slot's old block goes."""

    slot: int
    size: int
    depth: int
    early: bool


class Batch(NamedTuple):
    """Many cycles, one column for each part of a :class:`Step`."""

    slots: Sequence[int]
    sizes: Sequence[int]
    depths: Sequence[int]
    early: Sequence[bool]


def batched(steps: Iterable[Step]) -> Iterator[Batch]:
    """Given steps in the form that a plan has them in."""
    columns = tuple(zip(*steps, strict=True))
    if columns:
        yield Batch(*columns)


@dataclass(frozen=True)
class Plan:
    """Everything that a run is determined by, apart from the device. ``cycles`` 0: until ``seconds`` are over."""

    seed: int = 1
    cycles: int = 0
    seconds: float = DEFAULT_SECONDS
    bytes_limit: int = DEFAULT_BYTES
    """Most bytes held at one time by all workers together."""
    sizes: str = "mixed"
    hold: int = 8
    order: str = "random"
    touch: str = "ends"
    partial: int = 16
    """Every so many cycles a block stops at an earlier stage; 0: never."""
    workers: int = 1
    threads: int = 1
    capped: bool = False
    """Whether ``seconds`` also end a run of so many ``cycles``; without cycles they always do."""

    @property
    def timed(self) -> bool:
        """Whether the time ends the run."""
        return self.capped or not self.cycles

    @property
    def most(self) -> int:
        """Cycles that are not exceeded."""
        return self.cycles or 10**9

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--sizes", self.sizes, DISTRIBUTIONS),
            ("--order", self.order, ORDERS),
            ("--touch", self.touch, TOUCHES),
        ):
            if value not in known:
                raise UsageError(f"{name} {value}: not one of {', '.join(known)}")
        for name, number, low, high in (
            ("--cycles", self.cycles, 0, 10**9),
            ("--bytes-limit", self.bytes_limit, 4096, 1 << 50),
            ("--hold", self.hold, 1, 4096),
            ("--workers", self.workers, 1, 256),
            ("--threads", self.threads, 1, 64),
            ("--duration", self.seconds, 0, 7 * 86400),
        ):
            if not low <= number <= high:
                raise UsageError(f"{name} {number}: must be between {low} and {high}")

    def share(self, granule: int) -> int:
        """Bytes that one block may have, so that all held sets together stay below the limit."""
        blocks = self.workers * self.threads * self.hold
        share = self.bytes_limit // blocks // granule * granule
        if share < granule:
            raise UsageError(
                f"{blocks} blocks of at least {granule} bytes do not fit into --bytes-limit {self.bytes_limit}"
            )
        return share

    def steps(self, sizes: Sizes, stages: int, lane: int = 0) -> Iterator[Step]:
        """The cycles of one thread (``lane``), without end; the same for the same seed on every machine."""
        for batch in self.batches(sizes, stages, lane):
            yield from map(Step, *batch)

    def batches(self, sizes: Sizes, stages: int, lane: int = 0) -> Iterator[Batch]:
        """The same, many at a time."""
        rng = random.Random(f"{self.seed}/{lane}")
        most = self.share(sizes.granule) if not sizes.largest else min(self.share(sizes.granule), sizes.largest)
        granules = max(1, most // sizes.granule)
        while True:
            batch = self._granules(rng, granules, sizes.granule)
            slots = [0] * _BATCH if self.hold == 1 else [rng.randrange(self.hold) for _ in batch]
            early = [self.order == "early"] * _BATCH
            if self.order == "random":
                early = [rng.random() < 0.5 for _ in batch]
            depths = [stages] * _BATCH
            for number in range(self.partial - 1, _BATCH, self.partial) if self.partial and stages > 1 else ():
                depths[number] = rng.randrange(1, stages)
            yield Batch(slots, [count * sizes.granule for count in batch], depths, early)

    def _granules(self, rng: random.Random, most: int, granule: int) -> list[int]:
        """A batch of sizes in granules: log-uniform, because real allocations are."""
        small = min(most, max(1, 64 * KIB // granule))
        low, high = {
            "page": (1, 1),
            "small": (1, small),
            "mixed": (1, small),
            "large": (min(most, max(1, MIB // granule)), most),
        }[self.sizes]
        if low == high:
            return [low] * _BATCH
        bits = max(1, (high // low)).bit_length() - 1
        found = [min(high, (low << rng.randint(0, bits)) + rng.randrange(low)) for _ in range(_BATCH)]
        if self.sizes == "mixed":
            for index in range(0, _BATCH, 64):
                found[index] = rng.randint(1, most)
        return found


_MIX, _MASK = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF


def pattern(seed: int, serial: int) -> bytes:
    """Eight bytes that no other block of the run has (splitmix64's mixing constant spreads neighbours)."""
    return ((serial + 1) * _MIX + seed & _MASK).to_bytes(8, "little")


def patterns(seed: int, serials: Sequence[int]) -> tuple[bytes, ...]:
    """Those of many blocks."""
    words = [(serial + 1) * _MIX + seed & _MASK for serial in serials]
    return struct.unpack("8s" * len(words), struct.pack(f"<{len(words)}Q", *words))
