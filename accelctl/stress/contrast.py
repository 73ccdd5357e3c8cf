"""Does a noisy counter grow because we cycle? Cycling and idle blocks in turn, and what differs between them.

Idle blocks last as long as cycling ones, so whatever others do runs through both. The samples are fitted with

    level + drift in time (linear and curved) + jumps found + growth per cycle

and the growth per cycle is what is left for cycling alone: drift, however steep, is in neither its value nor its sign.
How far noise could have moved it is read off the residual's own spectrum at the slow frequencies at which the blocks
alternate. Correlated noise (AR(1), random walks) has more power there and widens the interval; fast periodic noise has
none there and does not. The textbook interval of a line takes random walks for trends (Granger & Newbold 1974).

Why not one slope per block: a single step makes a block useless, and eight numbers say little about the noise. How
small a leak is found in how much noise was measured, see tests/unit/test_verdict_noise.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul, ne
from typing import NamedTuple

from accelctl.model.verdict import CYCLE, IDLE, WARMUP, Sample
from accelctl.stress.jumps import WINDOW, Jumps, edges, sort_out
from accelctl.stress.trend import block_means, median, spread, t_999

ORDER = (IDLE, CYCLE, CYCLE, IDLE, CYCLE, IDLE, IDLE, CYCLE)
"""Thue and Morse's order: AB and BA in turn, so that drift that speeds up or slows down cancels as well."""

READS = 4800
"""Readings per block at most."""

BINS, FEWEST, SLOW, FAST = 256, 256, 8, 40
"""Means that are fitted; readings needed; slow frequencies of the residual, and those up to which noise is flat."""

LONGEST = 1e15
"""Seconds: 30 million years. What claims more is no clock."""

EXTRA, PULSE = 12, 6.5
"""Steps and outliers that may be found in the residual, and from how many standard deviations on."""

Row = list[float]


class BlockPlan(NamedTuple):
    """One block: run ``cycles`` (none while idle) and read the counter ``reads`` times, evenly spread. An idle block
    lasts as long as a cycling one of the plan."""

    block: str
    cycles: int
    reads: int


