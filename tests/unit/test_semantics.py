"""The semantics suite: its table against the contract, a whole run on the simulated chip, and runtimes that break the
contract, each of which must be noticed by the assertions that are about it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from accelctl.abi.runtime import FLAGS
from accelctl.abi.semantics import ASSERTIONS, carry_out
from accelctl.abi.semantics.suite import OWN_PROCESS
from accelctl.backends.sim.memory import SimSession
from accelctl.errors import NoDeviceError, UsageError
from accelctl.hal.reader import run_watched
from accelctl.hal.worker import Worker
from accelctl.model.semanticsreport import SemanticsReport, SemanticsRow
from accelctl.render import semantics as render
from accelctl.render.term import Term
from accelctl.smoke import semantics
from tests.helpers import ROOT
from tests.semanticsmutants import MUTANTS, POISONED

CONTRACT = ROOT.parent / "shared/semantics/runtime-semantics.json"
PLACE = semantics.place("sim:0")
TERM = Term(tty=False, width=None, colors=None, unicode=True)


def test_every_assertion_of_the_contract_is_there_and_no_other() -> None:
    if not CONTRACT.exists():
        pytest.skip(f"{CONTRACT} is not here: the suite's ids are not compared with the contract")
    intents = json.loads(CONTRACT.read_text(encoding="utf-8"))["intents"]
    wanted = {f"{one['id']}/{n}" for one in intents for n in range(1, len(one["tests"]) + 1)}
    assert wanted == set(ASSERTIONS)
    assert (len(intents), len(wanted)) == (41, 106)


def test_assertions_are_named_by_intent() -> None:
    for identity, one in ASSERTIONS.items():
        assert identity == one.id
        assert one.id.rpartition("/")[0] == one.intent
        assert len(one.what) > 5
    assert {one.intent for one in ASSERTIONS.values()} >= OWN_PROCESS
    assert set(semantics.QUICK) <= {one.intent for one in ASSERTIONS.values()}


@pytest.fixture(scope="module")
def report() -> SemanticsReport:
    return semantics.run("sim:0")


def test_the_simulated_chip_keeps_the_contract(report: SemanticsReport) -> None:
    assert [f"{row.id}: {row.detail}" for row in report.rows if row.result == "fail"] == []
    assert {row.id for row in report.rows} == set(ASSERTIONS)
    assert [row.id for row in report.rows if row.result == "skip"] == [
        "ipc_memory/1",
        "ipc_memory/2",
        "ipc_memory/3",
        "peer_access/1",
    ]
    assert (report.verdict, report.exit_code, report.simulated) == ("passed (simulated)", 0, True)
    assert set(report.capabilities) == set(FLAGS)


def test_what_is_skipped_is_declared_absent(report: SemanticsReport) -> None:
    for row in report.rows:
        if row.result == "skip":
            assert report.capabilities[row.detail.partition(":")[0]] == "absent"


@pytest.mark.parametrize(
    ("mutant", "identity"),
    [(mutant, identity) for mutant, ids in MUTANTS.items() for identity in ids],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_runtime_is_noticed(mutant: Any, identity: str) -> None:
    check = carry_out(ASSERTIONS[identity], PLACE._replace(make=mutant, ranks=2))
    assert check.result == "fail", check
    assert check.detail


@pytest.mark.parametrize(
    ("mutant", "identity"),
    [(mutant, identity) for mutant, ids in POISONED.items() for identity in ids],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_runtime_that_is_broken_for_good_is_noticed(mutant: Any, identity: str) -> None:
    place = PLACE._replace(make=mutant)
    check = run_watched(lambda watch: carry_out(ASSERTIONS[identity], place), total_s=60.0).value
    assert check.result == "fail", check


def test_a_process_that_ends_badly_is_noticed() -> None:
    check = carry_out(ASSERTIONS["init_fini/3"], PLACE._replace(leave=lambda: "killed by SIGABRT: free(): why"))
    assert (check.result, check.detail) == ("fail", "the process: killed by SIGABRT: free(): why")


def test_what_a_process_said_last_is_passed_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(semantics, "_MODULE", "tests.semanticsworker")
    assert semantics._left("sim:well") == ""
    assert semantics._left("sim:cries") == "exit status 1: ValueError: why it ended"
    monkeypatch.setattr(semantics, "LEAVE_S", 0.0)
    assert semantics._left("sim:well") == "it did not end within 0 s"


def _with_templates(change: Any) -> Any:
    """The simulated chip with other kernels."""
    ops = PLACE.chip.ops

    class Changed:
        def __getattr__(self, name: str) -> Any:
            return getattr(ops, name)

        def templates(self) -> Any:
            return [one for one in map(change, ops.templates()) if one is not None]  # type: ignore[union-attr]

    return PLACE._replace(chip=PLACE.chip._replace(ops=Changed()))


def test_a_chip_without_an_op_skips_what_needs_it() -> None:
    place = _with_templates(lambda one: None if one.op == "add" else one)
    check = carry_out(ASSERTIONS["memcpy_sync/3"], place)
    assert (check.result, check.detail) == ("skip", "no kernel of add takes int32")
    assert carry_out(ASSERTIONS["memcpy_async_pinned/2"], place).result == "pass"


@pytest.mark.parametrize("identity", ["memcpy_sync/1", "memcpy_async_pinned/2", "stream_destroy/1"])
def test_copies_that_do_not_work_are_no_skip(identity: str) -> None:
    place = _with_templates(lambda one: one._replace(refuses=lambda made: "not today") if one.op == "copy" else one)
    check = carry_out(ASSERTIONS[identity], place)
    assert check.result == "fail"
    assert "not today" in check.detail


TELLS = [*(f"{name}/{n}" for name in ("malloc", "mem_info", "free") for n in (1, 2)), "error_sticky/3"]
TELLS += ["alloc_alignment_granularity/2", "malloc_zero/1", "mem_pool/1"]


@pytest.mark.parametrize(
    ("free", "counters", "skipped"),
    [
        ("free", True, set()),
        ("free", False, {"free/1", "malloc_zero/1", "mem_pool/1"}),
        ("total", True, {"mem_info/2", "alloc_alignment_granularity/2"}),
        ("nothing", True, {"mem_info/1", "mem_info/2", "alloc_alignment_granularity/2"}),
        (
            "total",
            False,
            {"mem_info/2", "alloc_alignment_granularity/2", "free/1", "free/2", "malloc_zero/1", "mem_pool/1"},
        ),
    ],
)
def test_what_nothing_tells_is_skipped(free: str, counters: bool, skipped: set[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("accelctl.abi.semantics.memory._CYCLES", 20)
    if free == "total":
        monkeypatch.setattr(SimSession, "memory_info", lambda self: (-1, self.options.vram_bytes))
    if free == "nothing":
        monkeypatch.delattr(SimSession, "memory_info")
    if not counters:
        monkeypatch.setattr(SimSession, "counters", lambda self: ())
    found = {one: carry_out(ASSERTIONS[one], PLACE) for one in TELLS}
    assert {one: check for one, check in found.items() if check.result == "fail"} == {}
    assert {one for one, check in found.items() if check.result == "skip"} == skipped
    runtime = semantics._begun(PLACE)
    assert runtime.capabilities()["memory_info"] == {"free": "native", "total": "emulated", "nothing": "absent"}[free]
    runtime.fini()


IDS = [one.id for one in ASSERTIONS.values()]


@pytest.mark.parametrize(
    ("what", "words"), [("dies", "killed by SIGSEGV"), ("exits", "exit status 3"), ("hangs", "no answer after 1 s")]
)
@pytest.mark.parametrize("at", ["malloc/2", "error_sticky/1"])
def test_what_ends_a_process_costs_one_assertion(what: str, words: str, at: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(semantics, "_MODULE", "tests.semanticsworker")
    found = semantics.run(f"sim:{what}@{at}", intents=("malloc", "error_sticky", "free_null"), deadline_s=1.0)
    bad = [row for row in found.rows if row.result != "pass"]
    assert [row.id for row in bad] == [at]
    assert words in bad[0].detail
    assert len(found.rows) == 7
    assert found.hang == (at if what == "hangs" else "")
    assert found.exit_code == (6 if what == "hangs" else 1)


@pytest.mark.parametrize(("what", "words"), [("lost", "it fell off the bus"), ("late", "it was not open after 3 s")])
def test_a_later_process_that_does_not_start_costs_its_assertions(what: str, words: str, monkeypatch: Any) -> None:
    """The first one runs all that go together; each of error_sticky has one of its own."""
    if what == "late":
        monkeypatch.setattr(semantics, "START_S", 3.0)
    monkeypatch.setattr(semantics, "_MODULE", "tests.semanticsworker")
    found = semantics.run(f"sim:{what}", intents=("malloc", "error_sticky"))
    assert [row.result for row in found.rows] == [*["pass"] * 3, *["fail"] * 3]
    assert all(words in row.detail for row in found.rows[3:])
    assert (found.hang, found.exit_code) == (("error_sticky/1", 6) if what == "late" else ("", 1))


def test_poisoning_assertions_have_a_process_each(monkeypatch: Any) -> None:
    started: list[list[str]] = []
    inner = Worker

    def counted(module: str, arguments: list[str]) -> Any:
        started.append(list(arguments[1:]))
        return inner(module, arguments)

    monkeypatch.setattr(semantics, "Worker", counted)
    monkeypatch.setattr(semantics, "_MODULE", "tests.semanticsworker")
    semantics.run("sim:well")
    alone = [one for one in IDS if ASSERTIONS[one].own_process]
    assert sorted(ids[0] for ids in started if len(ids) == 1) == sorted(alone)
    assert {one.rpartition("/")[0] for one in alone} - {"device_sync"} == OWN_PROCESS
    assert len(started) == 1 + len(alone)


def test_a_device_that_is_not_here(monkeypatch: Any) -> None:
    with pytest.raises(NoDeviceError, match="no chip is called nothing"):
        semantics.run("nothing:0")
    with pytest.raises(UsageError, match="named by chip"):
        semantics.run("pci:0000:03:00.0")
    with pytest.raises(UsageError, match="no intent 'rubbish'"):
        semantics.run("sim:0", intents=("rubbish",))
    monkeypatch.setattr(semantics, "_MODULE", "tests.semanticsworker")
    with pytest.raises(Exception, match="it is not here") as caught:
        semantics.run("sim:refuses")
    assert caught.value.kind == "no_device"  # type: ignore[attr-defined]


def _report(*results: str, **more: Any) -> SemanticsReport:
    rows = tuple(SemanticsRow(f"malloc/{n}", "malloc", "sizes", one, "seen") for n, one in enumerate(results, 1))
    return SemanticsReport(device="x:0", chip="x", rows=rows, **{"simulated": False, **more})


@pytest.mark.parametrize(
    ("results", "more", "verdict", "code"),
    [
        (("pass", "skip"), {}, "passed", 0),
        (("pass",), {"simulated": True}, "passed (simulated)", 0),
        (("pass", "fail"), {}, "failed", 1),
        (("pass", "fail"), {"hang": "malloc/2"}, "failed", 6),
        (("skip",), {}, "nothing ran", 77),
    ],
)
def test_verdicts(results: tuple[str, ...], more: dict[str, Any], verdict: str, code: int) -> None:
    found = _report(*results, **more)
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert verdict in render.text(found, TERM)


def test_a_report_is_printed_counted_and_read_again(report: SemanticsReport) -> None:
    text = render.text(report, TERM)
    assert "SIMULATED" in text
    assert "102 of 106 assertions passed, 4 for what the device does not have" in text
    document = render.document(report)
    assert Counter(one["result"] for one in document["assertions"]) == {"pass": 102, "skip": 4}
    assert json.loads(json.dumps(document))["verdict"] == "passed (simulated)"
    suite = ElementTree.fromstring(render.junit_text(report).encode()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("106", "0", "4")


def test_equal_runs_give_equal_documents_but_for_what_is_volatile() -> None:
    first, second = _report("pass", "skip"), _report("pass", "skip")
    moved = SemanticsReport(**{**vars(second), "rows": tuple(row._replace(seconds=3.0) for row in second.rows)})
    documents = [render.document(one) for one in (first, moved)]
    assert documents[0] != documents[1]
    for one in documents:
        del one["volatile"]
    assert documents[0] == documents[1]


def test_the_contract_is_where_it_is_looked_for() -> None:
    assert Path(CONTRACT).name == "runtime-semantics.json"


def test_who_leaves_without_a_word_never_waits_for_one() -> None:
    """Nobody talks to that process: where the device cannot be opened it has to end by itself."""
    worker = Worker("accelctl.smoke.semantics", ["nochip:0", "leave"])
    try:
        assert worker.wait(60) == 1
    finally:
        worker.end()
