"""All figures in turns: one sample of each per round, and its floor in the same moment.

What a machine does meanwhile lasts seconds, a sample milliseconds. Were each figure measured to its end before the next
begins, one bad second would be all of one figure and nothing of another; in turns it is one sample of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from accelctl.abi.lifecycle import NotOffered
from accelctl.accept.bench.statistics import spread
from accelctl.errors import NoDeviceError
from accelctl.model.benchreport import SECONDS, Ceiling, Figure, Skipped
from accelctl.model.stressreport import FAIL, SKIP

LEAST, MOST = 7, 41
"""Rounds. With 7 on either side, things that never overlap can be told apart among 80 figures; more than 41 are not
worth the time."""
WANTED = 21
"""With so many a tenth more time is told from noise of 3 %, with forty figures compared at once."""
SAMPLE_S = 0.01
"""What one sample and its floor may take together, where their calls are that short."""
BURST_S = 0.0002
"""Calls that are shorter are timed several at a time."""
FEWEST, ENOUGH, MANY = 2, 6, 25
"""Bursts of a sample, the floor's between them. The best one counts: what else runs on the machine only ever adds.
ENOUGH: so many are kept where fewer bursts make room for more rounds."""
OVERDRAWN = 1.5
"""What does not fit LEAST rounds into so many times the budget is left out, the slowest first."""

Call = Callable[[], object]
clock = time.perf_counter


class Task(NamedTuple):
    """One figure to come. ``call`` does it once; ``amount`` is what one call moves or does (bytes, ops, cycles), so
    that a bandwidth or rate is amount / time and a time is time / amount."""

    part: str
    name: str
    unit: str
    call: Call
    amount: float = 1.0
    floor: Call | None = None
    floor_name: str = ""
    floor_amount: float | None = None
    """As ``amount``, of the floor; None: the same."""
    ceiling: Ceiling | None = None
    ceiling_is_floor: str = ""
    """Not empty: the floor's median is the ceiling, under this name."""
    own_clock: bool = False
    """``call`` returns the seconds that count, because more is done than is measured."""
    detail: str = ""


@dataclass
class Running:
    """A task and what it has given."""

    task: Task
    calls: int = 1
    floor_calls: int = 1
    """Of one burst."""
    bursts: int = FEWEST
    cost_s: float = 0.0
    samples: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    def warm(self, share_s: float) -> None:
        """A few times, unmeasured; then as many bursts a sample as fit."""
        once, floor = _first(self.task.call), 0.0
        self.calls = _calls(once)
        if self.task.floor is not None:
            floor = _first(self.task.floor)
            self.floor_calls = _calls(floor)
        both = once * self.calls + floor * self.floor_calls
        self.bursts = max(FEWEST, min(MANY, int(share_s / both)))
        self.cost_s = self.bursts * both

    def round(self) -> None:
        """One sample, and one of the floor: burst by burst in turns, the best of each."""
        task, own, floors = self.task, [], []
        for _ in range(self.bursts):
            if task.floor is not None:
                floors.append(_burst(task.floor, self.floor_calls, False))
            own.append(_burst(task.call, self.calls, task.own_clock))
        self.samples.append(min(own))
        self.floors += [min(floors)] if floors else []

    def figure(self) -> Figure:
        """What it came to. An interrupted round is cut off: samples and floors are pairs."""
        task = self.task
        count = min(len(self.samples), len(self.floors)) if task.floor is not None else len(self.samples)
        amount = task.amount if task.floor_amount is None else task.floor_amount
        samples = tuple(_in_unit(one, task.unit, task.amount) for one in self.samples[:count])
        floor = tuple(_in_unit(one, task.unit, amount) for one in self.floors[:count])
        floor_spread = spread(floor) if floor else None
        ceiling = task.ceiling
        if task.ceiling_is_floor and floor_spread is not None:
            ceiling = Ceiling(floor_spread.median, task.ceiling_is_floor, "measured in turns with it", computed=False)
        return Figure(
            part=task.part,
            name=task.name,
            unit=task.unit,
            samples=samples,
            spread=spread(samples),
            floor_name=task.floor_name if floor else "",
            floor=floor,
            floor_spread=floor_spread,
            ratio=spread([a / b for a, b in zip(samples, floor, strict=True)]) if floor else None,
            ceiling=ceiling,
            detail=task.detail,
        )


