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


@pytest.mark.parametrize(("leaves", "why"), [(-6, "exit status: -6"), (None, "did not end")])
def test_a_process_that_ends_badly_is_noticed(leaves: int | None, why: str) -> None:
    check = carry_out(ASSERTIONS["init_fini/3"], PLACE._replace(leave=lambda: leaves))
    assert check.result == "fail"
    assert why in check.detail


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
