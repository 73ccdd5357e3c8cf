"""Where a chip lacks a kernel, copies are put around one that it has: the result is that of the op all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi import blob
from accelctl.abi.call import Call
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.errors import AbiError
from accelctl.smoke import reference
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import UNIMPLEMENTED, Refusal
from tests.opskit import NUMPY
from tests.umdkit import Array, Client, Kernels, client_of, view

RNG = np.random.default_rng(7)


def plain(template: Template) -> Template | None:
    """A chip that has everything in fp32 only, and wants all of it dense, but for what copies."""
    if template.op == "copy":
        return template
    if "fp32" in template.dtypes:
        return template._replace(dtypes=frozenset({"fp32"}), strided=False)
    return template._replace(strided=False)


def values(*shape: int) -> Array:
    return RNG.normal(size=shape)


ATTENTION = ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6))
CASES: list[tuple[str, list[Any], dict[str, str]]] = [
    ("matmul", [values(2, 3, 4), values(4, 5)], {}),
    ("conv2d", [values(1, 4, 6, 6), values(4, 2, 3, 3), values(4)], {"group": "2", "pads": "1,1,1,1"}),
    ("conv2d", [values(4, 6, 6), values(2, 4, 3, 3)], {"strides": "2,1"}),
    ("conv2d", [values(2, 6, 5, 4), values(2, 4, 3, 3)], {"layout": "nhwc", "auto_pad": "same_upper"}),
    ("conv2d", [values(6, 5, 4), values(2, 4, 3, 3)], {"layout": "nhwc", "pads": "0,1,0,1"}),
    ("layernorm", [values(3, 4, 5), values(4, 5), values(4, 5)], {"epsilon": "1e-5", "axis": "1"}),
    ("rmsnorm", [values(3, 8), values(8), values(3, 8)], {"epsilon": "1e-5", "variant": "fused_add"}),
    ("softmax", [values(3, 8)], {"axis": "0"}),
    ("relu", [values(5)], {}),
    ("add", [values(3, 1), values(1, 4)], {"alpha": "0.5"}),
    ("silu_and_mul", [values(3, 8)], {}),
    ("rope", [values(5, 2, 8), np.arange(5, dtype=np.int32)], {"style": "neox", "rotary_dim": "4"}),
    ("attention_prefill", [*(values(*shape) for shape in ATTENTION), values(3, 5)], {"causal": "lower_right"}),
    ("grouped_gemm", [values(5, 3), values(2, 3, 4), np.array([2, 5], np.int32)], {}),
    ("topk_softmax", [values(3, 6), values(6)], {"k": "2", "renormalize": "true"}),
]


def reference_of(op: str, arrays: Sequence[Array | None], attrs: dict[str, str]) -> dict[str, Array]:
    inputs = {operand.name: one for operand, one in zip(OPS[op].inputs, arrays, strict=False)}
    found = reference.compute(op, inputs, OPS[op].parse(attrs))
    return {name: np.asarray(one, np.float64) for name, one in found.items()}


def rounded(one: Any, dtype: str) -> Array:
    array = np.asarray(one)
    return array if array.dtype == np.int32 else array.astype(NUMPY[dtype])


def scattered(client: Client, array: Array) -> pb.TensorDesc:
    """The array as a view with gaps and its last two dimensions swapped."""
    if array.ndim < 2:
        wide = client.put(np.stack([array, np.full_like(array, 9)], axis=-1))
        return view(wide, array.shape, [2] * array.ndim)
    made = client.put(np.ascontiguousarray(np.swapaxes(array, -1, -2)))
    strides = [int(step // array.itemsize) for step in np.swapaxes(np.zeros(made.shape, array.dtype), -1, -2).strides]
    return view(made, array.shape, strides)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", ["dense", "scattered"])
@pytest.mark.parametrize("kernels", ["sim", "plain"])
@pytest.mark.parametrize(("op", "given", "attrs"), CASES, ids=[one[0] for one in CASES])
def test_every_op_on_every_chip(
    op: str,
    given: list[Any],
    attrs: dict[str, str],
    kernels: str,
    layout: str,
    dtype: str,
    client: Client,
    strict: Client,
) -> None:
    speaker = client if kernels == "sim" else strict
    arrays = [rounded(one, dtype) for one in given]
    given_as = [speaker.put(one) if layout == "dense" else scattered(speaker, one) for one in arrays]
    found = speaker.run(op, given_as, attrs)
    wanted = reference_of(op, arrays, attrs)
    tolerance = {"fp32": 2e-5, "fp16": 3e-3, "bf16": 2e-2}[dtype]
    for name, one in zip([operand.name for operand in OPS[op].outputs], found, strict=False):
        np.testing.assert_allclose(one.astype(np.float64), wanted[name], rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


@pytest.fixture(scope="module")
def strict() -> Iterator[Client]:
    with client_of(Kernels(plain)) as made:
        yield made


def kernels_of(answer: pb.OpResponse, speaker: Client) -> list[str]:
    table = speaker.service.chip.by_number
    return [table[one.kernel_id].op for one in answer.instructions]


def test_nothing_is_copied_without_need(client: Client) -> None:
    x = client.put(values(4, 6).astype(np.float32))
    for one in (x, view(x, (6, 4), (1, 6)), view(x, (4, 3), (6, 2))):
        assert kernels_of(client.translate(client.request("softmax", [one])), client) == ["softmax"]


def test_nhwc_on_a_strided_kernel_is_only_another_view(client: Client) -> None:
    """sim's convolution takes strides, so channels last costs no copy."""
    x, w = client.alloc((1, 5, 5, 2)), client.alloc((3, 2, 3, 3))
    answer = client.translate(client.request("conv2d", [x, w], {"layout": "nhwc"}))
    assert kernels_of(answer, client) == ["conv2d"]
    assert list(answer.outputs[0].shape) == [1, 3, 3, 3]


