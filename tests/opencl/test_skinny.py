"""The special product with one column, beside the general one: both are right on every shape that the special one
takes, each is used where it should be, and it takes nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelctl.abi import compute, registry
from accelctl.abi.lifecycle import Env
from accelctl.abi.platforms import offers_of, platform_of, templates_of
from accelctl.errors import NoDeviceError, UsageError
from accelctl.memory.va import GoodFit

try:
    registry.load("opencl").ops.devices()  # type: ignore[union-attr]
except NoDeviceError as error:
    pytest.skip(f"no OpenCL device: {error.message}", allow_module_level=True)

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.smoke.run import Request, carry_out
from accelctl.umd.chip import Chip
from accelctl.umd.dispatch import FALLBACK, HIT, dispatch_of
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests.opskit import EMPTY, Machine, Out, machine
from tests.umdkit import Client

FOUND = compute.named("opencl:0")
KERNELS = templates_of(FOUND)
MATVEC, GENERAL = KERNELS["matvec"], KERNELS["matmul"]


@pytest.fixture(scope="module")
def bare() -> Iterator[Machine]:
    memory, ops = FOUND.chip.memory, FOUND.chip.ops
    assert memory is not None
    assert ops is not None
    env = Env(space=lambda base, size, granule: GoodFit(base, size, granule=granule))
    session = memory.open(FOUND.device.target, env)
    with machine(ops, session, size=8 << 20) as made:
        yield made
    session.close()


@given(
    rows=st.integers(0, 70),
    length=st.integers(1, 70) | st.sampled_from([2047, 2048, 2049, 4096, 4099]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_both_are_right_and_write_nothing_else(bare: Machine, rows: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, length), (length, 1)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    allowed = 2e-6 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)) + 1e-30
    for kernel in (GENERAL, MATVEC):
        call = bare.call("matmul", {"A": a, "B": b}, {"Y": Out((rows, 1))})
        assert bare.ring.wait(bare.ring.submit(bare.instruction(call, kernel)), 60.0)
        (y,) = (one for one in call.outputs if one is not None)
        assert (np.abs(bare.read(y).astype(np.float64) - want) <= allowed).all()
        assert bare.block.map is not None
        end = y.address - bare.block.address + y.nbytes
        assert bytes(bare.block.map[end : end + 200]) == bytes([EMPTY]) * 200


def test_what_is_no_number_stays_so(bare: Machine) -> None:
    a, b = np.zeros((3, 40), np.float32), np.ones((40, 1), np.float32)
    a[1, 39], a[2, 5], b[5] = np.nan, 0, np.inf
    call = bare.call("matmul", {"A": a, "B": b}, {"Y": Out((3, 1))})
    assert bare.ring.wait(bare.ring.submit(bare.instruction(call, MATVEC)), 60.0)
    assert np.isnan(bare.run("matmul", {"A": a, "B": b}, {"Y": Out((3, 1))})["Y"]).all()
    assert call.outputs[0] is not None
    assert np.isnan(bare.read(call.outputs[0])).all()


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ((4, 8), (8, 2), "N == 1"),
        ((2, 4, 8), (8, 1), "batch == 1"),
        ((4, 0), (0, 1), "K >= 1"),
    ],
)
def test_the_driver_refuses_what_it_is_not_for(bare: Machine, a: tuple[int, ...], b: tuple[int, ...], why: str) -> None:
    out = (*a[:-1], b[-1])
    call = bare.call("matmul", {"A": np.ones(a, np.float32), "B": np.ones(b, np.float32)}, {"Y": Out(out)})
    with pytest.raises(UsageError, match=f"matvec: it takes calls only where {why}"):
        bare.ring.submit(bare.instruction(call, MATVEC))


def test_smoke_proves_both_on_products_with_one_column(tmp_path_factory: pytest.TempPathFactory) -> None:
    service = Service(Chip.registered(FOUND.chip, FOUND.device.target))
    service.chip.dispatch = dispatch_of(FOUND, [], rung="none")
    path = f"unix:{tmp_path_factory.mktemp('serve')}/s"
    server = serve(service, path)
    try:
        report = carry_out(Request(target=path, ops=("matmul",), dtypes=("fp32",)))
    finally:
        server.stop()
    assert report.verdict == "passed"
    rungs = {one.kernel: [rung.rung for rung in one.rungs] for one in report.evidence}
    five = ["blob golden", "kernel alone", "through the service", "dispatch counted", "replayed from the cache"]
    assert rungs["matvec"] == rungs["matmul"] == five
    used = {row.id: row.kernel for row in report.rows}
    assert used["matmul/fp32/20-by-20"] == "matvec"
    assert used["matmul/fp32/3x1x4x2-by-2"] == "matmul", "one column as well, in batches"
    results = {count.result for count in service.chip.dispatch.counts()}
    assert results == {HIT, FALLBACK}


def test_halves_become_fp32_and_then_the_special_kernel_takes_them() -> None:
    service = Service(Chip.registered(FOUND.chip, FOUND.device.target))
    service.chip.dispatch = dispatch_of(FOUND, [], rung="none")
    try:
        client = Client(service)
        a, b = (client.put(np.ones(shape, np.float16)) for shape in ((4, 8), (8, 1)))
        response = client.respond("matmul", [a, b])
        names = [service.chip.by_number[one.kernel_id].name for one in response.instructions]
        assert names == ["copy", "copy", "matvec", "copy"]
        assert client.get(response.outputs[0]).tolist() == [[8.0]] * 4
        (count,) = service.chip.dispatch.counts()
        assert count == ("matvec", HIT, "", 1), "ways that no kernel takes are not counted"
    finally:
        service.close()


def test_the_platform_names_what_the_results_depend_on() -> None:
    versions = dict(platform_of(FOUND, MATVEC).versions)
    assert set(versions) == {"driver", "platform", "pyopencl", "source"}
    assert versions["source"] != dict(platform_of(FOUND, GENERAL).versions)["source"]
    assert offers_of(FOUND).resources["threads"] >= 64
