"""The shortest sequence that shows a divergence, on a driver that gives one object's pages to another."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.lifecycle import Block, Env, Target
from accelctl.errors import UsageError
from accelctl.model.stressreport import FAIL, PASS
from accelctl.stress import run, shrink
from accelctl.stress.plan import MIB, Plan, Step
from accelctl.stress.run import Options
from tests.stresskit import ToyMemory, ToySession
from tests.unit.test_stress_run import CANDIDATE, plain

STEP = st.builds(Step, st.integers(0, 7), st.integers(1, 1 << 40), st.integers(1, 3), st.booleans())


class Aliasing(ToyMemory):
    """While four objects live, a new mapping shows the pages of the oldest."""

    def open(self, target: Target, env: Env) -> ToySession:
        session = super().open(target, env)
        toy = session.toy

        def map_wrong(block: Block) -> int:
            shown = toy.objects[block.handle] if len(toy.objects) < 4 else next(iter(toy.objects.values()))
            block.map = mmap.mmap(shown.fd, 4096)
            return block.serial

        def unmap(block: Block) -> None:
            assert block.map is not None
            block.map.close()
            block.map = None

        life = session.lifecycles[0]
        stages = (*life.stages[:2], life.stages[2]._replace(acquire=map_wrong, release=unmap))
        return ToySession(toy, (life._replace(stages=stages),))


def test_a_divergence_comes_with_the_shortest_way_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Aliasing()
    monkeypatch.setattr(run, "memory_of", lambda candidate: memory)
    plan = Plan(seed=9, cycles=400, hold=6, sizes="page", partial=0, bytes_limit=MIB, order="reverse")
    report = run.run(CANDIDATE, plan, Options())
    outcome = plain(report)
    assert outcome.result == FAIL
    assert "memory changed behind our back: block" in outcome.reason
    assert outcome.replay is not None
    assert len(outcome.replay.steps) == 4, outcome.replay.steps
    assert f"--seed {plan.seed}" in outcome.replay.command
    text = outcome.replay.command.rpartition("--replay ")[2]
    again = run.run(CANDIDATE, plan, Options(lifecycles=("plain",), replay=text))
    assert (again.result, plain(again).cycles) == (FAIL, 4)
    fewer = run.run(CANDIDATE, plan, Options(lifecycles=("plain",), replay=text.rpartition(",")[0]))
    assert fewer.result == PASS


@given(steps=st.lists(STEP, min_size=1, max_size=12))
def test_what_is_written_can_be_read(steps: list[Step]) -> None:
    assert shrink.parsed(shrink.written(steps), 3, 8) == tuple(steps)


@pytest.mark.parametrize("text", ["", "0:4096:3", "0:4096:3x", "9:4096:3r", "0:4096:4r", "0:0:1r", "0:4096:0r", "a,b"])
def test_what_is_no_sequence(text: str) -> None:
    with pytest.raises(UsageError, match="--replay"):
        shrink.parsed(text, 3, 8)


@given(
    noise=st.lists(STEP, max_size=40),
    needles=st.lists(st.integers(0, 39), min_size=1, max_size=4, unique=True),
)
def test_nothing_can_be_left_out_of_the_shortest(noise: list[Step], needles: list[int]) -> None:
    """Steps that matter are marked by their size; the result is exactly those."""
    steps = [step._replace(size=1) for step in noise]
    for count, place in enumerate(sorted(needles)):
        steps.insert(min(place, len(steps)), Step(0, 100 + count, 1, False))

    def wrong(some: tuple[Step, ...]) -> bool:
        return {step.size for step in some} >= {100 + count for count in range(len(needles))}

    kept = shrink.shortest(steps, wrong, budget=10_000)
    assert sorted(step.size for step in kept) == [100 + count for count in range(len(needles))]


def test_the_budget_bounds_the_attempts() -> None:
    calls: list[int] = []

    def wrong(some: tuple[Step, ...]) -> bool:
        calls.append(len(some))
        return len(some) == 100 or 3 in {step.slot for step in some}

    shrink.shortest([Step(n % 5, 1, 1, False) for n in range(100)], wrong, budget=7)
    assert len(calls) <= 7
