"""The run of `accelctl bringup`: its order, its boxes, what a failure stops and what it does not."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accelctl.accept.bench import store
from accelctl.accept.bringup import needs, run
from accelctl.accept.bringup.boxed import boxed
from accelctl.accept.bringup.step import FAIL, INCONCLUSIVE, PASS, SKIP, Came, Job, Order, Say, passed
from accelctl.accept.bringup.table import STEPS, planned
from accelctl.errors import (
    AccelError,
    DeviceUnusable,
    NoDeviceError,
    PermissionDenied,
    TimeoutFailure,
    UsageError,
    extra,
)
from accelctl.model.benchreport import BenchReport, Fingerprint
from accelctl.model.bringupreport import PASSED_SIMULATED, REJECTED
from tests.bringupkit import BAD, REAL, SIM, carried_out, look, step, use


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
    slow = step("lifecycles", lambda job: time.sleep(60) or passed("never"), box_s=0.2)  # type: ignore[func-returns-value]
    use(monkeypatch, look(), slow, step("ops", good))
    assert [one.cut for one in carried_out(str(tmp_path)).steps] == [False, True, False]
    use(monkeypatch, look(), step("lifecycles", good), step("ops", good))
    assert [one.kept for one in carried_out(str(tmp_path), resume=True).steps] == [False, False, True]


UNSURE = [
    Came(INCONCLUSIVE, "no memory"),
    Came(SKIP, "nothing to do just now"),
    Came(FAIL, "no answer", hang="ioctl"),
    Came(FAIL, "slower, until it was ended", cut=True),
]


@pytest.mark.parametrize("came", UNSURE)
def test_only_what_is_decided_is_kept(came: Came, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaks = step("ops", lambda job: Came(FAIL, "wrong"))
    use(monkeypatch, look(), leaks, step("lifecycles", lambda job: came))
    carried_out(str(tmp_path))
    use(monkeypatch, look(), leaks, step("lifecycles", good))
    again = carried_out(str(tmp_path), resume=True)
    assert [(one.result, one.kept) for one in again.steps] == [(PASS, False), (FAIL, True), (PASS, False)]


def test_another_machine_is_begun_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = (("one", False), ("one", True), ("two", False), ("two", True), ("", False), ("", False), ("two", False))
    for number, (mark, kept) in enumerate(runs):
        use(monkeypatch, look(mark), step("lifecycles", good))
        report = carried_out(str(tmp_path), resume=True)
        assert [one.kept for one in report.steps] == [False, kept], number
        assert any("begun anew" in note for note in report.notes) is not kept, number


def test_a_run_that_ends_before_it_has_looked_loses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, look(), step("lifecycles", good))
    carried_out(str(tmp_path))

    def ended(job: Job) -> Came:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        return passed("never")

    use(monkeypatch, step("probe", ended, False, resumed=False), step("lifecycles", good))
    assert carried_out(str(tmp_path), resume=True).exit_code == 128 + signal.SIGTERM
    use(monkeypatch, look(), step("lifecycles", good))
    assert [one.kept for one in carried_out(str(tmp_path), resume=True).steps] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_report(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ended(job: Job) -> Came:
        os.kill(os.getppid(), number)
        time.sleep(60)
        return passed("never")

    use(monkeypatch, look(), step("lifecycles", good), step("ops", ended), step("bench", good))
    report = carried_out(str(tmp_path))
    assert [one.result for one in report.steps] == [PASS, PASS, INCONCLUSIVE, INCONCLUSIVE]
    assert report.exit_code == 128 + number
    use(monkeypatch, look(), step("lifecycles", good), step("ops", good), step("bench", good))
    again = carried_out(str(tmp_path), resume=True)
    assert [one.kept for one in again.steps] == [False, True, False, False]
    assert again.verdict == PASSED_SIMULATED


def test_a_second_signal_does_not_cost_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It comes in the middle of ending: here while the rest is told."""
    rest = run._Run.rest

    def again(self: run._Run) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        rest(self)

    def ended(job: Job) -> Came:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
        return passed("never")

    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    monkeypatch.setattr(run._Run, "rest", again)
    use(monkeypatch, step("lifecycles", ended), step("ops", good))
    try:
        report = carried_out(str(tmp_path))
        assert report.exit_code == 128 + signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)  # while the report is written
        assert [one.result for one in report.steps] == [INCONCLUSIVE, INCONCLUSIVE]
    except (KeyboardInterrupt, SystemExit):
        pytest.fail("the second signal ended the report")
    finally:
        for one, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(one, handler)


