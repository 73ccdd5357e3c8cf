"""The portable runtime on an OpenCL device: its contract, collectives, and op by op beside the simulated chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelctl.abi import compute
from accelctl.abi.runtime.collectives import ALL_REDUCE, Collective
from accelctl.abi.semantics import ASSERTIONS
from accelctl.errors import NoDeviceError
from accelctl.smoke import align, semantics
from tests.groupkit import group

try:
    DEVICES = [one.device.target.id for one in compute.devices("opencl")]
except NoDeviceError as error:
    pytest.skip(f"no OpenCL device: {error.message}", allow_module_level=True)


def test_the_contract_is_kept() -> None:
    report = semantics.run(DEVICES[0])
    assert [f"{row.id}: {row.detail}" for row in report.rows if row.result == "fail"] == []
    assert {row.id for row in report.rows} == set(ASSERTIONS)
    skipped = {row.id: row.detail for row in report.rows if row.result == "skip"}
    for identity, detail in skipped.items():
        flag = detail.partition(":")[0]
        told = identity in {"mem_info/2", "alloc_alignment_granularity/2"}  # OpenCL does not say what is free
        assert told or report.capabilities.get(flag) == "absent" or "it needs two devices" in detail, identity
    assert report.capabilities["memory_info"] == "emulated"
    assert report.counts["pass"] >= 95
    assert (report.verdict, report.simulated) == ("passed", False)


def test_ranks_get_what_numpy_gets() -> None:
    made = group(DEVICES[0], 3)
    rows = [np.random.default_rng(rank).normal(0, 1, 1000).astype(np.float32) for rank in range(3)]
    found = made.run([Collective(ALL_REDUCE, row.tobytes(), row.size) for row in rows], 60.0)
    made.close()
    assert [one.data for one in found] == [((rows[0] + rows[1]) + rows[2]).tobytes()] * 3


def test_it_is_in_step_with_the_simulated_chip() -> None:
    report = align.run(DEVICES[0], "sim:0")
    assert [f"{row.name}: {row.detail}" for row in report.rows if row.result != "pass"] == []
    assert report.verdict == "passed (simulated)"


def test_a_kernel_that_is_wrong_is_named(monkeypatch: Any) -> None:
    inner = align.Lab.compute

    def wrong(lab: Any, trial: Any) -> Any:
        found = inner(lab, trial)
        if lab.name == DEVICES[0] and trial.case.op == "rope" and "layer" in trial.case.id:
            found["Y"] = found["Y"] * np.float32(1.001)
        return found

    monkeypatch.setattr(align.Lab, "compute", wrong)
    pair = align.Lab("sim:0").open(), align.Lab(DEVICES[0]).open()
    drift = next(seen.row for seen in align.beside(*pair, 0) if seen.row.result == "fail")
    for one in pair:
        one.close()
    assert (drift.sample, drift.op) == ("transformer layer", "rope")
    assert f"{DEVICES[0]} is off the float64 reference" in drift.detail
