"""History: what is kept, how little memory that takes, and which growth is called a leak."""

from __future__ import annotations

import gc
import itertools
import random
import tracemalloc
from math import isnan, nan
from typing import Any

import pytest

from accelctl.model.snapshot import PoolLevel, QueueLevel, Snapshot, SpaceLevel, key
from accelctl.telemetry.history import History, growth, rate, rise, stalled_s
from tests import snapkit

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")

PID = snapkit.FIRST_PID + 3
WHO = f"{PID}@{40_000 + 17 * 3}"
MIB = snapkit.MIB
PER_STEP = 5
"""Ticks that an iteration of MEM-06 lasts."""
MEM_06 = {
    "A": [100, 164, 228, 260, 260, 260, 260, 260, 260, 260, 260, 260],
    "B": [100, 120, 140, 160, 100, 120, 140, 160, 100, 120, 140, 160],
    "C": [100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111],
    "D": [100, 100, 100, 100, 612, 612, 612, 612, 612, 612, 612, 612],
    "E": [100, 164, 228, 260, 261, 262, 263, 264, 265, 266, 267, 268],
}


def filled(ticks: int, **options: Any) -> History:
    history = History()
    for made in snapkit.recording(ticks, **options):
        history.take(made)
    return history


def seconds(values: list[float]) -> list[float]:
    return [float(at) for at in range(len(values))]


def held(name: str) -> list[float]:
    return [float(value) for value in MEM_06[name] for _ in range(PER_STEP)]


# -- what is kept --


def test_series_have_one_value_a_tick_and_gaps_where_a_row_was_gone() -> None:
    history = History()
    for tick in range(6):
        history.take(snapkit.snapshot(processes=4 if tick in (2, 3, 5) else 2, tick=tick))
    values = history.values(key("processes", WHO, "memory"))
    assert [isnan(value) for value in values] == [True, True, False, False, True, False]
    assert values[2] == (64 + 32 * 3) * MIB + 8 * MIB
    assert history.values(key("devices", snapkit.device_id(1), "power_mw")) == []
    assert history.span_s() == 5


def test_ten_hours_need_no_more_memory_than_ten_minutes() -> None:
    """A tick every 5 s, and a fifth of the points: 7,200 ticks in all."""
    rows = tuple(PoolLevel(id=f"p{number}", device="d", in_use_bytes=1, high_water_bytes=2) for number in range(5))

    def take(ticks: range) -> int:
        for at in ticks:
            history.take(Snapshot(taken_ns=at, monotonic_ns=5 * at * snapkit.SECOND_NS, pools=rows))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    history = History(points=120)
    tracemalloc.start()
    try:
        early = take(range(1, 240))
        late = take(range(240, 7200))
    finally:
        tracemalloc.stop()
    assert late - early < 32 * 1024
    points = history.whole("pools/p0/in_use_bytes")
    assert len(points) <= history.points
    assert (points[0][0], points[-1][0]) == (5, 5 * 7199)
    gaps = np.diff([at for at, _ in points])
    assert set(gaps[-40:]) == {5.0}
    assert gaps.max() <= 36_000 / (history.points / 4)
    assert set(gaps[:20]) == {gaps.max()}


def test_rows_that_come_and_go_are_forgotten() -> None:
    history = History(points=80)
    for at in range(1, 4000):
        row = PoolLevel(id=f"p{at // 10}", device="d", in_use_bytes=at)
        history.take(Snapshot(taken_ns=at, monotonic_ns=at * snapkit.SECOND_NS, pools=(row,)))
    assert len(history) < 20


def test_a_clock_that_goes_back_begins_anew() -> None:
    history = filled(30)
    history.take(snapkit.snapshot(tick=3))
    assert len(history.values(key("processes", WHO, "memory"))) == 1
    assert history.span_s() == 0


# -- rates and growth --


def test_rates_are_differences_over_time() -> None:
    counts = [0, 10, 35, 35, 100]
    times = [0.0, 1.0, 3.0, 3.5, 4.0]
    expected = np.diff(counts) / np.diff(times)
    found = [
        rate(a, b, t - s) for (a, b), (s, t) in zip(itertools.pairwise(counts), itertools.pairwise(times), strict=True)
    ]
    assert found == pytest.approx(list(expected))


@pytest.mark.parametrize("pair", [(10, 9), (nan, 5), (5, nan), (1 << 40, 0)])
def test_a_count_that_was_set_back_or_is_missing_has_no_rate(pair: tuple[float, float]) -> None:
    assert rate(*pair, 1.0) is None
    assert rate(1, 2, 0.0) is None


def test_rate_and_growth_of_rows() -> None:
    history = filled(120, leak_pid=PID)
    assert history.rate(key("queues", f"{snapkit.device_id(0)} ring 0", "finished")) == 1000
    assert history.growth(key("processes", WHO, "memory")) == pytest.approx(60 * MIB)
    assert history.growth(key("processes", "1@1", "memory")) is None
    assert history.rate("nothing") is None


def test_growth_is_the_slope_of_a_line_and_not_moved_by_wild_values() -> None:
    random.seed(4)
    times = [float(at) for at in range(200)]
    values = [1000 + 7.5 * at + random.gauss(0, 5) for at in times]
    for at in range(5, 200, 17):
        values[at] = 1e9
    fitted = stats.theilslopes(values[-61:], times[-61:])[0] * 60
    assert growth(times, values) == pytest.approx(fitted, rel=0.05)
    assert growth(times[:2], values[:2]) is None
    assert growth([], []) is None


