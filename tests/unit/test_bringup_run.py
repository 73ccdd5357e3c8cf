"""The run of `accelctl bringup`: its order, its boxes, what a failure stops and what it does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accelctl.accept.bringup import run
from accelctl.accept.bringup.boxed import boxed
from accelctl.accept.bringup.step import FAIL, INCONCLUSIVE, PASS, SKIP, Came, Job, Order, Say, passed
from accelctl.accept.bringup.table import STEPS, planned
from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, PermissionDenied, TimeoutFailure, UsageError
from accelctl.model.bringupreport import PASSED_SIMULATED, REJECTED
from tests.bringupkit import BAD, REAL, SIM, carried_out, step, use


def good(job: Job) -> Came:
    return passed("done")


def test_the_order_of_the_steps() -> None:
    names = [one.name for one in STEPS]
    assert names == ["probe", "expected", "lifecycles", "ops", "capabilities", "semantics", "bench", "disruptive"]
    assert [one.step.name for one in planned(Order(level=1), (SIM,))] == names[:-1]
    assert sum(one.box_s for one in planned(Order(level=3), (SIM,))) <= 2 * 3600


def test_what_does_not_apply_says_why() -> None:
    rows = {(one.step.name, one.device): one.why for one in planned(Order(level=3), (SIM, REAL))}
    assert rows["ops", SIM.id] == ""
    assert rows["ops", REAL.id] == "this chip offers no ops"
    assert "--expect" in rows["expected", ""]
    assert "--disruptive" in rows["disruptive", SIM.id]


def test_a_failed_step_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, step("lifecycles", lambda job: Came(FAIL, "leak", (BAD,))), step("ops", good))
    report = carried_out(str(tmp_path))
    assert [one.result for one in report.steps] == [FAIL, PASS]
    assert (report.verdict, report.exit_code) == (f"{REJECTED} (simulated)", 1)


def test_a_hang_ends_the_steps_of_that_device_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(job: Job) -> Came:
        return Came(FAIL, "no answer", hang="ioctl") if job.device.simulated else passed("done")

    use(monkeypatch, step("lifecycles", hangs), step("ops", good), found=(SIM, REAL))
    report = carried_out(str(tmp_path))
    assert [(one.device, one.result) for one in report.steps] == [
        (SIM.id, FAIL),
        (REAL.id, PASS),
        (SIM.id, INCONCLUSIVE),
        (REAL.id, PASS),
    ]
    assert "hangs (ioctl)" in report.steps[2].reason
    assert report.exit_code == 6


def test_time_for_all_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def slow(job: Job) -> Came:
        assert job.box_s <= 0.5
        time.sleep(60)
        return passed("never")

    use(monkeypatch, step("lifecycles", slow), step("ops", good))
    report = carried_out(str(tmp_path), Order(device=("sim:0",), time_s=0.5))
    assert [(one.result, one.cut) for one in report.steps] == [(INCONCLUSIVE, True)] * 2
    assert "no time left" in report.steps[1].reason
    assert report.exit_code == 6
    assert carried_out(str(tmp_path), resume=True).steps[1].result == PASS


def test_what_was_cut_is_done_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, step("lifecycles", lambda job: time.sleep(60) or passed("never"), box_s=0.2), step("ops", good))  # type: ignore[func-returns-value]
    assert [one.cut for one in carried_out(str(tmp_path)).steps] == [True, False]
    use(monkeypatch, step("lifecycles", good), step("ops", good))
    assert [one.kept for one in carried_out(str(tmp_path), resume=True).steps] == [False, True]


def test_another_machine_is_begun_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def probe(mark: str) -> Callable[[Job], Came]:
        return lambda job: Came(PASS, "looked", fingerprint=mark)

    for mark, kept in (("one", False), ("one", True), ("two", False), ("two", True)):
        use(monkeypatch, step("probe", probe(mark), False, resumed=False), step("lifecycles", good))
        report = carried_out(str(tmp_path), resume=True)
        assert [one.kept for one in report.steps] == [False, kept], mark
        assert any("not what it was" in note for note in report.notes) is (mark == "two" and not kept)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_report(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ended(job: Job) -> Came:
        os.kill(os.getppid(), number)
        time.sleep(60)
        return passed("never")

    use(monkeypatch, step("lifecycles", good), step("ops", ended), step("bench", good))
    report = carried_out(str(tmp_path))
    assert [one.result for one in report.steps] == [PASS, INCONCLUSIVE, INCONCLUSIVE]
    assert report.exit_code == 128 + number
    use(monkeypatch, step("lifecycles", good), step("ops", good), step("bench", good))
    again = carried_out(str(tmp_path), resume=True)
    assert [one.kept for one in again.steps] == [True, False, False]
    assert again.verdict == PASSED_SIMULATED


def test_skips_are_told_and_cost_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, step("lifecycles", good), step("bench", good, needs=lambda order, subject: "not here"))
    report = carried_out(str(tmp_path))
    assert (report.steps[1].result, report.steps[1].reason) == (SKIP, "not here")


# -- one step ----------------------------------------------------------------------------------------------------------


def in_box(work: Callable[[Say], Came], box_s: float = 20.0) -> tuple[Came, list[str]]:
    said: list[str] = []
    return boxed("ops", "sim:0", work, box_s, said.append), [line for line in said if line]


def test_progress_comes_through() -> None:
    def work(say: Say) -> Came:
        say("one")
        say("two")
        return passed("done")

    assert in_box(work) == (passed("done"), ["one", "two"])


def test_a_step_that_dies() -> None:
    def dies(say: Say) -> Came:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError

    came, _ = in_box(dies)
    assert (came.result, [one.id for one in came.findings]) == (FAIL, ["STEP-FAILED"])
    assert "SIGSEGV" in came.reason


ERRORS: list[tuple[BaseException, str, list[str], bool]] = [
    (NoDeviceError("gone"), INCONCLUSIVE, [], False),
    (PermissionDenied("denied"), INCONCLUSIVE, [], False),
    (UsageError("wrong file"), INCONCLUSIVE, [], False),
    (ZeroDivisionError("a mistake of ours"), INCONCLUSIVE, [], False),
    (DeviceUnusable("lost"), FAIL, ["STEP-FAILED"], False),
    (AccelError("broken", kind="internal"), FAIL, ["STEP-FAILED"], False),
    (TimeoutFailure("object has not returned"), FAIL, ["STEP-HANG"], True),
]


@pytest.mark.parametrize(("error", "result", "findings", "hangs"), ERRORS)
def test_errors_of_a_step(error: BaseException, result: str, findings: list[str], hangs: bool) -> None:
    def work(say: Say) -> Came:
        raise error

    came, _ = in_box(work)
    assert (came.result, [one.id for one in came.findings], bool(came.hang)) == (result, findings, hangs)
    assert str(error) in came.reason


def test_a_step_ends_with_its_box() -> None:
    came, _ = in_box(lambda say: time.sleep(600) or passed("never"), 0.2)  # type: ignore[func-returns-value]
    assert (came.result, came.cut, came.hang) == (INCONCLUSIVE, True, "")


WRONG = [
    (Order(level=4), "--level"),
    (Order(level=0), "--level"),
    (Order(seed=-1), "--seed"),
    (Order(disruptive=True), "--level 3"),
    (Order(sim={"leak": "object:1"}), "--sim"),
    (Order(expect="/nowhere/at/all.toml"), "nowhere"),
    (Order(baseline="/nowhere/at/all.json"), "nowhere"),
    (Order(caps="/nowhere/at/all.toml"), "nowhere"),
    (Order(max_regress=-1.0), "--max-regress"),
    (Order(max_regress=float("nan")), "--max-regress"),
]


@pytest.mark.parametrize(("order", "word"), WRONG)
def test_mistakes_are_told_before_anything_runs(order: Order, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        run.check(order)
