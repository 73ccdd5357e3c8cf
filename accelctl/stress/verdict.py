"""From readings to one word: clean, cache, leak, not ours, inconclusive.

In order of strength:

1. Exact counters must balance. What stays must grow with the number of cycles, N and then 2N, to be a leak; the same
   amount after both is a cache that was filled once.
2. Counters that others share but that are quiet: CPython's rule, every round after the warm-up adds something.
3. Noisy ones: cycling against idle (accelctl.stress.contrast). What grows in both alike is not ours.

Too little data is never "clean": it is inconclusive, with what would decide it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from accelctl.abi.lifecycle import FD, VA, Stage
from accelctl.model.verdict import (
    CACHE,
    CLEAN,
    CYCLE,
    FOREIGN,
    IDLE,
    INCONCLUSIVE,
    LEAK,
    VERDICTS,
    WARMUP,
    Judgement,
    Sample,
    Series,
    Verdict,
)
from accelctl.stress import refleak
from accelctl.stress.contrast import Contrast, contrast
from accelctl.stress.trend import median, spread, theil_sen
from accelctl.stress.words import BYTES, amount, forecast, listed, outlook, rate, stages_for

ROUNDS = 5
"""From so many equal steps on a series shows its own warm-up; fewer are runs of N and 2N."""

PAGE = 4096

PLAUSIBLE = 1e30
"""No kernel counter is that large (64 bit: 1.8e19); sums of readings below it stay finite."""

QUIET_ROUNDS = 12
QUIET_IDLE = 32
"""Idle readings that show that nothing moves by itself."""
Run = tuple[int, float]
"""Cycles of one run, and what was left afterwards."""


def judge(
    series: Series, stages: Sequence[Stage] = (), granule: float | None = None, resolve: float | None = None
) -> Judgement:
    """What follows from one counter. Never raises on numbers.

    ``stages`` are named as suspects. ``granule`` is the smallest amount that can leak, in the unit of the series
    (default: a page, or 1). ``resolve`` is the growth per cycle that a noisy counter must be able to exclude before it
    may be called clean (default: one granule in 1,000 cycles).
    """
    unit = granule or (PAGE if series.unit == BYTES else 1)
    samples = list(series.samples)
    if not all(map(PLAUSIBLE.__gt__, [abs(sample[2]) for sample in samples])):
        return _open(series, "a reading is no number that a counter can have", "readable values")
    if not series.exact and any(sample[3] == IDLE for sample in samples):
        return _noisy(series, samples, stages, unit, resolve or unit / 1000)
    points = _settled(samples)
    if len(points) < 2 or points[-1].cycles <= points[0].cycles:
        return _open(series, "too few readings to show growth", "a reading before the run and one after N cycles")
    if len(points) > ROUNDS:
        return _rounds(series, points, stages, unit)
    runs = [(b.cycles - a.cycles, b.value - a.value) for a, b in itertools.pairwise(points)]
    return judge_runs(series, runs, stages, unit)


def judge_runs(series: Series, runs: Sequence[Run], stages: Sequence[Stage] = (), granule: float = 1) -> Judgement:
    """An exact counter after runs of N and 2N cycles, each with what it left."""
    cycles, total = sum(n for n, _ in runs), math.fsum(left for _, left in runs)
    story = _story(series, runs)
    if total == 0:
        back = "" if not any(left for _, left in runs) else f" in the end ({story})"
        return _closed(series, CLEAN, f"balanced after {cycles:,} cycles{back}")
    if min(left for _, left in runs) < 0:
        return _open(series, f"it shrank: {story}", "runs of N and 2N cycles on a device that nobody else uses")
    if len(runs) < 2:
        return _open(
            series, f"one run left {story}", f"a run of {2 * cycles:,} cycles: a leak doubles, a cache does not"
        )
    if runs[-1][1] == 0 or len({left for _, left in runs}) == 1 < len({n for n, _ in runs}):
        return _closed(series, CACHE, f"one-off, does not grow with the number of cycles: {story}")
    per_cycle = _proportional(runs, granule)
    if per_cycle is None:
        return _open(series, f"growth does not follow the cycles: {story}", f"a run of {2 * runs[-1][0]:,} cycles")
    return _leak(series, per_cycle, None, story, stages)


def _story(series: Series, runs: Sequence[Run]) -> str:
    """``9 handles after 950 cycles, then 10 handles in another 950``: one book, read again after more cycles."""
    left = [amount(one, series.unit) for _, one in runs]
    first, *later = [f"{n:,}" for n, _ in runs]
    more = [f"then {one} in another {n}" for one, n in zip(left[1:], later, strict=True)]
    return ", ".join([f"{left[0]} after {first} cycles", *more])


def _proportional(runs: Sequence[Run], granule: float) -> float | None:
    """Growth per cycle where what is left is k N, or a one-off and k N; a granule of rounding per run is allowed."""
    cycles, total = sum(n for n, _ in runs), math.fsum(left for _, left in runs)
    if all(left > 0 and abs(left - total / cycles * n) <= granule for n, left in runs):
        return total / cycles
    (n, left), (more_n, more_left) = runs[0], runs[-1]
    slope = (more_left - left) / (more_n - n) if more_n != n else 0.0
    return slope if slope > 0 and left - slope * n >= 0 else None


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    """The readings that count: the last one of the warm-up is where counting starts."""
    rows = [sample for sample in samples if sample.block != WARMUP]
    before = [sample for sample in samples if sample.block == WARMUP]
    return [*before[-1:], *rows]


def _rounds(series: Series, points: Sequence[Sample], stages: Sequence[Stage], granule: float) -> Judgement:
    """Readings after every round: find the warm-up, then the plateau, the lows or the steady growth."""
    values = [point.value for point in points]
    cut = _warmup(refleak.deltas(values, 0))
    tail, rest = points[cut:], values[cut:]
    changes = refleak.deltas(rest, 0)
    warm = tail[0].cycles - series.samples[0].cycles
    grown = f" after a warm-up of {warm:,} cycles ({amount(values[cut] - values[0], series.unit)})" if cut else ""
    moves = [change for change in changes if change]
    if not moves:
        return _closed(series, CLEAN, f"flat{grown}", warm)
    if refleak.leaks(changes) and len(changes) >= refleak.ROUNDS:
        slope = theil_sen([float(point.cycles) for point in tail], rest)
        per_cycle = slope.slope if slope else math.nan
        interval = (slope.low, slope.high) if slope else None
        return _leak(series, per_cycle, interval, f"every one of {len(changes)} rounds added{grown}", stages, warm)
    half = len(rest) // 2
    if min(rest[half:]) <= min(rest[:half]) and series.kind != FD:
        return _closed(series, CLEAN, f"every low returns to {amount(min(rest), series.unit)}{grown}", warm)
    if series.exact:
        third = max(1, len(tail) // 3)
        marks = (tail[0], tail[third], tail[-1])
        runs = [(b.cycles - a.cycles, b.value - a.value) for a, b in itertools.pairwise(marks)]
        return judge_runs(series, runs, stages, granule)._replace(warmup_cut=warm)
    if len(moves) == 1:
        step = f"one step of {amount(moves[0], series.unit)}, flat before and after: not what a cycle does"
        return _closed(series, FOREIGN, step, warm)
    why = f"it moved in {len(moves)} of {len(changes)} rounds{grown}"
    return _open(series, why, "idle blocks between the cycling ones (20,000 cycles)", warm)


def _quiet_rounds(samples: Sequence[Sample]) -> list[Sample]:
    """Where no idle reading differs from the one before it, nobody else moves the counter: the reading before the first
    cycle and some of those while cycling. Empty: it is noisy, or there is too little to say so."""
    idle = sum(now.block == IDLE for now in samples)
    if any(a.block == b.block == IDLE and a.value != b.value for a, b in itertools.pairwise(samples)):
        return []
    cycling = [index for index, sample in enumerate(samples) if sample.block == CYCLE]
    if idle < QUIET_IDLE or len(cycling) < QUIET_ROUNDS or not cycling[0]:
        return []
    places = [cycling[len(cycling) * number // QUIET_ROUNDS - 1] for number in range(1, QUIET_ROUNDS + 1)]
    return [samples[cycling[0] - 1], *(samples[place] for place in places)]


def _warmup(changes: Sequence[float]) -> int:
    """Rounds at the start that are unlike the later half; at most half of all."""
    later = changes[len(changes) // 2 :]
    usual, width = median(later), spread(later)
    cut = 0
    while cut < len(changes) // 2 and abs(changes[cut] - usual) > 3 * width + 1e-9 * abs(usual):
        cut += 1
    return cut


def _noisy(
    series: Series, samples: Sequence[Sample], stages: Sequence[Stage], granule: float, resolve: float
) -> Judgement:
    """Cycling against idle."""
    ends = _quiet_rounds(samples)
    if ends:
        return _rounds(series, ends, stages, granule)._replace(exact=False)
    found = contrast(samples)
    warm = next((sample.cycles for sample in samples if sample.block != WARMUP), 0) - samples[0].cycles
    if isinstance(found, str):
        return _open(series, found, "cycling and idle blocks in turn, 20,000 cycles in all", warm, exact=False)
    per_cycle = found.growth / found.cycles
    interval = ((found.growth - found.reach) / found.cycles, (found.growth + found.reach) / found.cycles)
    judgement = _weigh(series, found, interval, granule, resolve, stages)
    return judgement._replace(per_cycle=per_cycle, interval=interval, warmup_cut=warm, exact=False)


def _weigh(
    series: Series,
    found: Contrast,
    interval: tuple[float, float],
    granule: float,
    resolve: float,
    stages: Sequence[Stage],
) -> Judgement:
    more = f"about {_more(found, resolve):,} cycles in cycling and idle blocks"
    if found.growth > found.reach and found.growth >= 2 * granule:
        if found.returns:
            story = f"cycling adds and gives back in one go ({found.returns} times): a pool that fills and empties"
            enough = found.returns >= 3
            return _closed(series, CLEAN, story) if enough else _open(series, story, more)
        story = f"{found.cycles:,} cycles added {amount(found.growth, series.unit)} ± {_plain(found.reach, series)}"
        story += f" more than idle did{_others(series, found, granule)}"
        return _leak(series, found.growth / found.cycles, interval, story, stages, exact=False)
    ceiling = max(interval[1], 0.0)
    above = f"a leak above {rate(ceiling, series.unit)} is excluded" if ceiling else "cycling adds nothing"
    decides = more if ceiling > resolve else ""
    if found.drift > found.drift_reach and found.drift >= 2 * granule:
        story = f"{amount(found.drift, series.unit)} of growth while cycling and idle alike; {above}"
        return Judgement(series.name, FOREIGN, f"not ours: {story}", decides=decides)
    if decides:
        return _open(series, f"noise hides what is below {rate(ceiling, series.unit)}", decides)
    return _closed(series, CLEAN, f"no growth from cycling; {above}")


def _plain(count: float, series: Series) -> str:
    return amount(float(f"{count:.2g}"), series.unit)


def _others(series: Series, found: Contrast, granule: float) -> str:
    """What was there besides, and was not taken for ours."""
    if abs(found.drift) > max(found.drift_reach, 2 * granule):
        return f" ({amount(found.drift, series.unit)} of other change is not ours)"
    return ""


def _more(found: Contrast, resolve: float) -> int:
    """Cycles after which the interval is half as wide as what must be seen: for noise with a limited memory the growth
    to see rises with n, the noise falls with its root."""
    ratio = 2 * found.reach / (resolve * found.cycles)
    cycles = found.cycles * max(1.25, math.pow(ratio, 2 / 3))
    return math.ceil(min(cycles, 1e15) / 1000) * 1000


def _leak(
    series: Series,
    per_cycle: float,
    interval: tuple[float, float] | None,
    story: str,
    stages: Sequence[Stage],
    warm: int = 0,
    exact: bool = True,
) -> Judgement:
    suspects = stages_for(series.kind or (BYTES if series.unit == BYTES else ""), stages)
    at_stake = forecast(series, per_cycle)
    what = "address space not reused after free" if series.kind == VA else "leak"
    why = f"{what}: {rate(per_cycle, series.unit, exact)}{listed(suspects)}; {story}{outlook(at_stake, exact)}"
    interval = interval or (per_cycle, per_cycle)
    return Judgement(series.name, LEAK, why, per_cycle, interval, at_stake, warm, "", suspects, exact)


def _closed(series: Series, verdict: str, why: str, warm: int = 0) -> Judgement:
    word = {FOREIGN: "not ours"}.get(verdict, verdict)
    rising = 0.0 if verdict == CLEAN and series.exact else None
    return Judgement(series.name, verdict, f"{word}: {why}", rising, warmup_cut=warm, exact=series.exact)


def _open(series: Series, why: str, decides: str, warm: int = 0, exact: bool = True) -> Judgement:
    why = f"inconclusive: {why}"
    return Judgement(series.name, INCONCLUSIVE, why, warmup_cut=warm, decides=decides, exact=exact and series.exact)


def conclude(
    judgements: Iterable[Judgement], unreadable: Sequence[tuple[str, str]] = (), simulated: bool = False
) -> Verdict:
    """One word over all counters.

    Any leak is one. Otherwise exact counters outrank noisy ones: a neighbour's growth or noise does not take back what
    balanced books show. Without any exact counter, the noisy ones decide.
    """
    ordered = sorted(judgements, key=lambda judgement: -VERDICTS.index(judgement.verdict))
    exact = [judgement for judgement in ordered if judgement.exact and judgement.verdict != FOREIGN]
    deciding = exact or ordered
    leak = bool(ordered) and ordered[0].verdict == LEAK
    overall = LEAK if leak else deciding[0].verdict if deciding else INCONCLUSIVE
    books = tuple(judgement.counter for judgement in ordered if judgement.verdict != INCONCLUSIVE)
    return Verdict(overall, tuple(ordered), books, tuple(unreadable), simulated)