def block_plan(cycles: int = 20_000) -> tuple[BlockPlan, ...]:
    """How to spend so many cycles on a noisy counter: a warm-up of a twentieth, then :data:`ORDER`.

    The counter is read once per cycle, but at most READS times a block. ValueError below 80 cycles.
    """
    each = (cycles - cycles // 20) // ORDER.count(CYCLE)
    if cycles < 80:
        raise ValueError("fewer than 80 cycles cannot be split into blocks")
    reads = min(max(each, 2 * FEWEST // len(ORDER)), READS)
    warm = cycles - each * ORDER.count(CYCLE)
    blocks = [BlockPlan(block, each if block == CYCLE else 0, reads) for block in ORDER]
    return (BlockPlan(WARMUP, warm, 0), *blocks)


class Contrast(NamedTuple):
    """Growth because of cycling, over all ``cycles`` of it: ``growth`` ± ``reach`` (99.8 %). ``drift`` ± its reach is
    what the counter grew by otherwise, ``jumps`` how many jumps of others were taken out. ``returns``: how often
    cycling gave back, in one go, what it had added."""

    growth: float
    reach: float
    cycles: int
    drift: float
    drift_reach: float
    jumps: int
    returns: int


def contrast(samples: Sequence[Sample]) -> Contrast | str:
    """Compare cycling with idle; a text where that cannot be done says what is missing. Warm-up does not count."""
    # In columns: tens of thousands of readings, and passes over records are what takes the time.
    rows = [sample for sample in samples if sample[3] != WARMUP]
    cycled, seconds, counts, blocks = zip(*rows, strict=True) if rows else ((), (), (), ())
    lack = _lack(cycled, seconds, blocks)
    if lack:
        return lack
    readings = [count / 2 for count in counts]  # halves: the distance of two finite numbers need not be finite
    middle = median(readings)
    scale = max(max(readings) - middle, middle - min(readings))
    cycles = cycled[-1] - cycled[0]
    if scale == 0:
        return Contrast(0.0, 0.0, cycles, 0.0, 0.0, 0, 0)
    values = [(reading - middle) / scale for reading in readings]
    cycling = [block == CYCLE for block in blocks]
    jumps = sort_out(values, cycling, max(1, min(WINDOW, len(values) // 64)))
    fit = _Fit(cycled, seconds, values, jumps)
    if not fit.usable:
        return "cycling and idle blocks cannot be told from drift in time and jumps"
    growth, noise = fit.growth()
    reach = noise / fit.length
    drift, drift_reach = fit.drift(growth, noise)
    returns = _returns(jumps, cycling, growth)
    size = 2 * scale
    return Contrast(
        growth * size, reach * size, cycles, drift * size, drift_reach * size, fit.steps - len(jumps.regular), returns
    )


def _lack(cycles: Sequence[int], seconds: Sequence[float], blocks: Sequence[str]) -> str:
    turns = sum(map(ne, blocks, blocks[1:]))
    if IDLE not in blocks:
        return "no idle blocks to compare with"
    if len(blocks) < FEWEST or turns < 3:
        return f"{len(blocks)} readings in {turns + 1} blocks are too few"
    if cycles[-1] <= cycles[0] or not 0 < seconds[-1] - seconds[0] < LONGEST:
        return "neither cycles nor time advanced"
    return ""


class _Fit:
    """Least squares over BINS means, by orthogonal columns."""

    def __init__(self, cycles: Sequence[int], seconds: Sequence[float], values: Sequence[float], jumps: Jumps) -> None:
        reads, count = len(values), min(BINS, len(values) // 4)
        self.y = block_means(values, count)
        self.c = _from_to(block_means(cycles, count), cycles[0], cycles[-1])
        u = [2 * t - 1 for t in _from_to(block_means(seconds, count), seconds[0], seconds[-1])]
        ramps = [[1.0] * count, u, [x * x for x in u]]
        # Hundreds of steps are nearly a ramp; what is left of them beside it is the sawtooth.
        smooth = _orthonormal(ramps)
        steps = [_without(smooth, _staircase([j.at for j in grid], reads, count)) for grid in jumps.regular]
        steps += [_staircase([jump.at], reads, count) for jump in jumps.single]
        self.steps = len(steps)
        extra = self._extra([*ramps, *steps])
        self.basis = _orthonormal([*ramps, *steps, *extra])
        along = _without(self.basis, self.c)
        self.length = math.sqrt(_dot(along, along))
        self.usable = self.length > 1e-3 * math.sqrt(count)
        self.along = [x / self.length for x in along] if self.usable else along

    def _extra(self, columns: list[Row]) -> list[Row]:
        """Jumps and outliers that only show once the rest is explained."""
        basis = _orthonormal([*columns, self.c])
        residual, extra = _without(basis, self.y), list[Row]()
        while len(extra) < EXTRA:
            column, step = _suspect(residual)
            fresh = _without(basis, column) if column else []
            length = math.sqrt(_dot(fresh, fresh))
            if length < 1e-3:
                break
            extra.append(column)
            basis.append([x / length for x in fresh])
            residual = _without(basis[-1:], residual)
            self.steps += step
        return extra

    def growth(self) -> tuple[float, float]:
        """Growth over the whole run because of cycling, and how far noise reaches (99.8 %) per unit of a column."""
        full = [*self.basis, self.along]
        residual = _without(full, self.y)
        waves = _waves(len(self.y))
        power = [_power(wave, residual) for wave in waves]
        left = [max(1e-9, len(self.y) - math.fsum(_power(wave, q) for q in full)) for wave in waves]
        slow = SLOW + self.steps // 2
        kept = math.fsum(left[:slow])
        freedom = 2 * kept / len(self.y)
        # A column that was fitted takes power away where it lives: compare with what white noise would have left.
        low = math.fsum(power[:slow]) / kept
        flat = median([p / max(q, 0.3 * len(self.y)) for p, q in zip(power, left, strict=True)]) / math.log(2)
        # Few slow frequencies are a rough measure: they count fully only where they stand out of the many.
        trust = t_999(freedom if low > 2 * flat else 30)
        return _dot(self.along, self.y) / self.length, max(trust * math.sqrt(low), t_999(60) * math.sqrt(flat))

    def drift(self, growth: float, noise: float) -> tuple[float, float]:
        """Last eighth less first eighth, without our share; and its reach."""
        eighth = max(1, len(self.y) // 8)
        first, last = [sum(row[:eighth]) for row in (self.y, self.c)], [sum(row[-eighth:]) for row in (self.y, self.c)]
        net = (last[0] - first[0] - growth * (last[1] - first[1])) / eighth
        return net, noise * math.sqrt(2 / eighth)


def _returns(jumps: Jumps, cycling: Sequence[bool], growth: float) -> int:
    """Drops while cycling, none while idle, that together are what cycling added, give or take one of them: a pool that
    fills and empties. Foreign jumps are that only by rare chance: a leak worth noticing is smaller than they are."""
    falls = [jump for jump in (*jumps.single, *sum(jumps.regular, ())) if jump.size < 0]
    largest = -min((jump.size for jump in falls), default=0.0)
    falls = [jump for jump in falls if jump.size < -largest / 2]
    if not falls or not all(cycling[jump.at] for jump in falls):
        return 0
    total = -math.fsum(jump.size for jump in falls)
    return len(falls) if growth > largest / 2 and abs(growth - total) <= 1.2 * largest else 0


def _suspect(residual: Row) -> tuple[Row, int]:
    """The most striking outlier or step of a residual as a column (empty: none), and whether it is a step."""
    bends = [b - (a + c) / 2 for a, b, c in zip(residual, residual[1:], residual[2:], strict=False)]
    peak = max(range(len(bends)), key=lambda at: abs(bends[at]))
    # The fit leaves rounding behind where there is no noise.
    if abs(bends[peak]) > PULSE * spread(bends) + 1e-9:
        return [float(at == peak + 1) for at in range(len(residual))], 0
    found = edges(residual, 4)
    if not found:
        return [], 0
    jump = max(found, key=lambda jump: abs(jump.size))
    return ([float(at >= jump.at) for at in range(len(residual))], 1) if abs(jump.size) > 1e-9 else ([], 0)


def _staircase(places: Sequence[int], reads: int, count: int) -> Row:
    """Means over each bin of the number of jumps so far."""
    column = [0.0] * count
    cuts = [number * reads // count for number in range(count + 1)]
    order = sorted(places)
    passed = 0
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        column[number] = float(passed)
        while passed < len(order) and order[passed] < end:
            column[number] += (end - max(order[passed], start)) / (end - start)
            passed += 1
    return column


def _from_to(means: Row, first: float, last: float) -> Row:
    """As shares of the way from the first to the last."""
    return [(mean - first) / (last - first) for mean in means]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return float(sum(map(mul, a, b)))


def _without(basis: Sequence[Row], column: Row) -> Row:
    """What of a column lies outside the basis; twice, because once leaves rounding behind."""
    for _ in range(2):
        for q in basis:
            share = _dot(q, column)
            column = [x - share * y for x, y in zip(column, q, strict=True)]
    return column


def _orthonormal(columns: Sequence[Row]) -> list[Row]:
    basis: list[Row] = []
    for column in columns:
        fresh = _without(basis, column)
        length = math.sqrt(_dot(fresh, fresh))
        if length > 1e-3 * math.sqrt(_dot(column, column)):
            basis.append([x / length for x in fresh])
    return basis


@lru_cache(maxsize=4)
def _waves(count: int) -> tuple[tuple[Row, Row], ...]:
    """Cosine and sine of the slow frequencies, from one period per run on."""
    turn = 2 * math.pi / count
    return tuple(
        ([math.cos(turn * k * at) for at in range(count)], [math.sin(turn * k * at) for at in range(count)])
        for k in range(1, min(FAST, count // 3))
    )


def _power(wave: tuple[Row, Row], row: Row) -> float:
    cosine, sine = _dot(wave[0], row), _dot(wave[1], row)
    return cosine * cosine + sine * sine
