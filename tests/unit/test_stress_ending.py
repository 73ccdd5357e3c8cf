"""A stress run that is told to end: by whom, with which exit status, and what it may still say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP, Outcome, StressReport
from accelctl.render import term
from accelctl.render.stress import report_text
from accelctl.stress import crew, ending, run
from accelctl.stress.crew import Killed
from accelctl.stress.run import Options
from tests.unit.test_stress_run import CANDIDATE, PLAN, toy

__all__ = ["toy"]
LONG = (sys.executable, "-m", "accelctl", "stress", "--device", "sim:0", "--duration", "60s", "--json")


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begun() -> Iterator[Begin]:
    """Starts long runs, and leaves none behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(_begun(*words))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _begun(*words: str) -> subprocess.Popen[str]:
    """A long run in a session of its own, once its worker works."""
    env = {**os.environ, "ACCELCTL_NO_CONFIG": "1"}
    process = subprocess.Popen(
        [*LONG, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=env,
    )
    end = time.monotonic() + 20
    while time.monotonic() < end and not worker_of(process.pid):
        time.sleep(0.02)
    time.sleep(0.5)  # the one that only looks at the menu is over by then
    return process


def worker_of(pid: int) -> int:
    """The first child; 0: none."""
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split() or ["0"])[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("group", [True, False])
def test_a_signal_to_the_group_or_to_the_program_is_no_failure_and_no_pass(
    begun: Begin, number: int, group: bool
) -> None:
    process = begun()
    (os.killpg if group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    document = json.loads(out)
    assert (document["result"], document["interrupted"]) == (INCONCLUSIVE, True)
    first, *others = document["lifecycles"]
    assert first["result"] == INCONCLUSIVE
    assert first["reason"].startswith("interrupted; until then ")
    assert first["cycles"] > 64
    assert {one["lifecycle"]: (one["result"], one["reason"]) for one in others} == {
        "export": (SKIP, "not run: interrupted before it"),
        "queue": (SKIP, "not run: interrupted before it"),
    }


def test_timeout_tells_the_process_and_its_group_which_is_one_signal(begun: Begin) -> None:
    """As timeout(1) does it: one after the other."""
    process = begun()
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert json.loads(out)["result"] == INCONCLUSIVE


def test_a_leak_that_was_seen_before_the_signal_stays_one(begun: Begin) -> None:
    process = begun("--sim", "leak=object:100", "--no-ledger")
    time.sleep(1)
    os.killpg(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    document = json.loads(out)
    assert (process.returncode, document["result"], document["interrupted"]) == (1, FAIL, True)


def test_a_worker_outlives_what_is_sent_to_it_alone(begun: Begin) -> None:
    process = begun()
    os.kill(worker_of(process.pid), signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_worker_that_dies_of_the_signal_first_is_no_failure(
    toy: object, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It has not yet said that it leaves such signals to its parent, and the parent's own is still on its way."""

    def dies(self: crew.Crew, command: str, argument: object = None) -> list[Any]:
        raise Killed(f"killed by {name}", "")

    monkeypatch.setattr(crew.Crew, "ask", dies)
    report = run.run(CANDIDATE, PLAN, Options())
    (outcome,) = (one for one in report.outcomes if one.lifecycle == "plain")
    assert (outcome.result, report.result) == (INCONCLUSIVE, INCONCLUSIVE)
    assert outcome.reason == f"interrupted: the worker ended: killed by {name}, in no call"
    assert report.exit_code == 128 + signal.Signals[name]


def test_a_worker_that_crashed_is_a_failure_all_the_same(toy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: crew.Crew, command: str, argument: object = None) -> list[Any]:
        raise Killed("killed by SIGKILL", "object")

    monkeypatch.setattr(crew.Crew, "ask", dies)
    report = run.run(CANDIDATE, PLAN, Options())
    assert (report.result, report.exit_code) == (FAIL, 1)


def test_a_second_signal_after_a_moment_is_taken_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "ECHO_S", 0.0)
    with ending.interruptible() as told:
        signal.raise_signal(signal.SIGTERM)
        assert (told(), told.status) == (True, 143)
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 143
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending.interruptible() as told:
            signal.raise_signal(signal.SIGHUP)
            assert (told(), told.status) == (False, 0)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_last_line_of_an_interrupted_report() -> None:
    report = StressReport("toy:0", "toy", "toy", "/dev/toy", "proven", "tests", False, 1, "accelctl stress")
    report.outcomes = [Outcome("plain", PASS, "balanced in x"), Outcome("more", SKIP, "not run: interrupted before it")]
    report.interrupted, report.ended = True, 143
    terminal = term.decide(False, {}, "utf-8", None)
    text = report_text(report, terminal)
    assert text.endswith("toy:0: inconclusive (interrupted)\n")
    assert "more             skip  not run: interrupted before it" in text
    assert report.exit_code == 143
    assert replace(report, ended=0).exit_code == 130
    failed = replace(report, outcomes=[Outcome("plain", FAIL, "leak")])
    assert (failed.exit_code, failed.result) == (1, FAIL)
    hung = replace(report, outcomes=[Outcome("plain", FAIL, "x", hang="object")])
    assert hung.exit_code == 6