def not_measured(what: str, why: str, error: Exception) -> Skipped:
    """What the device does not offer is a skip; what it refused or did wrong has failed."""
    offered = not isinstance(error, (NotOffered, NoDeviceError)) and getattr(error, "kind", "") != "not_supported"
    return Skipped(what, why, FAIL if offered else SKIP)


def _left_out(task: Task, why: str, error: Exception) -> Skipped:
    return not_measured(f"{task.part}/{task.name}", why, error)


def _first(call: Call) -> float:
    """Seconds of a call, the best of three: the first ones make room in caches and pages."""
    return min(_burst(call, 1, False) for _ in range(3))


def _calls(once_s: float) -> int:
    return max(1, min(10_000, int(BURST_S / max(once_s, 1e-9))))


def _burst(call: Call, calls: int, own_clock: bool) -> float:
    """Seconds a call."""
    if own_clock:
        return sum(cast("float", call()) for _ in range(calls)) / calls
    start = clock()
    for _ in range(calls):
        call()
    return max(clock() - start, 1e-9) / calls


def _in_unit(seconds: float, unit: str, amount: float) -> float:
    """A time for one, or so much a second."""
    return seconds / amount if unit == SECONDS else amount / seconds


class Rounds:
    """The loop. ``broken``: what ended it before its time."""

    def __init__(self, tasks: Iterable[Task], seconds: float, tick: Callable[[str, int, int], None]) -> None:
        self._seconds, self._tick = seconds, tick
        self.running = [Running(task) for task in tasks]
        self.skipped: list[Skipped] = []
        self.count = 0

    def warm(self, failed: Callable[[Task, Exception], str]) -> None:
        """Every task once. One that fails is left out, for the reason that ``failed`` gives; it may raise."""
        share = min(SAMPLE_S, self._seconds / (WANTED * max(1, len(self.running))))
        good = []
        for number, one in enumerate(self.running):
            self._tick(f"{one.task.part}: {one.task.name}", number, len(self.running))
            try:
                one.warm(share)
            except Exception as error:
                self.skipped.append(_left_out(one.task, failed(one.task, error), error))
                continue
            good.append(one)
        self.running = self._affordable(good)

    def _affordable(self, all_of_them: Sequence[Running]) -> list[Running]:
        kept = sorted(all_of_them, key=lambda one: one.cost_s)
        limit = self._seconds * OVERDRAWN / LEAST
        while len(kept) > 1 and sum(one.cost_s for one in kept) > limit:
            gone = kept.pop()
            why = f"one sample takes {gone.cost_s:.2g} s: too long for --seconds {self._seconds:g}"
            self.skipped.append(Skipped(f"{gone.task.part}/{gone.task.name}", why))
        spare = self._seconds / WANTED / max(1e-9, sum(one.cost_s for one in kept))
        for one in kept:
            one.bursts = max(min(one.bursts, ENOUGH), int(one.bursts * min(1.0, spare)))
        chosen = {id(one) for one in kept}
        return [one for one in all_of_them if id(one) in chosen]

    def run(self, failed: Callable[[Task, Exception], str]) -> None:
        """Rounds until the time is up: at least LEAST, but not for more than twice the time; at most MOST."""
        begin = clock()
        while self.running and self.count < MOST:
            spent = clock() - begin
            if spent >= self._seconds * (1 if self.count >= LEAST else 2):
                break
            self._tick(f"round {self.count + 1}", self.count, MOST)
            for one in list(self.running):
                try:
                    one.round()
                except Exception as error:
                    self.skipped.append(_left_out(one.task, failed(one.task, error), error))
                    self.running.remove(one)
            self.count += 1

    def figures(self) -> tuple[Figure, ...]:
        """Of all that has samples."""
        return tuple(one.figure() for one in self.running if one.samples and (one.task.floor is None or one.floors))