def test_a_folder_that_is_gone_does_not_cost_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "state"

    def removes(job: Job) -> Came:
        shutil.rmtree(folder)
        return passed("done")

    use(monkeypatch, look(), step("lifecycles", removes), step("ops", good))
    report = carried_out(str(folder))
    assert (report.verdict, report.exit_code) == (PASSED_SIMULATED, 0)
    assert sum("state.json: cannot be written" in note for note in report.notes) == 1


def test_what_is_to_be_left_alone_is_left_alone_by_every_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = tmp_path / "opened"

    def opens(job: Job) -> Came:
        opened.write_text("")
        return passed("done")

    busy = replace(REAL, left_alone="in use by process 1", lift="--shared")
    names = [one.name for one in STEPS if one.per_device]
    use(monkeypatch, *(step(name, opens) for name in names), found=(busy,))
    report = carried_out(str(tmp_path / "state"))
    assert {one.reason for one in report.steps} == {"left alone: in use by process 1 (--shared)"}
    assert [one.result for one in report.steps] == [INCONCLUSIVE] * len(names)
    assert not opened.exists()


def test_a_profile_of_the_user_decides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ACCELCTL_NO_CONFIG", raising=False)
    use(monkeypatch, step("ops", lambda job: passed(os.environ.get("ACCELCTL_NO_CONFIG", "unset"))))
    assert carried_out(str(tmp_path)).steps[0].reason == "1"
    assert "ACCELCTL_NO_CONFIG" not in os.environ


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_step_that_somebody_ends_decides_nothing(number: int) -> None:
    def ended(say: Say) -> Came:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        raise AssertionError

    def in_order(say: Say) -> Came:
        raise SystemExit(128 + number)

    for work in (ended, in_order):
        came, _ = in_box(work)
        assert (came.result, came.cut, came.findings) == (INCONCLUSIVE, True, ())
        assert signal.Signals(number).name in came.reason


ERRORS: list[tuple[BaseException, str, list[str], bool]] = [
    (NoDeviceError("gone"), INCONCLUSIVE, [], False),
    (PermissionDenied("denied"), INCONCLUSIVE, [], False),
    (UsageError("wrong file"), INCONCLUSIVE, [], False),
    (AccelError("told by a process of ours", kind="no_device"), INCONCLUSIVE, [], False),
    (AccelError("told by a process of ours", kind="permission"), INCONCLUSIVE, [], False),
    (ModuleNotFoundError("the Python package x is not installed", name="x"), INCONCLUSIVE, [], False),
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


@pytest.mark.parametrize("option", ["expect", "baseline", "caps"])
def test_a_pipe_is_refused_and_not_waited_for(option: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=f"--{option} .*pipe: not a plain file"):
        run.check(replace(Order(), **{option: str(tmp_path / "pipe")}))  # type: ignore[arg-type]


def test_what_nothing_can_be_compared_with_is_refused(tmp_path: Path) -> None:
    (tmp_path / "type.toml").write_text('schema = "accelctl.expect/1"\n')
    with pytest.raises(UsageError, match="expects nothing"):
        run.check(Order(expect=str(tmp_path / "type.toml")))
    place = Fingerprint(device="sim:0", title="t", driver="sim", simulated=True, cpu="c", cpus=2, versions={})
    empty = BenchReport(fingerprint=place, chip="sim", proven="", command="", seconds=1.0, rounds=0)
    store.save(str(tmp_path / "base.json"), empty)
    with pytest.raises(UsageError, match="no figures"):
        run.check(Order(baseline=str(tmp_path / "base.json")))


@pytest.mark.parametrize(("order", "word"), WRONG)
def test_mistakes_are_told_before_anything_runs(order: Order, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        run.check(order)


def _without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "numpy" else object())


def test_a_missing_package_is_told_before_any_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says nothing about a device."""
    _without_numpy(monkeypatch)
    use(monkeypatch, step("ops", lambda job: passed("ran")))
    with pytest.raises(NoDeviceError, match="numpy is not installed") as caught:
        carried_out(str(tmp_path / "state"))
    assert caught.value.hint == extra("umd")
    assert not (tmp_path / "state" / "state.json").exists()


def test_a_device_that_does_not_compute_needs_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _without_numpy(monkeypatch)
    use(monkeypatch, step("lifecycles", lambda job: passed("ran")), found=(REAL,))
    report = carried_out(str(tmp_path / "state"))
    assert [one.result for one in report.steps] == [PASS]