def test_what_is_copied_where_it_must_be(strict: Client) -> None:
    x = strict.alloc((4, 6), "fp16")
    answer = strict.translate(strict.request("softmax", [x]))
    assert kernels_of(answer, strict) == ["copy", "softmax", "copy"]
    to_fp32 = strict.translate(strict.request("softmax", [x], {}, [pb.TensorDesc(data_type=pb.FP32)]))
    assert kernels_of(to_fp32, strict) == ["copy", "softmax"], "the result is there already"


def test_sums_of_several_types(client: Client) -> None:
    """OPS: int32 + fp16 = fp16; bf16 + fp16 = fp32; fp16 + fp32 = fp32."""
    half, brain, single = (client.put([1.5, -2.5], dtype) for dtype in ("fp16", "bf16", "fp32"))
    whole = client.put([2049, 1], "int32")
    found = client.run("add", [whole, half])[0]
    assert (found.dtype.name, found.tolist()) == ("float16", [2050, -1.5]), "one rounding: 2049 is not rounded before"
    for pair in ([brain, half], [half, single], [single, brain]):
        found = client.run("add", pair)[0]
        assert (found.dtype.name, found.tolist()) == ("float32", [3.0, -5.0])
    assert client.run("add", [client.put([200], "uint8"), client.put([100], "uint8")])[0].tolist() == [44]


def test_weights_in_fp32_keep_what_they_have(client: Client) -> None:
    """A bf16 row with fp32 weights: the weight 1 + 2^-12 does not become 1."""
    x = client.put([[4096.0, -4096.0]], "bf16")
    weight = client.put([1 + 2.0**-12, 1.0], "fp32")
    found = client.run("rmsnorm", [x, weight], {"epsilon": "0"}, [])[0]
    assert found.dtype == NUMPY["bf16"]
    wide = client.run("layernorm", [client.put([[1000.0, 1002.0]], "fp16"), weight], {"epsilon": "0"})[0]
    assert wide.astype(float).tolist() == [[-1.0, 1.0]]
    answer = client.translate(client.request("rmsnorm", [x, weight], {"epsilon": "0"}))
    assert kernels_of(answer, client) == ["copy", "rmsnorm", "copy"], "x up, the result down; the weight is as it was"


