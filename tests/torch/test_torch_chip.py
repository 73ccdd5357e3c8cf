"""The torch chip on the CPU, through the service and by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accelctl.abi import compute, conformance, opscheck, registry
from accelctl.abi.call import Call
from accelctl.abi.lifecycle import Env
from accelctl.abi.opset import OPS
from accelctl.abi.queue import LOST
from accelctl.abi.tensors import DTYPES, Tensor
from accelctl.backends.torch.ops import kernels
from accelctl.errors import DeviceUnusable, NoDeviceError, UsageError
from accelctl.memory.va import GoodFit
from accelctl.smoke.cases import select
from accelctl.smoke.run import Request, carry_out
from accelctl.umd.chip import Chip
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests import opskit
from tests.opskit import Out, array

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: its chip is not tried")

ENV = Env(space=lambda base, size, granule: GoodFit(base, size, granule=granule))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    found = compute.named("torch:cpu")
    path = f"unix:{tmp_path_factory.mktemp('serve')}/s"
    server = serve(Service(Chip.registered(found.chip, found.device.target)), path)
    yield path
    server.stop()


@pytest.mark.parametrize("op", list(OPS))
def test_every_case_of_an_op_is_right(op: str, address: str) -> None:
    report = carry_out(Request(target=address, ops=(op,)))
    bad = [f"{row.id}: {row.detail}" for row in report.rows if row.result != "pass"]
    assert bad == []
    assert (report.verdict, report.simulated) == ("passed", False)
    assert len(report.rows) >= len(select([op]))
    (mine,) = [one for one in report.evidence if one.op == op]
    assert [rung.rung for rung in mine.rungs][:5] == [
        "blob golden",
        "kernel alone",
        "through the service",
        "dispatch counted",
        "replayed from the cache",
    ]


def test_contracts_are_kept() -> None:
    chip, target = registry.load("torch"), compute.named("torch:cpu").device.target
    checks = [
        *conformance.check_memory(chip, target, ENV),
        *conformance.check_queue(chip, target, ENV),
        *opscheck.check_ops(chip, target, ENV),
    ]
    assert [f"{one.name}: {one.detail}" for one in checks if one.result == "fail"] == []
    assert len(checks) > 20


def test_a_cpu_is_never_the_default() -> None:
    if any(one.device.accelerator for one in compute.everything()[0]):
        pytest.skip("an accelerator is here")
    with pytest.raises(NoDeviceError, match=r"by name only: .*torch:cpu"):
        compute.choose([])


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(NoDeviceError, match="torch:cuda:77 is not here"):
        compute.named("torch:cuda:77")


@pytest.fixture
def machine() -> Iterator[opskit.Machine]:
    chip = registry.load("torch")
    assert chip.memory is not None
    assert chip.ops is not None
    session = chip.memory.open(compute.named("torch:cpu").device.target, ENV)
    with opskit.machine(chip.ops, session) as found:
        yield found
    session.close()


def test_products_of_int32_wrap(machine: opskit.Machine) -> None:
    """Against 64-bit integers that wrap, with the numbers at which halves carry."""
    rng = np.random.default_rng(1)
    edges = np.array([-(1 << 31), (1 << 31) - 1, -1, 0xFFFF, 0x10000, -0x10000, 0, 1], np.int64)
    a, b = (rng.choice(edges, shape).astype(np.int32) for shape in ((5, 700), (700, 6)))
    a[0], b[:, 0] = -(1 << 31), (1 << 31) - 1
    found = machine.run("matmul", {"A": a, "B": b}, {"Y": Out((5, 6), "int32")})["Y"]
    assert (found == (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_sum_in_fp64_is_rounded_once(machine: opskit.Machine, dtype: str) -> None:
    """1 + half of the last place + a little: by way of fp32 the little is lost, and the tie goes to the even one."""
    half = 2.0**-11 if dtype == "fp16" else 2.0**-8
    a, b = array([1.0], dtype), array([1.0], dtype)
    found = machine.run("add", {"A": a, "B": b}, {"C": Out((1,), dtype)}, alpha=repr(half + 2.0**-40))["C"]
    assert float(found[0]) == 1.0 + 2 * half


def test_results_of_another_shape_end_the_ring(machine: opskit.Machine) -> None:
    """A call that the service would never make: not repeated into the output, and nobody waits for ever."""
    made = machine.call("relu", {"X": array([1.0])}, {"Y": Out((4,))})
    before = machine.read(made.outputs[0])  # type: ignore[arg-type]
    point = machine.ring.submit(machine.instruction(made))
    with pytest.raises(DeviceUnusable, match=r"instruction 1 failed: a result of shape \(1,\)"):
        machine.ring.wait(point, 10.0)
    assert machine.ring.state == LOST
    assert machine.read(made.outputs[0]).tobytes() == before.tobytes()  # type: ignore[arg-type]


def test_what_is_refused_before_it_runs(machine: opskit.Machine) -> None:
    made = machine.call("matmul", {"A": array([[1]], "int8"), "B": array([[1]], "uint8")}, {"Y": Out((1, 1), "int32")})
    kernel = machine.ops.templates()[0]
    with pytest.raises(UsageError, match="its operands have one type"):
        machine.ring.submit(machine.instruction(made, kernel))
    assert machine.ring.state == "idle"


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "said"),
    [
        ("relu", [(1 << 31,), (1 << 31,)], {}, "at most 1073741824 elements"),
        ("matmul", [(1 << 20, 1, 1 << 10), (1 << 10, 2), (1 << 20, 1, 2)], {}, "room for 2147483648 elements"),
        ("matmul", [(1 << 15, 1 << 15), (1 << 15, 1 << 15), (1 << 15, 1 << 15)], {}, "35184372088832 products"),
        ("conv2d", [(1, 1, 8, 8), (1, 1, 1, 1), None, (1, 1, 1, 1)],
         {"pads": "0,0,65536,65536", "strides": "99999,99999"}, "room for 4296015936 elements"),
        ("attention_prefill", [(1 << 16, 1, 1), (1, 1 << 16, 1), (1, 1 << 16, 1), None, (1 << 16, 1, 1), None],
         {}, "room for 4294967296 elements"),
        ("moe_align", [(1, 1), None, (65537,), (65537,), (1,)], {"num_experts": "65537", "block_size": "1"},
         "1 to 65536 experts"),
    ],
)  # fmt: skip
def test_one_request_cannot_take_all_memory(op: str, shapes: list[Any], attrs: dict[str, str], said: str) -> None:
    """Tensors that are repeated by strides of 0 cost their client nothing."""
    dtype = DTYPES["int32" if op == "moe_align" else "fp32"]
    made = [None if one is None else Tensor(one, dtype, (0,) * len(one)) for one in shapes]
    table = OPS[op]
    count = len(table.inputs)
    call = Call(table, tuple(made[:count]), tuple(made[count:]), table.parse(attrs))
    template = kernels.BY_ID[table.code]
    assert template.refuses is not None
    assert said in template.refuses(call)


def test_a_long_sequence_is_a_fault(machine: opskit.Machine) -> None:
    cache, table = array(np.zeros((1, 1 << 16, 1, 8))), np.zeros((1, 1 << 12), np.int32)
    inputs = {"Q": array(np.zeros((1, 1, 8))), "k_cache": cache, "v_cache": cache, "block_table": table}
    lens = np.array([1 << 28], np.int32)
    with pytest.raises(DeviceUnusable, match="more than one instruction may ask for"):
        machine.run("attention_decode", {**inputs, "seq_lens": lens}, {"O": Out((1, 1, 8))}, block_size="65536")


INPUTS = {
    "relu": {"X": array(np.ones((3, 4)))},
    "matmul": {"A": array(np.ones((3, 4))), "B": array(np.ones((4, 2)))},
    "softmax": {"X": array(np.ones((3, 4)))},
    "grouped_gemm": {"A": array(np.ones((3, 4))), "B": array(np.ones((2, 4, 2))), "offs": array([1, 3], "int32")},
    "moe_align": {"topk_ids": array([[0, 1], [1, 0]], "int32")},
    "copy": {"X": array(np.ones((3, 4)))},
}
OUTPUTS = {
    "relu": {"Y": Out((3, 4))},
    "matmul": {"Y": Out((3, 2))},
    "softmax": {"Y": Out((3, 4))},
    "grouped_gemm": {"Y": Out((3, 2))},
    "moe_align": {
        "sorted_token_ids": Out((8,), "int32"), "expert_ids": Out((2,), "int32"),
        "num_tokens_post_pad": Out((1,), "int32"),
    },
    "copy": {"Y": Out((3, 4), "int8")},
}  # fmt: skip
ATTRS = {"moe_align": {"num_experts": "2", "block_size": "3"}}


@pytest.mark.parametrize("op", list(INPUTS))
def test_damaged_instructions_touch_nothing_else(op: str) -> None:
    """Refused, or run inside the session's memory, or the end of their ring: never of the process. Another session has
    the same addresses."""
    chip, target = registry.load("torch"), compute.named("torch:cpu").device.target
    assert chip.memory is not None
    assert chip.ops is not None
    rng, counts = np.random.default_rng(3), Counter[str]()
    session, neighbour = (chip.memory.open(target, ENV) for _ in range(2))
    with (
        opskit.machine(chip.ops, neighbour, 8192) as other,
        opskit.machine(chip.ops, session, 8192) as machine,
    ):
        assert other.block.map is not None
        assert other.block.address == machine.block.address
        other.block.map[:] = bytes([opskit.EMPTY]) * 8192
        made = machine.call(op, INPUTS[op], OUTPUTS[op], **ATTRS.get(op, {}))
        right = machine.instruction(made)
        for _ in range(400):
            work = bytearray(right)
            for at in rng.integers(0, len(work), rng.integers(1, 4)):
                work[at] ^= 1 << rng.integers(0, 8)
            ring = chip.ops.open(session, 4)
            try:
                assert ring.wait(ring.submit(bytes(work)), 60.0)
                counts["ran"] += 1
            except UsageError:
                counts["refused"] += 1
            except DeviceUnusable:
                counts["lost"] += 1
            ring.close()
        assert bytes(other.block.map) == bytes([opskit.EMPTY]) * 8192
        machine.ring.wait(machine.ring.submit(right), 60.0)
    session.close()
    neighbour.close()
    assert counts["refused"] > 200
    assert counts.total() == 400


def test_a_device_without_fp64_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*words: Any, **more: Any) -> Any:
        raise RuntimeError("Required aspect fp64 is not supported on the device\n  advice")

    monkeypatch.setattr(torch, "ones", ones)
    chip = registry.load("torch")
    assert chip.memory is not None
    with pytest.raises(DeviceUnusable, match=r"torch:cpu: Required aspect fp64 is not supported on the device$"):
        chip.memory.open(compute.named("torch:cpu").device.target, ENV)


def test_memory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """As on a device whose memory is not the CPU's: pages and tensor are two things, and sync copies."""
    monkeypatch.setattr("accelctl.backends.torch.ops.platform.on_host", lambda device: False)
    chip, target = registry.load("torch"), compute.named("torch:cpu").device.target
    assert chip.memory is not None
    checks = [*conformance.check_memory(chip, target, ENV), *opscheck.check_ops(chip, target, ENV)]
    assert [f"{one.name}: {one.detail}" for one in checks if one.result == "fail"] == []
    server = serve(Service(Chip.registered(chip, target)), f"unix:{tmp_path}/s")
    try:
        report = carry_out(Request(target=f"unix:{tmp_path}/s", ops=("add", "attention_decode")))
    finally:
        server.stop()
    assert [f"{row.id}: {row.detail}" for row in report.rows if row.result != "pass"] == []
