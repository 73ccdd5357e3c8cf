"""How much fits into a time: what one cycle, one reading and one second of idling cost here, and what follows.

Measured on the clock on the wall, not on a simulated device's own: that is the time that --duration promises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from accelctl.model.verdict import CYCLE, IDLE
from accelctl.stress.contrast import BlockPlan

KEPT = 0.1
"""Of the time, for the last readings and the verdict."""
FEWEST_READS = 40
"""Per block; the comparison of cycling with idling wants 256 in its eight blocks."""
SMALLEST = 0.02
"""A block is never cut to less than this share: what is too short shows nothing."""


class Pace(NamedTuple):
    """Seconds that one cycle takes, one reading after cycles, one reading while idle; and a second of idling (0 where
    the device has a clock of its own, that nobody waits for)."""

    cycle: float
    look: float = 0.0
    rest: float = 0.0
    idle: float = 1.0

    def of(self, block: BlockPlan, longest: int) -> float:
        """Seconds that a block takes. ``longest``: cycles of the longest one, which an idle block lasts as long as."""
        if block.block == IDLE:
            return longest * self.cycle * self.idle + block.reads * self.rest
        return block.cycles * self.cycle + block.reads * self.look


def fitting(pace: Pace, seconds: float, most_reads: int, noisy: bool) -> tuple[int, int]:
    """Cycles in all, and readings per block, that fit. Half of the time goes to cycles: they are what leaks."""
    if not noisy:
        return int(seconds / pace.cycle), 0
    reads = int(seconds / 2 / max(1e-9, 4 * (pace.look + pace.rest)))
    reads = max(FEWEST_READS, min(most_reads, reads))
    left = max(0.0, seconds - 4 * reads * (pace.look + pace.rest))
    return int(left / (pace.cycle * (1 + pace.idle))), reads


def cut(block: BlockPlan, share: float) -> BlockPlan:
    """A block that is only so long."""
    if share >= 1:
        return block
    reads = max(min(block.reads, FEWEST_READS), math.ceil(block.reads * share))
    return BlockPlan(block.block, math.ceil(block.cycles * share), reads)


def share_of(took: float, planned: Sequence[float], coming: Sequence[float], left: float) -> float:
    """How much of what is still to come may be done, from what the blocks so far took against what was planned."""
    slower = took / sum(planned) if sum(planned) > 0 else 1.0
    needed = slower * sum(coming)
    return max(SMALLEST, min(1.0, left / needed)) if needed > 0 else 1.0


def longest_of(blocks: Sequence[BlockPlan]) -> int:
    """Cycles of the longest cycling block."""
    return max(block.cycles for block in blocks if block.block == CYCLE)
