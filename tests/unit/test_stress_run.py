"""A whole run on the toy driver: reports, exit codes, JSON, JUnit, limits, faults, interruption."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from accelctl.abi.manifest import Manifest
from accelctl.errors import UsageError
from accelctl.model.device import Device
from accelctl.model.stressreport import FAIL, PASS, SKIP, StressReport
from accelctl.render import stressdocument, term
from accelctl.render.document import dumps
from accelctl.render.stress import report_text
from accelctl.stress import kill, kmemleak, run, sweeping
from accelctl.stress.door import parse_fault
from accelctl.stress.lostmemory import searched
from accelctl.stress.plan import MIB, Plan
from accelctl.stress.run import Options
from accelctl.stress.targets import Candidate
from tests.stresskit import TARGET, Toy, ToyMemory

TERM = term.decide(False, {}, "utf-8", None)
PLAN = Plan(seed=4, cycles=1000, bytes_limit=MIB, sizes="page")
CANDIDATE = Candidate(
    Device("toy:0", "virtual", "", chip="toy"),
    TARGET,
    Manifest(name="toy", title="Toy", drivers=("toy",), tier="proven", proven="unit tests"),
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Toy], None]], None]:
    def use(adjust: Callable[[Toy], None]) -> None:
        memory = ToyMemory(adjust)
        for module in (run, kill, sweeping):
            if hasattr(module, "memory_of"):
                monkeypatch.setattr(module, "memory_of", lambda candidate: memory)

    use(lambda toy: None)
    return use


def plain(report: StressReport) -> Any:
    return next(outcome for outcome in report.outcomes if outcome.lifecycle == "plain")


@pytest.mark.parametrize("forked", [True, False])
def test_a_clean_run(toy: object, forked: bool) -> None:
    report = run.run(CANDIDATE, PLAN, Options(forked=forked, command="accelctl stress"))
    assert (report.result, report.exit_code) == (PASS, 0)
    outcome = plain(report)
    assert outcome.cycles >= 1000
    assert outcome.census == {"toy-handles": 0}
    assert [o.reason for o in report.outcomes if o.result == SKIP] == ["not supported: the toy is small"]
    text = report_text(report, TERM)
    assert text.endswith("toy:0: passed\n")
    assert "acquired and released: object" in text


def test_a_leak_is_named_with_its_rate_by_each_book(toy: Callable[[Callable[[Toy], None]], None]) -> None:
    toy(lambda driver: setattr(driver, "keep_every", 50))
    report = run.run(CANDIDATE, replace(PLAN, hold=1, partial=0), Options(ledger=False))
    outcome = plain(report)
    assert (report.result, report.exit_code, outcome.result) == (FAIL, 1, FAIL)
    assert outcome.verdict is not None
    leaks = {j.counter: j for j in outcome.verdict.judgements if j.verdict == "leak"}
    assert {"toy-handles", "fds-memfd"} <= set(leaks)
    assert leaks["toy-handles"].per_cycle == pytest.approx(1 / 50, rel=0.1)
    assert "1 handle every 50 cycles" in outcome.reason
    assert "object" in leaks["toy-handles"].stages


def test_ordered_faults_are_undone(toy: object) -> None:
    faults = tuple(parse_fault(text) for text in ("object:3=ENOMEM@before", "cpu_map:7=ENOMEM@before"))
    report = run.run(CANDIDATE, PLAN, Options(faults=faults))
    outcome = plain(report)
    assert outcome.result == PASS
    assert {(f.stage, f.error, f.times) for f in outcome.failures} == {
        ("object", "ENOMEM", 1),
        ("cpu_map", "ENOMEM", 1),
    }


def test_a_device_that_is_used_up_fails_with_the_reason(toy: Callable[[Callable[[Toy], None]], None]) -> None:
    toy(lambda driver: driver.refuse.update({"cpu_map": errno.ENOSPC}))
    report = run.run(CANDIDATE, PLAN, Options())
    assert plain(report).result == FAIL
    assert "acquisitions in a row failed" in plain(report).reason


def test_json_and_junit_say_the_same(toy: Callable[[Callable[[Toy], None]], None]) -> None:
    toy(lambda driver: setattr(driver, "keep_every", 50))
    report = run.run(CANDIDATE, PLAN, Options(command="accelctl stress --seed 4"))
    document = json.loads(dumps(stressdocument.document(report)))
    assert (document["schema"], document["result"], document["simulated"]) == ("accelctl.stress/1", "fail", False)
    by_name = {one["lifecycle"]: one for one in document["lifecycles"]}
    assert by_name["plain"]["verdict"]["overall"] == "leak"
    assert by_name["plain"]["series"][0]["samples"]
    suite = ElementTree.fromstring(stressdocument.junit_text(report))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    assert {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")} == {
        "never": ["skipped"],
        "plain": ["failure"],
    }


def test_only_the_lifecycles_named(toy: object) -> None:
    report = run.run(CANDIDATE, PLAN, Options(lifecycles=("plain",)))
    assert [outcome.lifecycle for outcome in report.outcomes] == ["plain"]
    with pytest.raises(UsageError, match="none of the lifecycles named"):
        run.run(CANDIDATE, PLAN, Options(lifecycles=("other",)))


def test_workers_and_threads_balance_together(toy: object) -> None:
    report = run.run(CANDIDATE, replace(PLAN, workers=2, threads=2, hold=2), Options())
    outcome = plain(report)
    assert outcome.result == PASS, outcome.reason
    assert outcome.cycles >= 1000


def test_a_kill_needs_a_book_that_saw_something(toy: object) -> None:
    report = kill.kill_run(CANDIDATE, PLAN, Options(lifecycles=("plain",)))
    assert report.outcomes[0].result == "inconclusive"
    assert "no readable book" in report.outcomes[0].reason
    assert report.exit_code == 0


def test_a_door_sweep_of_the_toy(toy: object) -> None:
    said: list[str] = []
    report = sweeping.sweep_run(
        CANDIDATE, PLAN, Options(lifecycles=("plain",)), door=True, kernel=False, say=said.append
    )
    assert report.result == PASS
    rows = {(row.stage, row.kind): row for row in report.sweep}
    assert rows["object", "door-before"].balanced == rows["object", "door-before"].points > 0
    assert said[0].startswith("books: ")
    assert "Fault points" in report_text(report, TERM)


def test_no_line_is_wider_than_the_terminal_and_no_foreign_text_reaches_it_raw(toy: object) -> None:
    report = run.run(CANDIDATE, replace(PLAN, cycles=200), Options())
    plain(report).notes = ("a driver said \x1b[2J " + "and went on " * 20,)
    text = report_text(report, term.decide(True, {"TERM": "xterm"}, "utf-8", 80)._replace(colors=None))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    wide = report_text(report, TERM)
    assert " ".join(wide.split()) == " ".join(text.split()), "wrapping adds and drops nothing"


def test_memory_that_the_kernel_lost_to_us_fails_the_run(monkeypatch: pytest.MonkeyPatch, toy: object) -> None:
    own = Path("/proc/self/comm").read_text(encoding="ascii").strip()
    old = kmemleak.Entry(0x1000, 64, own, 1, 10, ("kmalloc",))
    ours = kmemleak.Entry(0x2000, 96, own, 2, 20, ("drm_prime_add_buf_handle+0x1", "drm_ioctl+0x2"))
    other = kmemleak.Entry(0x3000, 32, "kworker/0:1", 3, 21, ("x",))
    answers = iter([(old,), (old, ours, other)])
    monkeypatch.setattr(kmemleak, "available", lambda: "")
    monkeypatch.setattr(kmemleak, "search", lambda: next(answers))
    report = searched(lambda: run.run(CANDIDATE, PLAN, Options(command="accelctl stress --kmemleak")))
    assert (report.result, report.exit_code) == (FAIL, 1)
    (line,) = report.kernel_leaks
    assert line.startswith("96 bytes at 0x2000")
    assert line.endswith("to see it again: accelctl stress --kmemleak")
    assert report.notes == ["kmemleak also lists 1 new objects of other programs"]
    assert "1 kmemleak record" in report_text(report, TERM).splitlines()[-1]
