"""Sudden changes in a noisy counter: others allocating and freeing, caches that trim themselves, or our own leak.

A jump of hundreds of objects would drown the slope of one object in a thousand cycles, so each one found becomes a term
of its own in the fit. But a jump may also *be* the leak. Three kinds are told apart: jumps of equal size that come
while cycling and practically never in idle are ours and stay in the data; equal ones at a regular distance are one
sawtooth with one height; the rest are single events with a height each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from accelctl.stress.trend import median, spread

WINDOW = 16
"""Readings on either side that are averaged: noise that is as large as the jump itself still shows it."""

THRESHOLD = 6.5
"""Standard deviations: in 40,000 readings of normal noise none is that far out by chance."""

ALIKE, OURS, ONE_SIDED = 4, 10, 1e-3
"""Jumps that make a sawtooth; jumps that can show that they are ours, and the chance that they show it wrongly."""

SINGLE = 25
"""More single jumps than that are noise, not events: a height for each would leave nothing to measure with."""


class Jump(NamedTuple):
    """At the reading with this index the level changes by ``size``."""

    at: int
    size: float


class Jumps(NamedTuple):
    """``single`` ones; the positions of each ``regular`` sawtooth; ``ours`` which stay in the data."""

    single: tuple[Jump, ...]
    regular: tuple[tuple[Jump, ...], ...]
    ours: tuple[Jump, ...]


def edges(values: Sequence[float], window: int = WINDOW) -> list[Jump]:
    """Where the mean of the next readings differs from that of the last ones by far more than it usually does."""
    sums = [0.0, *accumulate(values)]
    if len(values) < 2 * window:
        return []
    steps = [(c - 2 * b + a) / window for a, b, c in zip(sums, sums[window:], sums[2 * window :], strict=False)]
    some = steps[:: max(1, len(steps) // 4000)]  # enough for a median, and sorting all of them is most of the time
    middle = median(some)
    # Where the counter is quiet, the sums leave rounding behind.
    limit = THRESHOLD * spread(some) + 1e-9 * max(map(abs, values))
    low, high = middle - limit, middle + limit
    far = [(at, step - middle) for at, step in enumerate(steps, window) if not low <= step <= high]
    return [Jump(*max(group, key=lambda pair: abs(pair[1]))) for group in _groups(far)]


def _groups(far: list[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Neighbours of one sign."""
    groups: list[list[tuple[int, float]]] = []
    for pair in far:
        last = groups[-1][-1] if groups else None
        if last is not None and pair[0] - last[0] <= 2 and (pair[1] > 0) == (last[1] > 0):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def sort_out(values: Sequence[float], cycling: Sequence[bool], window: int = WINDOW) -> Jumps:
    """Find the jumps and tell the three kinds apart. ``cycling``: was the run cycling at that reading?"""
    found = edges(values, window)
    share = sum(cycling) / len(cycling)
    regular: list[tuple[Jump, ...]] = []
    ours: list[Jump] = []
    for rising in (False, True):
        alike = _alike([jump for jump in found if (jump.size > 0) is rising])
        if len(alike) >= OURS and _chance(sum(cycling[jump.at] for jump in alike), len(alike), share) < ONE_SIDED:
            ours += alike
        else:
            grid = max((_grid(alike[start:], len(values)) for start in range(3)), key=len)
            regular += [tuple(grid)] if grid else []
    if regular:  # a step beside a drop of the sawtooth only shows when that is gone
        found = edges(_without(values, sum(regular, ())), window)
    rest = tuple(jump for jump in found if jump not in ours)
    return Jumps(rest if len(rest) <= SINGLE else (), tuple(regular), tuple(ours))


def _without(values: Sequence[float], jumps: Sequence[Jump]) -> list[float]:
    """The values with these jumps undone."""
    changes = [0.0] * len(values)
    for jump in jumps:
        changes[jump.at] -= jump.size
    return [value + change for value, change in zip(values, accumulate(changes), strict=True)]


def _alike(jumps: list[Jump]) -> list[Jump]:
    """The largest group of about one size."""
    best: list[Jump] = []
    for jump in jumps[:: max(1, len(jumps) // 50)]:
        near = [other for other in jumps if abs(other.size - jump.size) <= 0.2 * abs(jump.size)]
        best = max(best, near, key=len)
    return best


def _chance(hits: int, count: int, share: float) -> float:
    """That so many of them, or more, fall into cycling blocks when they do not care about cycling."""
    return math.fsum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits, count + 1))


def _grid(jumps: list[Jump], length: int) -> list[Jump]:
    """The jumps at a regular distance from the first one, all of one size, missed ones filled in; else none."""
    if len(jumps) < ALIKE:
        return []
    period = median([b.at - a.at for a, b in pairwise(jumps)])
    on = {0: jumps[0].at}
    place, last = 0, jumps[0].at
    for jump in jumps[1:]:
        steps = round((jump.at - last) / period)
        if steps and abs(jump.at - last - steps * period) <= 0.03 * period + 4:
            place, last = place + steps, jump.at
            on[place] = last
    if len(on) < ALIKE:
        return []
    on = _near(jumps, *_middle_line(on))
    if len(on) < max(ALIKE, 0.7 * len(jumps)):
        return []
    period, start = _line(on)
    # As precise as all of them together where they are strictly periodic; else each where it was seen.
    strict = spread([at - start - k * period for k, at in on.items()]) <= 2
    size = median([jump.size for jump in jumps])
    first, end = math.ceil((1 - start) / period), math.floor((length - 1 - start) / period)
    places = {k: round(start + k * period) for k in range(first, end + 1)}
    if len(on) < 0.7 * len(places):  # a sawtooth of others does not pause while we do
        return []
    if not strict:
        places.update(on)
    return [Jump(at, size) for at in places.values()]


def _middle_line(on: dict[int, int]) -> tuple[float, float]:
    """(period, start) by medians over pairs half the run apart: a step that was taken for a tooth does not move it."""
    pairs, half = list(on.items()), len(on) // 2
    period = median([(b - a) / (j - i) for (i, a), (j, b) in zip(pairs, pairs[half:], strict=False)])
    return period, median([at - k * period for k, at in pairs])


def _near(jumps: list[Jump], period: float, start: float) -> dict[int, int]:
    """Tooth -> place of the jump that is nearest to where it should be."""
    on: dict[int, int] = {}
    for jump in jumps:
        k = round((jump.at - start) / period)
        off = abs(jump.at - start - k * period)
        if off <= 0.01 * period + 4 and off <= abs(on.get(k, math.inf) - start - k * period):
            on[k] = jump.at
    return on


def _line(on: dict[int, int]) -> tuple[float, float]:
    """(slope, value at 0) of the least-squares line."""
    x, y = sum(on) / len(on), sum(on.values()) / len(on)
    slope = sum((k - x) * (at - y) for k, at in on.items()) / sum((k - x) ** 2 for k in on)
    return slope, y - slope * x
