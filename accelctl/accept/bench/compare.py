"""Two reports: what takes longer now, what does not, and what the noise hides.

Each figure is compared by its ratio to the floor that was measured in turns with it, where both reports have the same
floor: a machine that runs slower today slows both. Nothing of accelctl is in a floor, so nothing of it is divided out.

How many times as long it takes is known within an interval that holds with 95 % (statistics.quotient). With so many
figures at once some interval misses by chance, so a change counts only where one that is wide enough for all of them
together (1 - 0.05 / k each) still shows one. With a limit of 5 %:

    slower   the interval is above 1.05, and the wide one above 1: a regression
    faster   the same the other way round: below 1 / 1.05, and below 1
    same     the interval ends below 1.05: no regression, whatever else it is
    hidden   anything else: the noise hides the answer
    missing  the base has it, it was asked for, and it could not be measured now: nobody knows

So runs of equal things give a "slower" anywhere in at most 5 % of the comparisons, whatever the noise, as long as it is
alike in both runs; what differs between runs is what the limit is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log

from accelctl.accept.bench.statistics import COVERAGE, quotient, spread
from accelctl.errors import UsageError
from accelctl.model.benchreport import (
    FASTER,
    HIDDEN,
    MISSING,
    NEW,
    SAME,
    SLOWER,
    UNASKED,
    BenchReport,
    Change,
    Comparison,
    Figure,
    Fingerprint,
)

MAX_REGRESS = 5.0
"""Percent."""
MOST_SECONDS = 600
"""That are still worth typing."""


def compare(base: BenchReport, now: BenchReport, max_regress: float = MAX_REGRESS) -> Comparison:
    """UsageError where the base is of another device or machine, or the limit makes no sense."""
    checked(max_regress)
    same_place(base.fingerprint, now.fingerprint)
    before = {figure.id: figure for figure in base.figures}
    pairs = [(before[one.id], one) for one in now.figures if one.id in before and before[one.id].unit == one.unit]
    together = 1 - (1 - COVERAGE) / max(1, len(pairs))
    limit = 1 + max_regress / 100
    rows = [_change(old, new, together, limit) for old, new in pairs]
    met = {row.id for row in rows}
    rows += [_alone(one, NEW) for one in now.figures if one.id not in met]
    rows += [_alone(one, MISSING) for one in base.figures if one.id not in met and one.part in now.parts]
    unasked = dict.fromkeys(one.part for one in base.figures if one.part not in now.parts)
    rows += [Change(part, UNASKED, None, None, None, "") for part in unasked]
    return Comparison(
        rows=tuple(rows),
        max_regress=max_regress,
        coverage=COVERAGE,
        simulated=now.simulated,
        device=now.device,
        differs=differs(base.fingerprint, now.fingerprint),
        settle=_settle(rows, now, limit),
    )


def checked(max_regress: float) -> float:
    """UsageError for a limit that is none."""
    if not 0 <= max_regress <= 1000:
        raise UsageError(f"--max-regress {max_regress:g}: percent, from 0 to 1000")
    return max_regress


def same_place(base: Fingerprint, now: Fingerprint) -> None:
    """UsageError that says what differs, where figures of two things would be compared."""
    wrong = [f"{name} {old!r}, here {now.place[name]!r}" for name, old in base.place.items() if old != now.place[name]]
    if wrong:
        raise UsageError(f"the base is of another device or machine: {'; '.join(wrong)}", "accelctl bench --save BASE")


def differs(base: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """Versions that are not the same, and the link."""
    names = dict.fromkeys((*base.versions, *now.versions))
    pairs = [(name, base.versions.get(name, "none"), now.versions.get(name, "none")) for name in names]
    pairs.append(("link", base.link or "none", now.link or "none"))
    return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


def _change(old: Figure, new: Figure, together: float, limit: float) -> Change:
    paired = bool(old.floor and new.floor and old.floor_name == new.floor_name)
    one, other = (_ratios(old), _ratios(new)) if paired else (old.samples, new.samples)
    above, below = (one, other) if new.more_is_better else (other, one)
    found, wide = quotient(above, below), quotient(above, below, together)
    by = f"against {new.floor_name}" if paired else "by itself"
    made = Change(new.id, HIDDEN, found, spread(old.samples), spread(new.samples), new.unit, by)
    if found is None or wide is None:
        return made._replace(detail=f"{len(one)} and {len(other)} samples are too few")
    if found.low > limit and wide.low > 1:
        return made._replace(word=SLOWER)
    if found.high < 1 / limit and wide.high < 1:
        return made._replace(word=FASTER)
    return made._replace(word=SAME) if found.high <= limit else made


def _ratios(figure: Figure) -> list[float]:
    return [a / b for a, b in zip(figure.samples, figure.floor, strict=True)]


def _alone(figure: Figure, word: str) -> Change:
    ours = spread(figure.samples)
    base, now = (None, ours) if word == NEW else (ours, None)
    return Change(figure.id, word, None, base, now, figure.unit)


def _settle(rows: Sequence[Change], now: BenchReport, limit: float) -> str:
    """What would show what is hidden: more rounds narrow an interval with their square root, fewer figures at once
    make each a little narrower."""
    hidden = [row for row in rows if row.word == HIDDEN]
    if not hidden:
        return ""
    parts = dict.fromkeys(row.id.partition("/")[0] for row in hidden)
    options = " ".join(f"--part {part}" for part in parts) if len(parts) <= 3 else ""
    times = max(_times(row, limit) for row in hidden)
    seconds = ceil(max(now.seconds, 1.0) * times / 10) * 10 if times < inf else inf
    if seconds <= MOST_SECONDS:
        return f"both runs with --seconds {seconds:.0f}" + (f" {options}" if options else "")
    return "a quieter machine, or both runs with --seconds 120" + (f" {options}" if options else " and fewer parts")


def _times(row: Change, limit: float) -> float:
    """So many times as many samples as there were."""
    if row.slowdown is None:
        return 3.0
    width = log(row.slowdown.high / row.slowdown.low) / 2
    room = abs(log(row.slowdown.median / limit))
    return max(1.5, (width / room) ** 2) if room > 0 else inf
