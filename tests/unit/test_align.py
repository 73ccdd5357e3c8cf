"""Two devices op by op: equal ones are in step, and a device that is wrong in one op is found at that op."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from accelctl.abi import compute
from accelctl.abi.opset import OPS
from accelctl.errors import AccelError, DeviceUnusable, UsageError
from accelctl.model.alignreport import AlignReport
from accelctl.render import semantics as render
from accelctl.render.term import Term
from accelctl.smoke import align
from accelctl.smoke.samples import SAMPLES

TERM = Term(tty=False, width=None, colors=None, unicode=True)
STEPS = [(sample, step) for sample in SAMPLES for step in sample.steps]


class Reference(align.Lab):
    """A device that computes the reference, rounded; wrong in its ``at``-th op by ``off``."""

    def __init__(self, name: str = "right:0", at: int = -1, off: float = 0.0, kind: str = "") -> None:
        self.name, self.simulated = name, False
        self.at, self.off, self.kind, self.calls = at, off, kind, 0

    def compute(self, trial: Any) -> dict[str, Any]:
        """See Lab."""
        found = {name: align._stored(trial, name).copy() for name in trial.expected}
        number, self.calls = self.calls, self.calls + 1
        if number == self.at:
            if self.kind:
                raise AccelError("it cannot", kind=self.kind)
            first = found[next(iter(found))]
            first[(0,) * first.ndim] += np.asarray(self.off, first.dtype)
        return found


def _run(first: Any, second: Any) -> AlignReport:
    """In this process."""
    rows = tuple(seen.row for seen in align.beside(first, second, 0))
    return AlignReport(device="right:0", other="other:0", simulated=first.simulated, seed=0, rows=rows)


def test_samples_have_every_op() -> None:
    assert {step.op for _, step in STEPS} == set(OPS)


def test_equal_devices_are_in_step() -> None:
    report = _run(Reference(), Reference("other:0"))
    assert report.counts == {"pass": len(STEPS), "fail": 0, "skip": 0}
    assert (report.drift, report.verdict, report.exit_code) == (None, "passed", 0)


@pytest.mark.parametrize("at", range(len(STEPS)), ids=lambda at: f"{at}-{STEPS[at][1].op}")
def test_the_op_that_drifts_is_named(at: int) -> None:
    report = _run(Reference(), Reference("other:0", at, 3.0))
    drift = report.drift
    assert drift is not None
    assert (drift.number, drift.sample, drift.op) == (at, STEPS[at][0].name, STEPS[at][1].op)
    assert drift.first is not None
    assert "other:0 is off the float64 reference" in drift.detail
    assert [row.number for row in report.rows if row.result == "fail"] == [at]
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert drift.name in render.align_text(report, TERM).splitlines()[-1]


def test_the_first_device_may_be_the_wrong_one() -> None:
    report = _run(Reference("right:0", 9, 3.0), Reference("other:0"))
    assert report.drift is not None
    assert (report.drift.number, report.drift.op) == (9, "matmul")
    assert "right:0 is off the float64 reference" in report.drift.detail
    assert len([row for row in report.rows if row.result == "fail"]) == 1  # what follows starts from the same operands


@pytest.mark.parametrize(("off", "drifts"), [(2e-6, False), (1e-4, True)])
def test_what_two_right_results_may_differ_by_is_no_drift(off: float, drifts: bool) -> None:
    report = _run(Reference(), Reference("other:0", 5, off))  # layernorm: rtol and atol 1e-5
    assert (report.drift is not None) is drifts


def test_an_exact_op_may_not_differ_at_all() -> None:
    report = _run(Reference(), Reference("other:0", 1, 1e-6))
    assert report.drift is not None
    assert (report.drift.op, report.drift.tolerance) == ("add", "twice exact")


@pytest.mark.parametrize(("kind", "result"), [("not_supported", "skip"), ("launch_failure", "fail")])
def test_a_device_that_does_not_compute_an_op(kind: str, result: str) -> None:
    report = _run(Reference(), Reference("other:0", 4, kind=kind))
    assert (report.rows[4].result, report.rows[4].detail) == (result, "other:0: it cannot")
    assert all(row.result == "pass" for row in report.rows if row.number != 4)


def test_the_simulated_chip_is_in_step_with_the_reference() -> None:
    sim = align.Lab("sim:0").open()
    report = _run(sim, Reference("other:0"))
    sim.close()
    assert [f"{row.name}: {row.detail}" for row in report.rows if row.result != "pass"] == []
    assert report.verdict == "passed (simulated)"
    document = json.loads(json.dumps(render.align_document(report)))
    assert (document["drift"], document["simulated"], len(document["ops"])) == (None, True, len(STEPS))
    suite = ElementTree.fromstring(render.align_junit(report).encode()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == (str(len(STEPS)), "0")


FIRST_OF = [sum(len(one.steps) for one in SAMPLES[:number]) for number in range(len(SAMPLES))]


def _stands_in(what: str, deadline_s: float, monkeypatch: Any) -> AlignReport:
    """A run whose process is tests.alignworker."""
    monkeypatch.setattr(align, "_MODULE", "tests.alignworker")
    monkeypatch.setattr(align, "DEADLINE_S", deadline_s)
    return align.run("right:0", f"other:{what}")


def test_a_device_that_does_not_finish_ends_its_sample_and_no_more(monkeypatch: Any) -> None:
    """The stream of its second op never gets done: the runtime waits its time, and gives nothing back."""
    report = _stands_in("stuck", 60.0, monkeypatch)
    bad = [row for row in report.rows if row.result == "fail"]
    assert [row.number for row in bad] == [1]
    assert "the stream is not done after 0.3 s" in bad[0].detail
    assert [row.number for row in report.rows] == [0, 1, *range(FIRST_OF[1], len(STEPS))]
    assert (report.hang, report.verdict, report.exit_code) == (bad[0].name, "failed", 6)
    assert f"it hangs: {bad[0].name}" in render.align_text(report, TERM).splitlines()[-1]
    assert render.align_document(report)["hang"] == bad[0].name


@pytest.mark.parametrize(
    ("what", "deadline_s", "words", "hangs"),
    [("deaf", 2.0, "no answer after 2 s", True), ("dies", 60.0, "its process died: killed by SIGSEGV", False)],
)
def test_what_ends_its_process_costs_the_rest_of_a_sample(
    what: str, deadline_s: float, words: str, hangs: bool, monkeypatch: Any
) -> None:
    report = _stands_in(what, deadline_s, monkeypatch)
    bad = [row for row in report.rows if row.result == "fail"]
    assert [(row.number, row.op, row.detail) for row in bad] == [(1, STEPS[1][1].op, words)]
    assert [row.number for row in report.rows] == [0, 1, *range(FIRST_OF[1], len(STEPS))]
    assert (bool(report.hang), report.exit_code) == (hangs, 6 if hangs else 1)


def test_a_process_that_cannot_start_again_keeps_what_was_found(monkeypatch: Any) -> None:
    report = _stands_in("lost", 60.0, monkeypatch)
    assert [row.result for row in report.rows] == ["pass", "fail", "fail"]
    assert report.rows[-1].number == FIRST_OF[1]
    assert "it fell off the bus" in report.rows[-1].detail


def test_a_device_whose_kernels_cannot_be_built_is_no_list_of_failures(monkeypatch: Any) -> None:
    def fails(target: Any) -> None:
        raise DeviceUnusable("sim:0: its kernels cannot be built: error: unknown target CPU")

    ops = compute.named("sim:0").chip.ops
    monkeypatch.setattr(type(ops), "prepare", lambda self, target: fails(target), raising=False)
    with pytest.raises(DeviceUnusable, match="cannot be built"):
        align.Lab("sim:0").open()


def test_a_reason_that_many_ops_have_is_told_once_and_on_one_line() -> None:
    runner = align._Runner("a:0", "b:0", 0, lambda name, number, count: None)
    for number in range(3):
        runner._note(align.Seen(align._row(0, number, "relu:\n\n  it broke\n")))
    assert [row.detail for row in runner.rows] == ["relu: it broke", "as op 0", "as op 0"]


def test_wrong_devices() -> None:
    with pytest.raises(UsageError, match="agrees with itself"):
        align.run("sim:0", "sim:0")
    with pytest.raises(AccelError, match="no chip is called nothing") as caught:
        align.run("sim:0", "nothing:0")
    assert caught.value.kind == "no_device"
