"""`accelctl bench` on an OpenCL device (PoCL on the CPU in CI): real figures, and results against another chip's."""

from __future__ import annotations

import pytest

from accelctl.abi import compute, registry
from accelctl.accept.bench import golden
from accelctl.accept.bench.run import measure
from accelctl.errors import NoDeviceError
from accelctl.hal.devfile import open_files
from accelctl.model.benchreport import STAGES

try:
    DEVICES = registry.load("opencl").ops.devices()  # type: ignore[union-attr]
except NoDeviceError as error:
    pytest.skip(f"no OpenCL device: {error.message}", allow_module_level=True)


def test_a_real_device_is_measured_and_never_called_simulated() -> None:
    before = open_files()
    report = measure(["opencl:0"], ["bandwidth", "lifecycles", "ops"], 4.0)
    assert report.verdict == "measured"
    assert not report.simulated
    names = {one.name for one in report.figures}
    assert {"h2d mapped 1 MiB", "d2h mapped 1 MiB", "h2d service 1 MiB", "d2d kernel 1 MiB", "buffer"} <= names
    assert {one.op for one in report.ops} >= {"add", "matmul", "softmax"}
    for row in report.ops:
        assert set(row.stages) == set(STAGES)
        assert row.kernel
    assert open_files() == before


def test_a_device_on_this_cpu_has_a_plain_copy_as_its_ceiling() -> None:
    found = compute.named("opencl:0")
    if found.device.accelerator:
        pytest.skip("this one has a link")
    report = measure(["opencl:0"], ["bandwidth"], 2.0)
    ceilings = {one.ceiling.name for one in report.figures if one.ceiling is not None}
    assert ceilings == {"a plain copy in this machine's memory"}
    large = next(one for one in report.figures if one.name.startswith("h2d mapped") and "MiB" in one.name)
    assert large.of_ceiling is not None
    assert large.of_ceiling < 1.5


def test_results_of_two_chips_differ_within_what_ops_may_be_off() -> None:
    found = golden.compare(golden.gather(["sim:0"]), golden.gather(["opencl:0"]))
    assert found.exit_code == 0
    assert {row.word for row in found.rows} <= {"drift", "missing", "new"}
    assert found.equal > 0
    assert "device sim:0 -> opencl:0" in found.differs