@pytest.mark.parametrize("op", ["relu", "add", "softmax", "layernorm", "silu_and_mul", "rope", "matmul"])
@pytest.mark.parametrize("where", ["same", "behind", "before"])
def test_a_result_over_an_operand(op: str, where: str, client: Client) -> None:
    """In place, or shifted by some bytes: always what it would be elsewhere."""
    shapes = {"rope": (4, 2, 8), "matmul": (8, 8)}
    shape = shapes.get(op, (8, 8))
    count = int(np.prod(shape))
    array = values(count + 32).astype(np.float32)
    attrs = {"layernorm": {"epsilon": "1e-5"}, "rope": {"style": "interleaved"}}.get(op, {})
    more: dict[str, list[Any]] = {
        "add": [values(1, 8).astype(np.float32)],
        "rope": [np.arange(4, dtype=np.int32)],
        "matmul": [values(8, 8).astype(np.float32)],
    }
    extra = more.get(op, [])
    room = client.put(array)
    x = view(room, shape, offset=64)
    out_shape = (8, 4) if op == "silu_and_mul" else shape
    y = view(room, out_shape, offset={"same": 64, "behind": 96, "before": 32}[where])
    wanted = reference_of(op, [array[16 : 16 + count].reshape(shape), *extra], attrs)
    client.respond(op, [x, *(client.put(one) for one in extra)], attrs, [y])
    found = client.get(y).astype(np.float64)
    np.testing.assert_allclose(found, next(iter(wanted.values())), rtol=2e-5, atol=2e-5)


def test_in_place_is_not_copied_where_it_is_safe(client: Client) -> None:
    x, b = client.alloc((8,)), client.alloc((8,))
    assert kernels_of(client.translate(client.request("add", [x, b], {}, [x])), client) == ["add"]
    assert kernels_of(client.translate(client.request("softmax", [x], {}, [x])), client) == ["softmax", "copy"]
    again = client.translate(client.request("softmax", [b], {}, [b]))
    assert again.cache_hit
    assert kernels_of(client.translate(client.request("softmax", [x], {}, [b])), client) == ["softmax"]


def test_conversions(client: Client) -> None:
    """copy to an integer truncates and saturates; to half it rounds to the nearest even."""
    x = client.put([1.9, -1.9, 300, -300, 3e9], "fp32")
    for dtype, wanted in (("int8", [1, -1, 127, -128, 127]), ("int32", [1, -1, 300, -300, 2147483647])):
        found = client.run("copy", [x], {}, [client.alloc((5,), dtype)])[0]
        assert found.tolist() == wanted
    assert client.run("copy", [client.put([2049.0], "fp32")], {}, [client.alloc((1,), "fp16")])[0].tolist() == [2048]


def test_copy_repeats(client: Client) -> None:
    wide = client.alloc((3, 2))
    assert client.run("copy", [client.put([[1], [2], [3]], "fp32")], {}, [wide])[0].tolist() == [[1, 1], [2, 2], [3, 3]]
    with pytest.raises(Refusal) as caught:
        client.run("copy", [client.alloc((4,))], {}, [wide])
    assert caught.value.field == "outputs[0].shape"


def test_optional_outputs(client: Client) -> None:
    q = client.put(values(1, 2, 3, 4).astype(np.float32))
    only = client.respond("attention_prefill", [q, q, q])
    assert len(only.outputs) == 1
    both = client.respond("attention_prefill", [q, q, q], {}, [None, pb.TensorDesc(data_type=pb.FP32)])
    assert [list(one.shape) for one in both.outputs] == [[1, 2, 3, 4], [1, 2, 3]]
    wanted = reference_of("attention_prefill", [client.get(q)] * 3, {})
    np.testing.assert_allclose(client.get(both.outputs[1]), wanted["lse"], rtol=1e-4)
    x = client.put(values(2, 4).astype(np.float32))
    fused = client.respond("rmsnorm", [x, None, x], {"epsilon": "1e-5", "variant": "fused_add"})
    assert len(fused.outputs) == 2, "the sum is a result that nobody wants to lose"
    with pytest.raises(Refusal) as caught:
        client.respond("rmsnorm", [x], {"epsilon": "1e-5"}, [None, pb.TensorDesc(data_type=pb.FP32)])
    assert caught.value.field == "outputs[1]"


