"""The steps of `accelctl bringup` one by one: what a report of another command amounts to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelctl.abi import capabilityfile
from accelctl.abi.capability import Capability, Platform
from accelctl.abi.lifecycle import NotOffered, Target
from accelctl.abi.ops import Device as OpsDevice
from accelctl.accept.bench.rounds import not_measured
from accelctl.accept.bringup import needs, subjects
from accelctl.accept.bringup.step import FAIL, INCONCLUSIVE, PASS, SKIP, Job, Order
from accelctl.accept.bringup.steps import bench, capabilities, disruptive, lifecycles, ops, probe, semantics
from accelctl.errors import AccelError, NoDeviceError
from accelctl.model.benchreport import (
    BYTES_PER_S,
    HIDDEN,
    MISSING,
    NEW,
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


LIBRARY = replace(SIM, id="opencl:0", ops_device="opencl:0", memory_device="", simulated=False)
CARDS = [
    (("pci:1",), "critical", "pci:1", True),
    (("pci:1",), "info", "pci:1", True),
    (("pci:1",), "critical", "pci:2", False),
    (("pci:1", "pci:2"), "error", "pci:2", True),
    (("pci:1", "pci:2"), "warn", "pci:2", False),
    ((), "critical", "pci:1", False),
    ((), "info", None, True),
]


@pytest.mark.parametrize(("on", "level", "device", "counts"), CARDS)
def test_what_is_wrong_with_the_card_behind_a_library(
    on: tuple[str, ...], level: str, device: str | None, counts: bool
) -> None:
    assert probe._concerns(Finding("HANG-READ", level, "no answer", device), (replace(LIBRARY, on=on),)) is counts


def library(node: str, accelerator: bool = True) -> OpsDevice:
    return OpsDevice(Target("opencl:0", "opencl", "opencl", node), "Radeon", accelerator=accelerator)


def test_the_card_behind_a_library_is_told_by_its_node() -> None:
    def card(identity: str, node: str, kind: str = "physical") -> Device:
        return Device(identity, kind, "", facts={"node/renderD128/path": Reading(node, "sys/x")})

    both = [card("pci:1", "dev/dri/renderD128"), card("pci:2", "dev/dri/renderD129"), card("vgem", "x", "virtual")]
    here: Any = SimpleNamespace(scan=SimpleNamespace(devices={one.id: one for one in both}))
    assert subjects._behind(library("/dev/dri/renderD129"), here) == ("pci:2",)
    assert subjects._behind(library(""), here) == ("pci:1", "pci:2")
    assert subjects._behind(library("/dev/dri/renderD129", accelerator=False), here) == ()


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


def test_a_run_that_was_ended_decides_nothing_but_what_it_found() -> None:
    def ended(*outcomes: Outcome) -> StressReport:
        return replace(stress(*outcomes), interrupted=True)

    good = Outcome("a", PASS, "balanced", cycles=5, seconds=1.0)
    for report, result in (
        (ended(good), INCONCLUSIVE),
        (ended(Outcome("a", SKIP, "not supported")), INCONCLUSIVE),
        (ended(leak("a")), FAIL),
    ):
        came = lifecycles.judged(report, "x")
        assert (came.result, came.cut) == (result, True)


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


LOST = Skipped("pool", "Input/output error", FAIL)


def test_what_failed_is_no_pass_and_says_why() -> None:
    for report in (replace(BENCH, skipped=(LOST,)), replace(BENCH, figures=(), skipped=(LOST,))):
        for other in (None, compared(SAME)):
            came = bench.judged(report, "x", other, "base.json")
            assert (came.result, came.cut) == (INCONCLUSIVE, False)
            assert "pool: Input/output error" in came.reason
    assert "pool: no memory" in bench.judged(replace(BENCH, skipped=(Skipped("pool", "no memory"),)), "x").reason


def test_a_baseline_with_which_nothing_is_compared_is_no_pass() -> None:
    alone = [row._replace(slowdown=None) for row in compared(MISSING, NEW).rows]
    for report in (BENCH, replace(BENCH, figures=())):
        for rows in ((), (alone[0],), (alone[1],), (compared(SAME).rows[0], alone[0])):
            came = bench.judged(report, "x", replace(compared(), rows=tuple(rows)), "base.json")
            assert came.result == INCONCLUSIVE, rows
    missing = bench.judged(BENCH, "x", replace(compared(), rows=(compared(SAME).rows[0], alone[0])), "base.json")
    assert "channel/0" in missing.reason


def test_a_measurement_that_was_ended_decides_nothing_but_what_it_found() -> None:
    for report, other, result in (
        (replace(BENCH, ended=143), None, INCONCLUSIVE),
        (replace(BENCH, ended=143, figures=()), None, INCONCLUSIVE),
        (replace(BENCH, ended=143), compared(SAME), INCONCLUSIVE),
        (replace(BENCH, ended=143), compared(SLOWER), FAIL),
    ):
        came = bench.judged(report, "x", other, "base.json")
        assert (came.result, came.cut) == (result, True)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (NoDeviceError("no second device"), SKIP),
        (NotOffered("no address-space allocator"), SKIP),
        (AccelError("no CPU mapping", kind="not_supported"), SKIP),
        (AccelError("refused", kind="internal"), FAIL),
        (OSError(5, "Input/output error"), FAIL),
    ],
)
def test_what_is_not_offered_has_not_failed(error: Exception, result: str) -> None:
    assert not_measured("pool", "why", error).result == result


# -- capabilities --


def test_records_of_another_device_prove_nothing(tmp_path: Path) -> None:
    record = Capability(kernel="relu", op="relu", platform=Platform("opencl:0", "", "pocl 3.1"))
    path = str(tmp_path / "caps.toml")
    capabilityfile.update(path, lambda records: [record])
    came = capabilities.work(Job(Order(caps=path), (SIM,), SIM, 10.0, print))
    assert came.result == SKIP
    assert f"{path} has no record of sim:0" in came.reason


# -- needs -------------------------------------------------------------------------------------------------------------


def test_needs_name_what_is_missing() -> None:
    bare = replace(REAL, memory="no memory")
    assert needs.memory(Order(), bare) == needs.disruptive(Order(disruptive=True), bare) == "no memory"
    assert needs.figures(Order(), REAL) == ""
    assert needs.figures(Order(), bare) == REAL.ops
    assert "--disruptive" in needs.disruptive(Order(), REAL)
    assert needs.records(Order(caps=__file__), SIM) == ""
    assert "--caps FILE" in needs.records(Order(caps="/nowhere/x"), SIM)
