"""Two devices op by op: equal ones are in step, and a device that is wrong in one op is found at that op."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from accelctl.abi.opset import OPS
from accelctl.errors import AccelError, NoDeviceError, UsageError
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

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *rest: object) -> None:
        return

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


def _run(first: Any, second: Any, monkeypatch: Any) -> AlignReport:
    labs = iter((first, second))
    monkeypatch.setattr(align, "Lab", lambda name: next(labs))
    return align.run("right:0", "other:0")


def test_samples_have_every_op() -> None:
    assert {step.op for _, step in STEPS} == set(OPS)


def test_equal_devices_are_in_step(monkeypatch: Any) -> None:
    report = _run(Reference(), Reference("other:0"), monkeypatch)
    assert report.counts == {"pass": len(STEPS), "fail": 0, "skip": 0}
    assert (report.drift, report.verdict, report.exit_code) == (None, "passed", 0)


@pytest.mark.parametrize("at", range(len(STEPS)), ids=lambda at: f"{at}-{STEPS[at][1].op}")
def test_the_op_that_drifts_is_named(at: int, monkeypatch: Any) -> None:
    report = _run(Reference(), Reference("other:0", at, 3.0), monkeypatch)
    drift = report.drift
    assert drift is not None
    assert (drift.number, drift.sample, drift.op) == (at, STEPS[at][0].name, STEPS[at][1].op)
    assert drift.first is not None
    assert "other:0 is off the float64 reference" in drift.detail
    assert [row.number for row in report.rows if row.result == "fail"] == [at]
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert drift.name in render.align_text(report, TERM).splitlines()[-1]


def test_the_first_device_may_be_the_wrong_one(monkeypatch: Any) -> None:
    report = _run(Reference("right:0", 9, 3.0), Reference("other:0"), monkeypatch)
    assert report.drift is not None
    assert (report.drift.number, report.drift.op) == (9, "matmul")
    assert "right:0 is off the float64 reference" in report.drift.detail
    assert len([row for row in report.rows if row.result == "fail"]) == 1  # what follows starts from the same operands


@pytest.mark.parametrize(("off", "drifts"), [(2e-6, False), (1e-4, True)])
def test_what_two_right_results_may_differ_by_is_no_drift(off: float, drifts: bool, monkeypatch: Any) -> None:
    report = _run(Reference(), Reference("other:0", 5, off), monkeypatch)  # layernorm: rtol and atol 1e-5
    assert (report.drift is not None) is drifts


def test_an_exact_op_may_not_differ_at_all(monkeypatch: Any) -> None:
    report = _run(Reference(), Reference("other:0", 1, 1e-6), monkeypatch)
    assert report.drift is not None
    assert (report.drift.op, report.drift.tolerance) == ("add", "twice exact")


@pytest.mark.parametrize(("kind", "result"), [("not_supported", "skip"), ("timeout", "fail")])
def test_a_device_that_does_not_compute_an_op(kind: str, result: str, monkeypatch: Any) -> None:
    report = _run(Reference(), Reference("other:0", 4, kind=kind), monkeypatch)
    assert (report.rows[4].result, report.rows[4].detail) == (result, "other:0: it cannot")
    assert all(row.result == "pass" for row in report.rows if row.number != 4)


def test_the_simulated_chip_is_in_step_with_the_reference(monkeypatch: Any) -> None:
    sim = align.Lab("sim:0")
    report = _run(sim, Reference("other:0"), monkeypatch)
    assert [f"{row.name}: {row.detail}" for row in report.rows if row.result != "pass"] == []
    assert report.verdict == "passed (simulated)"
    document = json.loads(json.dumps(render.align_document(report)))
    assert (document["drift"], document["simulated"], len(document["ops"])) == (None, True, len(STEPS))
    suite = ElementTree.fromstring(render.align_junit(report).encode()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == (str(len(STEPS)), "0")


def test_wrong_devices() -> None:
    with pytest.raises(UsageError, match="agrees with itself"):
        align.run("sim:0", "sim:0")
    with pytest.raises(NoDeviceError, match="no chip is called nothing"):
        align.run("sim:0", "nothing:0")
