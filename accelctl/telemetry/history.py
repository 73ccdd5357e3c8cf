"""What was before: series of numbers on one axis of ticks, in memory that does not grow.

Of the last ticks all are kept; of those before them fewer and fewer, evenly spaced, so that ten hours need as much
memory as ten minutes. What is made of series (rates, growth, a leak, the time until something is full) are plain
functions of times and values, below.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf, isnan, nan
from statistics import median
from typing import NamedTuple

from accelctl.model.snapshot import ProcessLevel, Snapshot, key

POINTS = 600
"""Ticks that are held."""
MOST_SERIES = 8192
GROWTH_S = 60.0
"""Growth per minute is seen over a minute."""
BLOCK_S, LEAST_BLOCKS = 3.0, 6
_SECOND_NS = 1_000_000_000
_TABLES = ("devices", "pools", "queues", "spaces", "engines")


class Rise(NamedTuple):
    """Something rises steadily: so much a second, since so many seconds."""

    per_s: float
    since_s: float


class History:
    """Series by ``snapshot.key``; of a process "memory", the sum over its regions."""

    def __init__(self, points: int = POINTS) -> None:
        if points < 8:
            raise ValueError("a history of fewer than 8 ticks")
        self.points = points
        self._times = array("d")
        self._series: dict[str, array[float]] = {}
        self._coarse = 0
        """Ticks at the front that are thinned: every ``_stride``-th of those that went there."""
        self._stride, self._moved = 1, 0
        self._rises: dict[str, Rise | None] = {}

    def __len__(self) -> int:
        """How many series there are."""
        return len(self._series)

    def take(self, snapshot: Snapshot) -> None:
        """Remember one tick. One whose clock went back (a jump in a recording) begins anew."""
        now = snapshot.monotonic_ns / _SECOND_NS
        if self._times and now <= self._times[-1]:
            self._times, self._series, self._coarse, self._stride, self._moved = array("d"), {}, 0, 1, 0
        self._rises.clear()
        new = dict(_numbers(snapshot))
        for name, values in self._series.items():
            values.append(new.pop(name, nan))
        for name, value in new.items():
            if len(self._series) < MOST_SERIES:
                self._series[name] = array("d", [nan]) * len(self._times)
                self._series[name].append(value)
        self._times.append(now)
        if len(self._times) > self.points:
            self._thin()

    def _thin(self) -> None:
        """A quarter of the ticks goes to the thinned ones; series that are silent since long are forgotten."""
        begin, end = self._coarse, self._coarse + self.points // 4
        skip = -self._moved % self._stride
        kept = len(range(begin + skip, end, self._stride))
        self._moved += end - begin
        halve = begin + kept > self.points // 2
        for values in (self._times, *self._series.values()):
            values[begin:end] = values[begin + skip : end : self._stride]
            if halve:
                values[: begin + kept] = values[: begin + kept : 2]
        self._coarse = begin + kept
        if halve:
            self._coarse, self._stride = (self._coarse + 1) // 2, self._stride * 2
        fine = self._coarse
        self._series = {name: values for name, values in self._series.items() if not all(map(isnan, values[fine:]))}

    # -- what dashboards ask --

    def values(self, name: str) -> list[float]:
        """One number a tick, the newest last; NaN where it was missing. Only of the time in which no tick is left
        out."""
        return list(self._series.get(name, ())[self._coarse :])

    def span_s(self) -> float:
        """Seconds between the oldest and the newest tick of :meth:`values`."""
        return self._times[-1] - self._times[self._coarse] if self._times else 0.0

    def whole(self, name: str) -> list[tuple[float, float]]:
        """(monotonic seconds, value) of all that is held, thinned as it gets older; without what was missing."""
        pairs = zip(self._times, self._series.get(name, ()), strict=False)
        return [pair for pair in pairs if not isnan(pair[1])]

    def rate(self, name: str) -> float | None:
        """How much a count rose a second, between the last two ticks. None where it is not known, or was set back."""
        values = self._series.get(name)
        if values is None or len(values) < 2:
            return None
        return rate(values[-2], values[-1], self._times[-1] - self._times[-2])

    def growth(self, name: str) -> float | None:
        """How much a level grew in the last minute; see :func:`growth`."""
        values = self._series.get(name)
        return None if values is None else growth(self._times, values)

    def rise(self, name: str) -> Rise | None:
        """Whether it rises steadily; see :func:`rise`. Asked once a tick."""
        if name not in self._rises:
            values = self._series.get(name)
            self._rises[name] = None if values is None else rise(self._times, values)
        return self._rises[name]

    def leak(self, process: str) -> Rise | None:
        """Of the memory of "PID@STARTED"."""
        return self.rise(key("processes", process, "memory"))

    def leaks(self, process: str) -> bool:
        """Whether the memory of "PID@STARTED" rises steadily."""
        return self.leak(process) is not None

    def full_in_s(self, space: str) -> float | None:
        """Seconds until an address space has nothing free; None where it does not grow steadily."""
        return self._left(key("spaces", space, "free_bytes"), key("spaces", space, "taken_bytes"))

    def pool_full_in_s(self, pool: str) -> float | None:
        """The same of a pool with a capacity."""
        return self._left(key("pools", pool, "free_bytes"), key("pools", pool, "in_use_bytes"))

    def stalled_s(self, queue: str) -> float:
        """How long a queue has had work in flight without finishing any."""
        running, finished = (self._series.get(key("queues", queue, name), ()) for name in ("running", "finished"))
        return stalled_s(self._times, running, finished) if running and finished else 0.0

    def _left(self, free: str, taken: str) -> float | None:
        values, found = self._series.get(free), self.rise(taken)
        if found is None or values is None or isnan(values[-1]):
            return None
        return max(0.0, values[-1]) / found.per_s


def _numbers(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """Every number of a Snapshot by its key."""
    for table in _TABLES:
        for row in getattr(snapshot, table):
            start = f"{table}/{row.id}/"
            for name, value in vars(row).items():
                if type(value) is int or type(value) is float:
                    yield start + name, value
    for pool in snapshot.pools:
        if pool.capacity_bytes is not None and pool.in_use_bytes is not None:
            yield key("pools", pool.id, "free_bytes"), pool.capacity_bytes - pool.in_use_bytes
    for space in snapshot.spaces:
        if space.size_bytes is not None and space.free_bytes is not None:
            yield key("spaces", space.id, "taken_bytes"), space.size_bytes - space.free_bytes
    for process in snapshot.processes:
        yield key("processes", f"{process.pid}@{process.started}", "memory"), held_bytes(process)
    yield key("cost", "self", "cpu_ratio"), snapshot.cost.cpu_ratio


def held_bytes(process: ProcessLevel) -> int:
    """What a process holds of all devices."""
    return sum(size for _, _, size in process.memory)


# -- the maths --


def rate(before: float, after: float, seconds: float) -> float | None:
    """How much a count rose a second. None where either is missing, no time passed, or it went back: then it is another
    count, of a driver or a service that began again."""
    if seconds <= 0 or not after >= before:
        return None
    return (after - before) / seconds


def growth(times: Sequence[float], values: Sequence[float], window_s: float = GROWTH_S) -> float | None:
    """Rise per minute over the last ``window_s``: between the medians of its first and its last third, which a few wild
    values do not move. None for fewer than three values."""
    found = []
    for at in range(len(times) - 1, -1, -1):
        if times[-1] - times[at] > window_s:
            break
        if not isnan(values[at]):
            found.append((times[at], values[at]))
    third = len(found) // 3
    if not third:
        return None
    late, early = found[:third], found[-third:]
    (seconds, high), (ago, low) = ((median(t for t, _ in part), median(v for _, v in part)) for part in (late, early))
    return (high - low) / (seconds - ago) * 60.0


def rise(times: Sequence[float], values: Sequence[float]) -> Rise | None:
    """Whether the newest values belong to a steady rise.

    Time is cut into equal blocks, back from now. In a rise the lowest value of each block lies above that of the block
    before, and the highest never below: a plateau, a single step and the falls of a garbage collector end it (MEM-06).
    Six blocks are the least, so a rise is named after 18 s, and forgotten when it has rested for about a quarter of its
    time. Blocks of 3, 6, 12 ... seconds are tried, because a slow leak rests for longer than a short block; the one in
    which the rise is longest counts. The slope is that of its newer half: a start-up comes before.
    """
    if isnan(sum(values)):
        pairs = [(at, value) for at, value in zip(times, values, strict=True) if not isnan(value)]
        times, values = [at for at, _ in pairs], [value for _, value in pairs]
    best: Rise | None = None
    span, block_s = (times[-1] - times[0] if times else 0.0), BLOCK_S
    while span >= (LEAST_BLOCKS - 1) * block_s:
        lows = _rising_lows(times, values, block_s)
        if len(lows) >= LEAST_BLOCKS and (best is None or len(lows) * block_s > best.since_s):
            half = len(lows) // 2
            best = Rise((lows[0] - lows[half]) / (half * block_s), len(lows) * block_s)
        block_s *= 2
    return best


def _rising_lows(times: Sequence[float], values: Sequence[float], block_s: float) -> list[float]:
    """Lowest values of the whole blocks that rise, newest first. A block without a value (a gap) ends it."""
    lows: list[float] = []
    low, limit, end, edge = inf, inf, len(times), times[-1]
    while True:
        edge -= block_s
        begin = bisect_right(times, edge, 0, end)
        if not 0 < begin < end:
            return lows
        block = values[begin:end]
        if max(block) > limit or min(block) >= low:
            return lows
        low, limit, end = min(block), max(block), begin
        lows.append(low)


def stalled_s(times: Sequence[float], running: Sequence[float], finished: Sequence[float]) -> float:
    """How long work has been in flight without any being finished, as far back as the ticks go."""
    at = len(times) - 1
    while at >= 0 and running[at] > 0 and finished[at] == finished[-1]:
        at -= 1
    return times[-1] - times[at + 1] if at < len(times) - 1 else 0.0
