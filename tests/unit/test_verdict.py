"""What follows from counters: exact ones, quiet ones, forecasts, and the one word over all."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi.lifecycle import Block, Stage
from accelctl.model.verdict import BLOCKS, VERDICTS, Judgement, Sample, Samples, Series
from accelctl.stress.contrast import block_plan
from accelctl.stress.verdict import conclude, judge, judge_runs
from accelctl.stress.words import amount, duration, rate, stages_for

MIB = 1 << 20


def nothing(block: Block) -> int:
    return block.serial


STAGES = tuple(
    Stage(name, kind, nothing, None)
    for name, kind in [
        ("object", "handle"), ("offset", ""), ("cpu_map", "cpu_map"), ("export", "fd"), ("import", "handle"),
        ("va", "va"), ("bind", "gpu_map"), ("dma", "iova"),
    ]
)  # fmt: skip


def series(values: Sequence[float], every: int = 1, **more: Any) -> Series:
    facts: dict[str, Any] = {"unit": "handles", "scope": "file", "exact": True, "source": "test", **more}
    samples = tuple(Sample(at * every, float(at), value) for at, value in enumerate(values))
    return Series("counter", samples=samples, **facts)


def runs(*left: tuple[int, float], **more: Any) -> Judgement:
    return judge_runs(series([], kind="handle", **more), left, STAGES)


def test_balanced() -> None:
    assert judge(series([12, 12])).why == "clean: balanced after 1 cycles"
    assert runs((2000, 0), (4000, 0)).verdict == "clean"
    assert runs((2000, 3), (4000, -3)).verdict == "clean"


def test_growth_with_n_and_2n_is_a_leak() -> None:
    found = runs((2000, 20), (4000, 40))
    assert (found.verdict, found.per_cycle, found.interval) == ("leak", 0.01, (0.01, 0.01))
    assert found.why == (
        "leak: 1 handle every 100 cycles, stage object or import; "
        "20 handles after 2,000 cycles, then 40 handles in another 4,000"
    )
    assert runs((500, 1000), (1000, 2000)).per_cycle == 2
    assert runs((2500, 2), (5000, 5)).verdict == "leak"  # 1 in 1,000: a run may end just before the next one


def test_the_same_after_n_and_2n_is_a_cache() -> None:
    for left in [(5, 5), (5, 0), (1, 0)]:
        found = runs((2000, left[0]), (4000, left[1]))
        assert (found.verdict, found.per_cycle) == ("cache", None)
    assert "one-off" in found.why


def test_a_leak_beside_a_cache() -> None:
    found = runs((2000, 25), (4000, 45))
    assert (found.verdict, found.per_cycle) == ("leak", 0.01)


@pytest.mark.parametrize(
    "left", [[(2000, 20)], [(2000, 0), (4000, 30)], [(2000, -4), (4000, 2)], [(2000, 3), (2000, 9)]]
)
def test_what_does_not_decide_says_what_would(left: list[tuple[int, float]]) -> None:
    found = runs(*left)
    assert found.verdict == "inconclusive"
    assert "cycles" in found.decides


def test_one_run_asks_for_twice_as_many() -> None:
    assert runs((2000, 20)).decides == "a run of 4,000 cycles: a leak doubles, a cache does not"


@pytest.mark.parametrize("samples", [(), (Sample(0, 0.0, 5.0),), (Sample(3, 0.0, 5.0), Sample(3, 1.0, 9.0))])
@pytest.mark.parametrize("exact", [True, False])
def test_too_little_is_inconclusive(samples: tuple[Sample, ...], exact: bool) -> None:
    found = judge(Series("used", "bytes", "device", exact, "test", samples))
    assert found.verdict == "inconclusive"
    assert found.decides


def test_mem_02_descriptors() -> None:
    """One dma-buf descriptor per iteration: 1012 more fit from the start, the 1013th fails with EMFILE."""
    for rounds in (4, 7, 11):  # known after a handful
        found = judge(series(range(12, 12 + rounds), unit="descriptors", kind="fd", capacity=1024), STAGES)
        assert (found.verdict, found.per_cycle, found.stages) == ("leak", 1, ("export",))
        assert found.at_stake is not None
        assert (found.at_stake.cycles, found.at_stake.error) == (1012, "EMFILE")
    assert found.at_stake is not None
    assert found.at_stake.left == 1002  # after 10 iterations
    assert found.why.startswith("leak: 1 descriptor every cycle, stage export; every one of 10 rounds added")
    assert "1,012 cycles fit from the start, the next one fails with EMFILE (1,002 left" in found.why
    memory = judge(series([5 * MIB] * 11, unit="bytes", scope="device", exact=False))
    assert conclude([memory, found]).judgements == (found, memory)
    assert memory.verdict == "clean"


def test_mem_03_address_space() -> None:
    """Addresses rise by 16 MiB per iteration while memory returns: 256 fit into 4 GiB, and it is no memory leak."""
    rising = series([at * 16 * MIB for at in range(8)], unit="bytes", kind="va", capacity=4 << 30, scope="process")
    found = judge(rising, STAGES)
    assert (found.verdict, found.per_cycle, found.stages) == ("leak", 16 * MIB, ("va",))
    assert found.at_stake is not None
    assert (found.at_stake.cycles, found.at_stake.left) == (256, 249)
    assert found.why.startswith("address space not reused after free: 16 MiB every cycle, stage va;")
    assert judge(series([0.0] * 8, unit="bytes", exact=False)).verdict == "clean"


MEM_06 = {
    "A": [100, 164, 228, *[260] * 9],
    "B": [100, 120, 140, 160] * 3,
    "C": list(range(100, 112)),
    "D": [100] * 4 + [612] * 8,
    "E": [100, 164, 228, *range(260, 269)],
}


@pytest.mark.parametrize(
    ("case", "verdict", "per_cycle", "cut"),
    [("A", "clean", None, 3), ("B", "clean", None, 0), ("C", "leak", 1, 0), ("D", "foreign", None, 0),
     ("E", "leak", 1, 3)],
)  # fmt: skip
def test_mem_06(case: str, verdict: str, per_cycle: float | None, cut: int) -> None:
    found = judge(series(MEM_06[case], unit="MiB", scope="device", exact=False))
    assert (found.verdict, found.per_cycle, found.warmup_cut) == (verdict, per_cycle, cut)


def test_mem_06_words() -> None:
    why = {case: judge(series(row, unit="MiB", scope="device", exact=False)).why for case, row in MEM_06.items()}
    assert why["A"] == "clean: flat after a warm-up of 3 cycles (160 MiB)"
    assert why["B"] == "clean: every low returns to 100 MiB"
    assert why["D"].startswith("not ours: one step of 512 MiB")
    assert why["E"].startswith("leak: 1 MiB every cycle; every one of 8 rounds added after a warm-up of 3 cycles")


def test_rare_leak_in_many_exact_readings() -> None:
    """One handle in 100 cycles, read every 10: no single round shows it, thirds of the run do."""
    found = judge(series([at // 10 for at in range(201)], every=10))
    assert found.verdict == "leak"
    assert found.per_cycle == pytest.approx(0.01, rel=0.1)


def test_warm_up_blocks_do_not_count() -> None:
    rows = [Sample(0, 0.0, 0.0, "warmup"), Sample(50, 1.0, 9.0, "warmup"), Sample(150, 2.0, 9.0), Sample(350, 3.0, 9.0)]
    assert judge(Series("handles", "handles", "file", True, "test", rows)).verdict == "clean"


@given(st.lists(st.integers(0, 40), min_size=2, max_size=30), st.integers(-1000, 1000), st.booleans())
def test_a_level_changes_no_verdict(values: list[int], level: int, exact: bool) -> None:
    one, two = judge(series(values, exact=exact)), judge(series([v + level for v in values], exact=exact))
    assert (one.verdict, one.warmup_cut) == (two.verdict, two.warmup_cut)
    assert one.per_cycle == (None if two.per_cycle is None else pytest.approx(two.per_cycle))


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.tuples(st.integers(0, 50), FINITE, st.one_of(FINITE, st.integers(0, 3)), st.sampled_from(BLOCKS)),
             max_size=40),
    st.booleans(), st.sampled_from(["bytes", "handles"]), st.sampled_from(["", "fd", "va", "handle"]),
    st.one_of(st.none(), FINITE),
)  # fmt: skip
def test_no_finite_series_raises(
    rows: list[tuple[int, float, float, str]], exact: bool, unit: str, kind: str, capacity: float | None
) -> None:
    samples, cycles = [], 0
    for more, seconds, value, block in rows:
        cycles += more
        samples.append(Sample(cycles, seconds, value, block))
    found = judge(Series("counter", unit, "device", exact, "test", samples, kind, capacity), STAGES)
    assert found.verdict in VERDICTS
    assert "\n" not in found.why
    assert bool(found.decides) or found.verdict != "inconclusive"


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.floats(-1e29, 1e29), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(1, 20), st.integers(300, 700), st.integers(0, 6),
)  # fmt: skip
def test_no_finite_noisy_series_raises(pattern: list[float], held: int, count: int, decimals: int) -> None:
    """Long enough for the fit, in real blocks."""
    samples, cycles = Samples(), 0
    for at in range(count):
        block = "cycle" if at * 8 // count in (1, 2, 4, 7) else "idle"
        cycles += block == "cycle"
        samples.add(cycles, round(at * 0.001, decimals), pattern[at // held % len(pattern)], block)
    found = judge(Series("used", "bytes", "device", False, "test", samples))
    assert found.verdict in VERDICTS
    assert all(map(math.isfinite, found.interval or ()))


def test_columns_hold_samples() -> None:
    samples = Samples()
    samples.add(3, 0.5, 7.0, "idle")
    samples.add(4, 0.6, 8.0)
    assert list(samples) == [Sample(3, 0.5, 7.0, "idle"), Sample(4, 0.6, 8.0, "cycle")]
    assert samples[-1:] == [samples[1]]
    with pytest.raises(ValueError, match="no block"):
        samples.add(1, 1.0, 1.0, "rest")


@pytest.mark.parametrize("cycles", [80, 1000, 20_000, 1_000_003])
def test_the_plan_spends_exactly_the_cycles(cycles: int) -> None:
    plan = block_plan(cycles)
    assert sum(block.cycles for block in plan) == cycles
    assert plan[0].block == "warmup"
    assert len({block.reads for block in plan[1:]}) == 1
    assert [b.cycles > 0 for b in plan[1:]] == [b.block == "cycle" for b in plan[1:]]
    assert sum(block.reads for block in plan) <= 8 * 4800


def test_no_plan_for_a_handful() -> None:
    with pytest.raises(ValueError, match="80"):
        block_plan(79)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("handle", ("object", "import")), ("fd", ("export",)), ("cpu_map", ("cpu_map",)), ("iova", ("bind", "dma")),
     ("va", ("va",)), ("bytes", ("object", "cpu_map", "export", "import", "bind")), ("?", ())],
)  # fmt: skip
def test_stages_that_fit(kind: str, names: tuple[str, ...]) -> None:
    assert stages_for(kind, STAGES) == names


def test_words() -> None:
    assert rate(0.01, "handles") == "1 handle every 100 cycles"
    assert rate(1, "maps") == "1 map every cycle"
    assert rate(2.5, "maps", exact=False) == "about 2.5 maps every cycle"
    assert rate(65.536, "bytes") == "64 KiB every 1,000 cycles"
    assert rate(16 * MIB, "bytes") == "16 MiB every cycle"
    assert amount(76_000 * 1024, "bytes") == "74.2 MiB"
    assert [duration(s) for s in (1.25, 30, 600, 90_000, 1e6)] == ["1.2 s", "30 s", "10 min", "25 h", "12 days"]


def judgement(verdict: str, exact: bool = True) -> Judgement:
    return Judgement(f"{verdict}-{exact}", verdict, "why", exact=exact)


@pytest.mark.parametrize(
    ("parts", "overall"),
    [
        ([], "inconclusive"),
        ([judgement("clean"), judgement("leak", False)], "leak"),
        ([judgement("clean"), judgement("inconclusive", False), judgement("foreign", False)], "clean"),
        ([judgement("clean"), judgement("cache")], "cache"),
        ([judgement("clean"), judgement("inconclusive")], "inconclusive"),
        ([judgement("foreign", False)], "foreign"),
        ([judgement("clean", False), judgement("inconclusive", False)], "inconclusive"),
    ],
)
def test_one_word(parts: list[Judgement], overall: str) -> None:
    verdict = conclude(parts, [("slab", "needs root")], simulated=True)
    assert (verdict.overall, verdict.unreadable, verdict.simulated) == (overall, (("slab", "needs root"),), True)
    assert set(verdict.books) == {part.counter for part in parts if part.verdict != "inconclusive"}