def test_scratch_memory_is_shared_and_grows() -> None:
    with client_of(Kernels(plain)) as strict:
        for size in (64, 1 << 18, 64, 1 << 20):
            x = strict.put(np.full(size, -1.0, np.float16))
            assert not strict.run("relu", [x])[0].any()
        found = {one.op: one for one in strict.service.telemetry().ops}
    assert 2 <= found["scratch"].allocations <= 4, "one that serves all, grown as it was needed"
    assert found["scratch"].frees == 0, "instructions of before may name it"
    assert found["copy"].launches >= found["relu"].launches == 4


def refuse_all(call: Call) -> str:
    return "it is broken"


def without(*ops: str) -> Kernels:
    return Kernels(lambda template: None if template.op in ops else template)


def test_an_op_that_the_chip_lacks() -> None:
    with client_of(without("softmax")) as speaker:
        with pytest.raises(Refusal, match=r"sim has no kernel for softmax \(it has: add, ") as caught:
            speaker.translate(speaker.request("softmax", [speaker.alloc((2,))]))
        assert (caught.value.field, caught.value.code) == ("op_type", UNIMPLEMENTED)


def only(op: str, **changes: Any) -> Kernels:
    """sim, its kernels for one op changed."""
    return Kernels(lambda template: template._replace(**changes) if template.op == op else template)


def test_every_kernels_reason_is_told() -> None:
    with client_of(only("softmax", refuses=refuse_all)) as speaker:
        with pytest.raises(Refusal, match="no kernel takes this softmax: softmax: it is broken") as caught:
            speaker.translate(speaker.request("softmax", [speaker.alloc((2,))]))
        assert (caught.value.field, caught.value.code) == ("op_type", UNIMPLEMENTED)


def test_whole_numbers_are_never_made_real_ones() -> None:
    """An int32 beyond 2^24 would not survive fp32."""
    with client_of(only("relu", dtypes=frozenset({"fp32"}))) as speaker:
        with pytest.raises(Refusal, match="relu: it does not take int32"):
            speaker.translate(speaker.request("relu", [speaker.alloc((2,), "int32")]))
        assert speaker.run("relu", [speaker.put([-1, 2], "bf16")])[0].tolist() == [0, 2]


def test_a_chip_without_copy_is_no_chip() -> None:
    with pytest.raises(AbiError, match="no kernel for copy"), client_of(without("copy")):
        pass  # pragma: no cover


def test_two_kernels_of_one_number() -> None:
    with pytest.raises(AbiError, match="the number 240"), client_of(Kernels(lambda one: one._replace(kernel_id=240))):
        pass  # pragma: no cover


def test_a_launch_that_cannot_be() -> None:
    with client_of(only("relu", launch=lambda call: Launch(block=(3, 1, 1)))) as speaker:
        with pytest.raises(Refusal, match="powers of two") as caught:
            speaker.translate(speaker.request("relu", [speaker.alloc((2,))]))
        assert caught.value.kind == "launch_config"


def test_golden_instruction(client: Client) -> None:
    """The bytes of one instruction, apart from its addresses: A [2,3] x B [3,2], fp32."""
    a, b, y = client.alloc((2, 3)), client.alloc((3, 2)), client.alloc((2, 2))
    (one,) = client.translate(client.request("matmul", [a, b], {}, [y])).instructions
    found = blob.decode(one.instruction_blob)
    assert found.params == (a.device_addr, b.device_addr, y.device_addr) == tuple(one.param_addrs)
    assert (found.kernel_id, one.kernel_id) == (0x10, 0x10)
    assert one.launch_config == found.launch.encode() == 0x0440000000000000
    assert one.instruction_blob[:4] == b"\x5a" * 4
    assert found.body.hex() == (
        "02000000" "03000000" "02000000" "00000000"  # M K N tf32
        "01" "03" "0100"  # version, operands, op
        "01020000" "0200000000000000" "0300000000000000" "0300000000000000" "0100000000000000"
        "01020000" "0300000000000000" "0200000000000000" "0200000000000000" "0100000000000000"
        "01020000" "0200000000000000" "0200000000000000" "0200000000000000" "0100000000000000"
        "00"  # tf32
    )  # fmt: skip
