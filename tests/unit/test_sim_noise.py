"""Noise, leaks and growth of others in the simulated device's counter: as ordered, and told apart by the verdict."""

from __future__ import annotations

import itertools
import random
from statistics import fmean, pstdev

import pytest

from accelctl.abi.lifecycle import Block
from accelctl.backends.sim.memory import TICK_S
from accelctl.backends.sim.noise import Ar1, Sawtooth, Steps
from accelctl.model.verdict import IDLE, Samples, Series
from accelctl.stress.contrast import block_plan
from accelctl.stress.verdict import judge
from tests.simkit import Opened, open_sim

MIB = 1 << 20


def correlation(values: list[float], lag: int) -> float:
    mean = fmean(values)
    power = sum((value - mean) ** 2 for value in values)
    return sum((a - mean) * (b - mean) for a, b in zip(values, values[lag:], strict=False)) / power


def read(sim: Opened, times: int, ticks: int) -> list[float]:
    noisy = sim.session.counters()[-1]
    found = []
    for _ in range(times):
        sim.session.idle(ticks * TICK_S)
        found.append(float(noisy.read()))
    sim.session.close()
    return found


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.95])
def test_ar1_has_the_deviation_and_correlation_that_were_ordered(phi: float) -> None:
    values = read(open_sim(noise=f"ar1:1MiB,{phi}", noise_ticks="10"), 12_000, 10)
    assert pstdev(values) == pytest.approx(MIB, rel=0.15)
    assert fmean(values) == pytest.approx(256 * MIB, abs=MIB)
    for lag in (1, 2, 5):
        assert correlation(values, lag) == pytest.approx(phi**lag, abs=0.08)


def test_ar1_is_a_process_in_time_whoever_looks() -> None:
    """Read three times as often, the correlation from reading to reading is the cube root."""
    often = Ar1(random.Random(1), 1.0, 0.5, 9)
    assert correlation([often.at(3 * n) for n in range(12_000)], 3) == pytest.approx(0.5, abs=0.05)
    assert often.at(40_000) == often.at(40_000)


def test_a_sawtooth_has_its_height_and_period() -> None:
    values = read(open_sim(noise="sawtooth:8MiB,500"), 2000, 10)
    falls = [at for at, (a, b) in enumerate(itertools.pairwise(values)) if b < a]
    assert {b - a for a, b in itertools.pairwise(falls)} == {50}
    assert max(values) - min(values) == pytest.approx(8 * MIB, rel=0.03)


def test_steps_stay_and_come_as_often_as_ordered() -> None:
    values = read(open_sim(noise="steps:4MiB,1000"), 20_000, 10)
    jumps = [b - a for a, b in itertools.pairwise(values) if a != b]
    assert len(jumps) == pytest.approx(200, abs=45)  # three standard deviations of a Poisson number
    assert all(abs(jump) >= 0.8 * MIB - 8192 for jump in jumps)
    assert {jump > 0 for jump in jumps} == {True, False}


def test_steps_never_go_below_what_there_is() -> None:
    steps = Steps(random.Random(3), 10.0, 1.0, -15.0)
    assert min(steps.at(tick) for tick in range(5000)) >= -15.0


def test_growth_of_others_is_a_line_in_device_time() -> None:
    values = read(open_sim(foreign="40KiB"), 100, 1000)
    assert {b - a for a, b in itertools.pairwise(values)} == {40 << 10}


def test_the_same_seed_gives_the_same_readings_and_another_does_not() -> None:
    options = {"noise": "ar1:1MiB+steps:4MiB,500+sawtooth:1MiB,77", "foreign": "1KiB"}
    runs = [read(open_sim(seed=seed, **options), 200, 7) for seed in ("5", "5", "6")]
    assert runs[0] == runs[1] != runs[2]


def test_sawtooth_starts_anywhere() -> None:
    assert len({Sawtooth(random.Random(seed), 1.0, 10.0).at(0) for seed in range(5)}) == 5


def test_idle_time_and_call_time_are_one_clock() -> None:
    """Fractions of a tick add up, looking is free, and a call takes one tick."""
    sim = open_sim()
    start = sim.session.clock()
    for _ in range(100):
        sim.session.idle(TICK_S / 4)
    assert sim.session.clock() - start == pytest.approx(25 * TICK_S)
    sim.counts()
    assert sim.session.clock() - start == pytest.approx(25 * TICK_S)
    sim.cycles("vram", 10)
    assert sim.session.clock() - start == pytest.approx(85 * TICK_S)
    sim.session.close()


# -- found by the noisy counter alone --

OBJECT = 64 << 10
NOISE = "ar1:640KiB,0.5+steps:32MiB,16000+sawtooth:16MiB,3000"
CYCLES = 20_000


def verdict(**options: str) -> str:
    """Cycling and idle blocks as planned, on device time, with nothing to look at but the device's counter."""
    sim = open_sim(books="device", noise_ticks="2", vram_bytes="4GiB", **options)
    stage = sim.session.lifecycles[1].stages[0]
    (noisy,) = sim.session.counters()
    samples, cycles, block = Samples(), 0, Block(OBJECT)
    assert stage.release is not None
    for part in block_plan(CYCLES):
        steps = part.reads or 1
        for number in range(steps):
            if part.block == IDLE:
                sim.session.idle(2 * TICK_S)
            else:
                more = part.cycles * (number + 1) // steps - part.cycles * number // steps
                for _ in range(more):
                    stage.acquire(block)
                    stage.release(block)
                cycles += more
            samples.add(cycles, sim.session.clock(), noisy.read(), part.block)
    sim.session.close()
    return judge(Series("vram_used", "bytes", "device", False, "sim", samples), granule=OBJECT).verdict


@pytest.mark.slow
def test_one_leak_in_a_thousand_cycles_is_named_under_all_that_noise() -> None:
    found = [verdict(noise=NOISE, foreign="200KiB", leak="object:1000", seed=str(seed)) for seed in range(3)]
    assert found == ["leak"] * 3


@pytest.mark.slow
def test_noise_and_growth_of_others_are_no_leak() -> None:
    assert "leak" not in [verdict(noise=NOISE, seed=str(seed)) for seed in range(2)]
    assert verdict(noise="ar1:640KiB,0.5", foreign="200KiB") == "foreign"
