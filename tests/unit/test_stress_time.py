"""--duration is what a run takes, and what a block costs is known before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from accelctl.abi.lifecycle import Counter
from accelctl.model.verdict import CYCLE, IDLE
from accelctl.stress.conductor import Conductor, Crew
from accelctl.stress.contrast import BlockPlan, block_plan
from accelctl.stress.pace import FEWEST_READS, SMALLEST, Pace, cut, fitting, longest_of, share_of
from accelctl.stress.plan import Plan
from accelctl.stress.worker import CounterInfo, Progress
from tests.helpers import run_cli


class Clock:
    """Time that only passes when somebody works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Slow:
    """A crew whose cycles, readings and idling cost what they are told to."""

    size = 1

    def __init__(self, clock: Clock, cycle: Callable[[int], float], look: float, noisy: bool, simulated: bool) -> None:
        self.clock, self.cycle, self.look, self.noisy, self.simulated = clock, cycle, look, noisy, simulated
        self.done = 0

    def infos(self) -> list[CounterInfo]:
        return [
            CounterInfo("exact", "handles", "file", "x", True, 0.0),
            *([CounterInfo("noisy", "bytes", "device", "x", False, 0.0)] if self.noisy else []),
        ]

    def ask(self, command: str, argument: Any = None) -> list[object]:
        took = 0.0
        if command in ("turn", "run"):
            took = sum(self.cycle(self.done + number) for number in range(argument))
            self.done += argument
        if command == "rest":
            took = argument
        if command in ("turn", "rest"):
            self.clock.now += self.look
        self.clock.now += 0.0 if command == "rest" and self.simulated else took
        progress = Progress(argument if command != "rest" else 0, took)
        values = {"noisy": 4096} if self.noisy else {}
        answers: dict[str, object] = {
            "run": progress,
            "turn": (progress, values),
            "rest": (progress, values),
            "read": {"exact": 0, **values},
        }
        return [answers.get(command)]


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("seconds", [1.0, 10.0])
@pytest.mark.parametrize(
    "cycle",
    [lambda number: 1e-4, lambda number: 1e-3, lambda number: 1e-4 if number < 2000 else 4e-4],
    ids=["fast", "slow", "slower later"],
)
def test_a_time_is_kept_whatever_things_cost(
    monkeypatch: pytest.MonkeyPatch, cycle: Callable[[int], float], seconds: float, simulated: bool, noisy: bool
) -> None:
    clock = Clock(monkeypatch)
    begin = clock.now
    crew: Crew = Slow(clock, cycle, 2e-4, noisy, simulated)
    conductor = Conductor(crew, Plan(seconds=seconds), reads=4800 if simulated else 40)
    conductor.go()
    took = clock.now - begin
    assert took <= seconds * 1.25
    assert took >= seconds * 0.6
    assert conductor.stop == ""
    noises = [len(one.samples) for one in conductor.series() if one.name == "noisy"]
    assert all(count >= 256 for count in noises)


def test_so_many_cycles_are_that_many_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    crew: Crew = Slow(Clock(monkeypatch), lambda number: 0.1, 0.0, False, False)
    conductor = Conductor(crew, Plan(cycles=3000, seconds=1))
    conductor.go()
    assert conductor.cycles == 64 + 3000
    assert not conductor.out_of_time


@pytest.mark.parametrize(("cycles", "cost", "cut_short"), [(3000, 1e-5, False), (300_000, 1e-3, True)])
def test_with_cycles_and_a_time_the_first_that_ends_holds(
    monkeypatch: pytest.MonkeyPatch, cycles: int, cost: float, cut_short: bool
) -> None:
    clock = Clock(monkeypatch)
    crew: Crew = Slow(clock, lambda number: cost, 0.0, False, False)
    conductor = Conductor(crew, Plan(cycles=cycles, seconds=10, capped=True))
    conductor.go()
    assert conductor.out_of_time is cut_short
    assert clock.now - 100 <= 12
    assert (conductor.cycles < cycles) is cut_short


def test_a_time_that_is_too_short_for_a_verdict_still_has_enough_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    crew: Crew = Slow(Clock(monkeypatch), lambda number: 0.1, 0.0, False, False)
    conductor = Conductor(crew, Plan(seconds=1))
    conductor.go()
    assert conductor.cycles >= 320


def test_a_counter_outside_that_is_slow_is_in_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def read() -> int:
        clock.now += 0.01
        return 1

    crew: Crew = Slow(clock, lambda number: 1e-4, 0.0, False, False)
    outside = (Counter("far", "bytes", "device", "x", read, exact=False),)
    conductor = Conductor(crew, Plan(seconds=10), outside)
    begin = clock.now
    conductor.go()
    assert 6 <= clock.now - begin <= 12.5


def test_what_fits() -> None:
    assert fitting(Pace(0.001), 10, 40, noisy=False) == (10_000, 0)
    cycles, reads = fitting(Pace(0.001, 0.001, 0.001, 0.0), 10, 4800, noisy=True)
    assert (cycles, reads) == (5000, 625)
    assert fitting(Pace(0.001, 1.0, 1.0, 1.0), 1, 40, noisy=True) == (0, FEWEST_READS)
    assert fitting(Pace(0.001, 0.0, 0.0, 1.0), 10, 40, noisy=True) == (5000, 40)


def test_what_is_cut_and_by_how_much() -> None:
    assert cut(BlockPlan(CYCLE, 1000, 800), 0.5) == BlockPlan(CYCLE, 500, 400)
    assert cut(BlockPlan(IDLE, 0, 40), 0.1) == BlockPlan(IDLE, 0, FEWEST_READS)
    assert cut(BlockPlan(CYCLE, 9, 9), 1.0) == BlockPlan(CYCLE, 9, 9)
    assert share_of(2.0, [1.0], [1.0], 1.0) == 0.5
    assert share_of(1.0, [1.0], [1.0], 5.0) == 1.0
    assert share_of(9.0, [1.0], [1.0], -1.0) == SMALLEST
    assert longest_of(block_plan(1000)) == 237


def test_the_whole_command_takes_the_time_that_was_ordered() -> None:
    """Three lifecycles, with start and verdict; a busy machine may take some more, but not three times as long."""
    begin = time.monotonic()
    done = run_cli("stress", "--device", "sim:0", "--duration", "2s", code=0)
    assert "passed (simulated)" in done.stdout
    assert time.monotonic() - begin < 4.5