# -- leaks --


@pytest.mark.parametrize("name", ["A", "B", "D"])
def test_mem_06_growth_that_is_no_leak(name: str) -> None:
    assert rise(seconds(held(name)), held(name)) is None


@pytest.mark.parametrize("name", ["C", "E"])
def test_mem_06_leaks_of_one_an_iteration(name: str) -> None:
    found = rise(seconds(held(name)), held(name))
    assert found is not None
    assert found.per_s * PER_STEP == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_a_leak_under_noise_has_the_slope_that_theil_sen_sees(noise: float) -> None:
    random.seed(7)
    values = [500 + 2.0 * at + random.gauss(0, noise) for at in range(240)]
    found = rise(seconds(values), values)
    assert found is not None
    assert found.per_s == pytest.approx(stats.theilslopes(values)[0], rel=0.1)
    assert found.since_s >= 200


def test_a_leak_below_the_teeth_of_a_garbage_collector_is_found() -> None:
    values = [100 + 40 * (at % 8) + 0.5 * at for at in range(400)]
    found = rise(seconds(values), values)
    assert found is not None
    assert found.per_s == pytest.approx(0.5, rel=0.1)


def test_how_long_it_has_been_rising() -> None:
    values = [100.0] * 200 + [100.0 + 3 * at for at in range(64)]
    found = rise(seconds(values), values)
    assert found is not None
    assert found.since_s == pytest.approx(64, abs=8)
    assert rise(seconds(values[:212]), values[:212]) is None


def test_a_leak_that_ended_is_none_any_more() -> None:
    values = [100.0 + at for at in range(100)] + [200.0] * 40
    assert rise(seconds(values), values) is None


@pytest.mark.parametrize("values", [[], [1.0], [nan] * 50, [5.0] * 50, [nan, 1.0] * 30])
def test_no_rise_without_reason(values: list[float]) -> None:
    assert rise(seconds(values), values) is None


@pytest.mark.parametrize(("memory", "most"), [(0.0, 1e-3), (0.8, 1e-2)])
def test_noise_is_seldom_called_a_leak(memory: float, most: float) -> None:
    """Independent noise, and noise that wanders but returns (AR(1), half-life 3 ticks)."""
    random.seed(11)
    alarms = looks = 0
    for _ in range(100):
        value, values = 0.0, []
        for _ in range(300):
            value = memory * value + random.gauss(0, 1)
            values.append(1000 + value)
        for end in range(60, 300, 20):
            looks += 1
            alarms += rise(seconds(values[:end]), values[:end]) is not None
    assert alarms / looks < most


# -- the end of a space --


def _spaces(ticks: int, per_tick: int) -> History:
    history = History()
    for at in range(1, ticks + 1):
        used = 1000 * MIB + per_tick * at
        space = SpaceLevel(id="s", device="d", size_bytes=4000 * MIB, mapped_bytes=used, free_bytes=4000 * MIB - used)
        pool = PoolLevel(id="p", device="d", capacity_bytes=2000 * MIB, in_use_bytes=used)
        history.take(Snapshot(taken_ns=at, monotonic_ns=at * snapkit.SECOND_NS, spaces=(space,), pools=(pool,)))
    return history


def test_when_a_space_and_a_pool_are_full() -> None:
    history = _spaces(60, 10 * MIB)
    assert history.full_in_s("s") == pytest.approx(240)
    assert history.pool_full_in_s("p") == pytest.approx(40)


def test_what_does_not_grow_is_never_full() -> None:
    assert _spaces(60, 0).full_in_s("s") is None
    assert _spaces(60, -MIB).full_in_s("s") is None
    assert _spaces(10, MIB).full_in_s("s") is None
    assert _spaces(60, MIB).full_in_s("other") is None


# -- stalls --


def test_stalled_since_the_last_one_finished() -> None:
    times = seconds([0.0] * 8)
    assert stalled_s(times, [1] * 8, [1, 2, 3, 4, 4, 4, 4, 4]) == 4
    assert stalled_s(times, [1, 1, 1, 1, 0, 1, 1, 1], [4] * 8) == 2
    assert stalled_s(times, [1] * 7 + [0], [4] * 8) == 0
    assert stalled_s(times, [1] * 8, [4] * 8) == 7
    assert stalled_s([], [], []) == 0


def test_stalled_by_rows() -> None:
    history = History()
    for at in range(1, 11):
        row = QueueLevel(id="q", device="d", running=2, finished=min(at, 4))
        history.take(Snapshot(taken_ns=at, monotonic_ns=at * snapkit.SECOND_NS, queues=(row,)))
    assert history.stalled_s("q") == 6
    assert history.stalled_s("other") == 0


def test_of_many_processes_the_leaking_one_is_named() -> None:
    history = filled(30, leak_pid=PID, processes=64, devices=8)
    rows = [f"{one.pid}@{one.started}" for one in snapkit.snapshot(processes=64, devices=8).processes]
    assert [row for row in rows if history.leaks(row)] == [WHO]
    found = history.leak(WHO)
    assert found is not None
    assert found.per_s == pytest.approx(MIB)
    assert found.since_s >= 20
