"""The OpenCL chip on whatever OpenCL device is here (PoCL on the CPU in CI), through the service and by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelctl.abi import compute, conformance, opscheck, registry
from accelctl.abi.lifecycle import Env
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import dense_strides
from accelctl.backends.opencl import platform
from accelctl.errors import NoDeviceError, extra
from accelctl.memory.va import GoodFit
from accelctl.smoke.cases import Case, select
from accelctl.smoke.run import Request, carry_out
from accelctl.umd.chip import Chip
from accelctl.umd.server import serve
from accelctl.umd.service import Service

try:
    DEVICES = registry.load("opencl").ops.devices()  # type: ignore[union-attr]
except NoDeviceError as error:
    pytest.skip(f"no OpenCL device: {error.message}", allow_module_level=True)

ENV = Env(space=lambda base, size, granule: GoodFit(base, size, granule=granule))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service on the first device, in this process: programs are built once for all tests."""
    found = compute.named("opencl:0")
    path = f"unix:{tmp_path_factory.mktemp('serve')}/s"
    server = serve(Service(Chip.registered(found.chip, found.device.target)), path)
    yield path
    server.stop()


@pytest.mark.parametrize("op", list(OPS))
def test_every_case_of_an_op_is_right(op: str, address: str) -> None:
    report = carry_out(Request(target=address, ops=(op,)))
    bad = [f"{row.id}: {row.detail}" for row in report.rows if row.result != "pass"]
    assert bad == []
    assert report.verdict == "passed"
    assert not report.simulated


def test_every_kernel_stands_on_the_first_five_rungs(address: str) -> None:
    """copy is the exception that is no exception: it is an op as well."""
    cases = {case.op: case.id for case in reversed(select(dtypes=("fp32", "int32"))) if _plain(case)}
    for op in OPS:
        report = carry_out(Request(target=address, ops=(op,), cases=cases[op]))
        mine = [one for one in report.evidence if one.op == op]
        assert [rung.rung for rung in mine[0].rungs][:5] == [
            "blob golden",
            "kernel alone",
            "through the service",
            "dispatch counted",
            "replayed from the cache",
        ], (op, cases[op], report.rows)


def _plain(case: Case) -> bool:
    """Dense operands that are not empty, nothing in place, no refusal: one kernel does it."""
    trial = case.load()
    ins, outs = trial.inputs.values(), trial.outputs.values()
    there = [*((one.shape, one.strides) for one in ins), *((one.shape, one.strides) for one in outs)]
    dense = all(strides == dense_strides(shape) and 0 not in shape for shape, strides in there)
    return dense and trial.refusal is None and not any(out.alias for out in outs)


def test_memory_and_ops_keep_their_contracts() -> None:
    chip, target = registry.load("opencl"), DEVICES[0].target
    opscheck.check_ops(
        chip, target, ENV
    )  # the driver opens descriptors for itself with the first kernel that it builds
    checks = [*conformance.check_memory(chip, target, ENV), *opscheck.check_ops(chip, target, ENV)]
    checks += conformance.check_schedule(chip, target, ENV)
    assert [f"{one.name}: {one.detail}" for one in checks if one.result == "fail"] == []
    assert len(checks) > 10


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(NoDeviceError, match="opencl:99 is not here"):
        compute.named("opencl:99")


def test_without_pyopencl_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyopencl", None)
    platform.module.cache_clear()
    try:
        with pytest.raises(NoDeviceError) as caught:
            platform.module()
    finally:
        platform.module.cache_clear()
    assert caught.value.hint == extra("opencl")


def test_a_cpu_is_never_the_default() -> None:
    if any(one.accelerator for one in DEVICES):
        pytest.skip("a real OpenCL accelerator is here")
    with pytest.raises(NoDeviceError, match=r"by name only: .*opencl:0"):
        compute.choose([])
