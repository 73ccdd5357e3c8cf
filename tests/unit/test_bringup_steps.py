"""The steps of `accelctl bringup` one by one: what a report of another command amounts to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from accelctl.accept.bringup import needs
from accelctl.accept.bringup.step import FAIL, INCONCLUSIVE, PASS, SKIP, Order
from accelctl.accept.bringup.steps import bench, disruptive, lifecycles, ops, probe, semantics
from accelctl.model.benchreport import (
    BYTES_PER_S,
    HIDDEN,
    SAME,
    SLOWER,
    BenchReport,
    Ceiling,
    Change,
    Comparison,
    Figure,
    Fingerprint,
    Skipped,
    Spread,
)
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.model.reading import VOLATILE, Reading
from accelctl.model.report import Report
from accelctl.model.semanticsreport import SemanticsReport, SemanticsRow
from accelctl.model.smokereport import CaseRow, SmokeReport
from accelctl.model.stressreport import Outcome, PointTotals, StressReport
from accelctl.model.verdict import LEAK, Judgement, Series, Verdict
from tests.bringupkit import REAL, SIM

# -- probe -------------------------------------------------------------------------------------------------------------


def machine(**facts: Reading) -> Report:
    return Report(
        "/", True, {"kernel": Reading("6.12", "proc/version")}, [Device("d", "physical", "sys/d", facts=facts)]
    )


def test_the_fingerprint_is_of_what_does_not_change_by_itself() -> None:
    driver = Reading("amdgpu", "sys/d/driver")
    first = probe.fingerprint(machine(driver=driver))
    assert first == probe.fingerprint(machine(driver=driver, heat=Reading(41, "sys/d/temp", scope=VOLATILE)))
    assert first != probe.fingerprint(machine(driver=driver._replace(value="radeon")))
    assert first != probe.fingerprint(machine())


@pytest.mark.parametrize(
    ("identity", "level", "device", "becomes"),
    [
        ("NODE-PERMISSION", "info", "sim:0", "error"),
        ("NODE-PERMISSION", "info", "another", "info"),
        ("NODE-PERMISSION", "critical", "sim:0", "critical"),
        ("IOMMU-OFF", "info", "sim:0", "info"),
        ("NODE-PERMISSION", "info", None, "info"),
    ],
)
def test_a_node_that_was_asked_for_must_open(identity: str, level: str, device: str | None, becomes: str) -> None:
    assert probe._judged(Finding(identity, level, "title", device), (SIM,)).level == becomes


# -- lifecycles and disruptive -----------------------------------------------------------------------------------------


def stress(*outcomes: Outcome, sweep: tuple[PointTotals, ...] = ()) -> StressReport:
    return StressReport("d", "vgem", "vgem", "/x", "proven", "guest", False, 1, "", list(outcomes), list(sweep))


def leak(name: str) -> Outcome:
    verdict = Verdict(LEAK, (Judgement("gem-handles", LEAK, "1 handle every 100 cycles"),), ("gem-handles",))
    series = (Series("gem-handles", "handles", "file", True, "fdinfo of /x"),)
    return Outcome(name, FAIL, "gem-handles: leak", cycles=10, seconds=1.0, verdict=verdict, series=series)


def test_one_leak_in_two_lifecycles_is_one_finding() -> None:
    came = lifecycles.judged(
        stress(leak("dumb"), leak("prime"), Outcome("host", SKIP, "not offered")), "accelctl stress"
    )
    assert (came.result, [one.id for one in came.findings]) == (FAIL, ["LIFECYCLE-LEAK"])
    found = came.findings[0]
    assert "dumb" in found.title
    assert "prime" in found.title
    assert [one.source for one in found.evidence] == ["fdinfo of /x"] * 2


def test_a_leak_and_another_failure_are_two() -> None:
    came = lifecycles.judged(stress(leak("dumb"), Outcome("prime", FAIL, "refused", hang="ioctl")), "accelctl stress")
    assert [one.id for one in came.findings] == ["LIFECYCLE-LEAK", "LIFECYCLE-FAILED"]
    assert came.hang == "prime: ioctl"


def test_what_was_not_decided() -> None:
    good, unsure = Outcome("a", PASS, "balanced", cycles=5, seconds=1.0), Outcome("b", INCONCLUSIVE, "no book")
    assert lifecycles.judged(stress(good, unsure), "x").result == INCONCLUSIVE
    assert lifecycles.judged(stress(good), "x").result == PASS
    assert lifecycles.judged(stress(Outcome("a", SKIP, "not supported")), "x").result == SKIP


def test_a_fault_point_that_leaks() -> None:
    rows = (PointTotals("dumb", "object", "door-after", 9, 8, 0, 1, ("again: ...",)),)
    came = disruptive.judged(stress(sweep=rows), "x")
    assert (came.result, came.findings[0].id) == (FAIL, "LIFECYCLE-LEAK")
    assert disruptive.judged(stress(sweep=(rows[0]._replace(leaked=0),)), "x").result == PASS
    assert disruptive.judged(stress(Outcome("a", SKIP, "no")), "x").result == SKIP


# -- ops ---------------------------------------------------------------------------------------------------------------


def smoke(*rows: CaseRow, **more: Any) -> SmokeReport:
    return SmokeReport(device="sim:0", chip="sim", target="", simulated=True, seed=0, command="", rows=rows, **more)


def row(op: str, result: str, **more: Any) -> CaseRow:
    return CaseRow(f"{op}/fp32/x", op, "fp32", result, more.pop("detail", "Y: fine"), **more)


def test_one_wrong_op_is_one_finding_whatever_follows_from_it() -> None:
    wrong = [row("relu", FAIL, detail="Y: 1 of 4 wrong", first=(0,), max_abs=3.0, kernel="relu", share=9.0)] * 3
    came = ops.judged(smoke(*wrong, row("add", PASS), row("order", FAIL), row("evidence", FAIL)), "x")
    assert [one.id for one in came.findings] == ["OPS-WRONG-RESULT"]
    assert came.findings[0].title == "relu: 3 of 3 cases wrong (kernel relu)"
    bars = {bar.label: (bar.value, bar.limit, bar.bad) for bar in came.charts[0].bars}
    assert bars == {"relu": (9.0, 1.0, True)}


def test_a_refused_op_is_not_a_wrong_result() -> None:
    assert ops.judged(smoke(row("relu", FAIL, detail="refused: no memory")), "x").findings[0].id == "OPS-FAILED"


@pytest.mark.parametrize(("more", "hang"), [({"hang": "relu/1"}, "relu/1"), ({"gone": "UNAVAILABLE"}, "")])
def test_a_service_that_does_not_answer(more: dict[str, str], hang: str) -> None:
    came = ops.judged(smoke(row("relu", PASS), **more), "x")
    assert (came.result, came.hang, [one.id for one in came.findings]) == (FAIL, hang, ["OPS-FAILED"])


def test_no_case_is_no_verdict() -> None:
    assert ops.judged(smoke(row("relu", SKIP)), "x").result == SKIP
    assert ops.judged(smoke(row("relu", INCONCLUSIVE)), "x").result == INCONCLUSIVE
    assert ops.judged(smoke(row("relu", PASS)), "x").result == PASS


@pytest.mark.parametrize(
    ("level", "dtypes", "long", "model"), [(1, ("fp32",), False, False), (2, (), False, True), (3, (), True, True)]
)
def test_what_a_level_asks(level: int, dtypes: tuple[str, ...], long: bool, model: bool) -> None:
    found = ops.request(Order(level=level), "sim:0")
    assert (found.dtypes, found.long, found.model) == (dtypes, long, model)


def test_a_promoted_plug_in_has_its_way_back_in_the_finding() -> None:
    came = ops.judged(smoke(row("relu", FAIL)), "x")
    assert (
        ops._with_way_back(came, "accelctl backends rollback x").findings[0].fix[-1] == "accelctl backends rollback x"
    )
    assert ops._with_way_back(came, "") == came


# -- semantics ---------------------------------------------------------------------------------------------------------


def test_semantics() -> None:
    rows = (
        SemanticsRow("malloc/1", "malloc", "is aligned", PASS),
        SemanticsRow("free/1", "free", "twice fails", FAIL, "ok"),
    )
    found = SemanticsReport(device="sim:0", chip="sim", simulated=True, rows=rows)
    came = semantics.judged(found, "x")
    assert (came.result, [one.id for one in came.findings]) == (FAIL, ["SEMANTICS-DIFFERS"])
    assert came.findings[0].evidence[0].source == "free/1"
    assert semantics.judged(replace(found, rows=rows[:1]), "x").result == PASS
    assert semantics.judged(replace(found, rows=()), "x").result == SKIP


# -- bench -------------------------------------------------------------------------------------------------------------

SPREAD = Spread(2e9, 1.9e9, 2.1e9, 0.99, 9)
FIGURE = Figure("channel", "up", BYTES_PER_S, (2e9,), SPREAD, ceiling=Ceiling(4e9, "link", "4.0 x1"))
PRINT = Fingerprint(device="sim:0", title="t", driver="sim", simulated=True, cpu="c", cpus=2, versions={})
BENCH = BenchReport(fingerprint=PRINT, chip="sim", proven="", command="", seconds=1.0, rounds=9, figures=(FIGURE,))


def compared(*words: str) -> Comparison:
    slow = Spread(1.5, 1.4, 1.6, 0.95, 9)
    rows = tuple(
        Change(f"channel/{n}", word, slow, SPREAD, SPREAD, BYTES_PER_S, "floor") for n, word in enumerate(words)
    )
    return Comparison(rows=rows, max_regress=5.0, coverage=0.95, simulated=True, device="sim:0")


def test_without_a_baseline_it_is_measured_against_the_ceiling() -> None:
    came = bench.judged(BENCH, "x")
    assert (came.result, came.findings) == (PASS, ())
    assert "no --baseline" in came.reason
    assert (came.charts[0].limit, came.charts[0].bars[0].limit) == ("the ceiling", 4e9)
    assert "50% of link (4.0 x1)" in came.facts[0].raw


def test_slower_figures_are_one_finding() -> None:
    came = bench.judged(BENCH, "x", compared(SLOWER, SAME, SLOWER), "base.json")
    assert (came.result, [one.id for one in came.findings]) == (FAIL, ["BENCH-SLOWER"])
    assert came.findings[0].title.startswith("2 figures slower")
    assert len(came.findings[0].evidence) == 2
    assert "--part channel --compare base.json" in came.findings[0].fix[0]


def test_noise_is_told_and_rejects_nothing() -> None:
    came = bench.judged(BENCH, "x", compared(HIDDEN, SAME), "base.json")
    assert (came.result, came.findings) == (PASS, ())
    assert "noise hides 1" in came.reason


def test_nothing_measured_and_a_run_that_broke_off() -> None:
    assert bench.judged(replace(BENCH, figures=(), skipped=(Skipped("pool", "no memory"),)), "x").result == SKIP
    came = bench.judged(replace(BENCH, gone="lost"), "x")
    assert (came.result, came.findings[0].id) == (FAIL, "STEP-FAILED")


# -- needs -------------------------------------------------------------------------------------------------------------


def test_needs_name_what_is_missing() -> None:
    bare = replace(REAL, memory="no memory")
    assert needs.memory(Order(), bare) == needs.disruptive(Order(disruptive=True), bare) == "no memory"
    assert needs.figures(Order(), REAL) == ""
    assert needs.figures(Order(), bare) == REAL.ops
    assert "--disruptive" in needs.disruptive(Order(), REAL)
    assert needs.records(Order(caps=__file__), SIM) == ""
    assert "--caps FILE" in needs.records(Order(caps="/nowhere/x"), SIM)
