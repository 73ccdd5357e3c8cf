"""The loop: what is called, how often, in which order, and what ends it. Times are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accelctl.accept.bench import rounds
from accelctl.accept.bench.rounds import LEAST, MOST, Rounds, Task
from accelctl.model.benchreport import BYTES_PER_S, SECONDS

Quiet: Callable[[str, int, int], None] = lambda name, number, count: None  # noqa: E731


class Clock:
    """Time passes when something is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.log = 0.0, list[str]()
        monkeypatch.setattr(rounds, "clock", lambda: self.now)

    def call(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.now += seconds

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def reason(task: Task, error: Exception) -> str:
    return str(error)


def ran(tasks: list[Task], seconds: float) -> Rounds:
    made = Rounds(tasks, seconds, Quiet)
    made.warm(reason)
    made.run(reason)
    return made


def test_figures_are_amounts_by_time(clock: Clock) -> None:
    made = ran(
        [
            Task("a", "time", SECONDS, clock.call("t", 0.01), amount=5),
            Task("a", "speed", BYTES_PER_S, clock.call("s", 0.02), amount=100, floor=clock.call("f", 0.01)),
        ],
        2.0,
    )
    one, two = made.figures()
    assert one.spread.median == pytest.approx(0.002)
    assert two.spread.median == pytest.approx(5000)
    assert two.floor_spread is not None
    assert two.floor_spread.median == pytest.approx(10_000)
    assert two.ratio is not None
    assert two.ratio.median == pytest.approx(0.5)


def test_a_floor_has_its_own_amount(clock: Clock) -> None:
    task = Task("a", "x", SECONDS, clock.call("x", 0.05), amount=50, floor=clock.call("f", 0.01), floor_amount=1)
    (one,) = ran([task], 2.0).figures()
    assert one.ratio is not None
    assert one.ratio.median == pytest.approx(0.1)


def test_everything_is_in_turns(clock: Clock) -> None:
    """No figure has two samples before the others have one, and a floor stands beside each burst."""
    tasks = [Task("a", name, SECONDS, clock.call(name, 0.01), floor=clock.call(f"{name}'", 0.01)) for name in "xy"]
    made = Rounds(tasks, 2.0, Quiet)
    made.warm(reason)
    clock.log.clear()
    made.run(reason)
    once = ["x'", "x"] * rounds.FEWEST + ["y'", "y"] * rounds.FEWEST
    assert clock.log == once * made.count
    assert made.count >= LEAST


def test_a_sample_is_the_best_of_its_bursts(clock: Clock) -> None:
    times = iter([0.01] * 3 + [0.05, 0.01] * 1000)
    log: list[float] = []

    def jumpy() -> None:
        log.append(next(times))
        clock.now += log[-1]

    (one,) = ran([Task("a", "x", SECONDS, jumpy)], 1.0).figures()
    assert one.spread.median == pytest.approx(0.01)
    assert max(log) == 0.05


def test_short_calls_are_timed_many_at_a_time(clock: Clock) -> None:
    made = ran([Task("a", "x", SECONDS, clock.call("x", 1e-6))], 0.1)
    assert made.running[0].calls == pytest.approx(rounds.BURST_S / 1e-6, abs=1)
    assert made.figures()[0].spread.median == pytest.approx(1e-6)


def test_it_ends_with_its_time_but_not_before_the_least_rounds(clock: Clock) -> None:
    assert ran([Task("a", "x", SECONDS, clock.call("x", 0.001))], 1000.0).count == MOST
    made = ran([Task("a", "x", SECONDS, clock.call("x", 0.1))], 1.0)
    assert made.count == LEAST


def test_a_machine_that_gets_slow_meanwhile_cannot_stretch_it_without_end(clock: Clock) -> None:
    times = iter([0.01] * 3)

    def slower() -> None:
        clock.now += next(times, 5.0)

    made = ran([Task("a", "x", SECONDS, slower)], 2.0)
    assert made.count < LEAST
    assert len(made.figures()) == 1


def test_what_takes_too_long_is_left_out_and_told(clock: Clock) -> None:
    quick, slow = Task("a", "quick", SECONDS, clock.call("q", 0.01)), Task("a", "slow", SECONDS, clock.call("s", 3.0))
    made = ran([quick, slow], 1.0)
    assert [one.name for one in made.figures()] == ["quick"]
    (gone,) = made.skipped
    assert gone.what == "a/slow"
    assert "too long for --seconds 1" in gone.why


def test_bursts_are_given_up_for_rounds(clock: Clock) -> None:
    heavy = Task("a", "heavy", SECONDS, clock.call("h", 0.05))
    light = [Task("a", f"light {number}", SECONDS, clock.call("l", 0.0005)) for number in range(10)]
    made = ran([heavy, *light], 1.0)
    assert made.running[0].bursts == rounds.FEWEST
    assert {one.bursts for one in made.running[1:]} == {rounds.ENOUGH}
    assert ran(light, 1.0).running[0].bursts > rounds.ENOUGH


@pytest.mark.parametrize("when", [1, 8])
def test_what_fails_is_left_out_and_the_rest_goes_on(clock: Clock, when: int) -> None:
    calls: list[int] = []

    def failing() -> None:
        calls.append(1)
        clock.now += 0.01
        if len(calls) >= when:
            raise OSError("broken")

    made = ran([Task("a", "bad", SECONDS, failing), Task("a", "good", SECONDS, clock.call("g", 0.01))], 1.0)
    assert [one.name for one in made.figures()] == ["good"]
    assert [(one.what, one.why) for one in made.skipped] == [("a/bad", "broken")]
    assert len(calls) == when


def test_an_interrupted_round_leaves_pairs(clock: Clock) -> None:
    calls: list[int] = []

    def ends() -> None:
        calls.append(1)
        clock.now += 0.01
        if len(calls) > 12:
            raise KeyboardInterrupt

    made = Rounds([Task("a", "x", SECONDS, ends, floor=clock.call("f", 0.01))], 5.0, Quiet)
    made.warm(reason)
    with pytest.raises(KeyboardInterrupt):
        made.run(reason)
    (one,) = made.figures()
    assert len(one.samples) == len(one.floor) > 0


def test_a_call_with_its_own_clock(clock: Clock) -> None:
    def timed() -> Any:
        clock.now += 1.0
        return 0.25

    made = Rounds([Task("a", "x", SECONDS, timed, own_clock=True)], 100.0, Quiet)
    made.warm(reason)
    made.run(reason)
    assert made.figures()[0].spread.median == 0.25


def test_a_floor_can_be_the_ceiling(clock: Clock) -> None:
    task = Task("a", "x", BYTES_PER_S, clock.call("x", 0.02), amount=10, floor=clock.call("f", 0.01))
    (one,) = ran([task._replace(ceiling_is_floor="a plain copy")], 2.0).figures()
    assert one.ceiling is not None
    assert (one.ceiling.name, one.ceiling.computed) == ("a plain copy", False)
    assert one.of_ceiling == pytest.approx(0.5)
