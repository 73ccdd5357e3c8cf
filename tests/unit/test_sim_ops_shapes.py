"""What the simulated device refuses of calls that make no sense: every op, operand by operand. Nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.call import Call
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, Tensor, tensor
from accelctl.backends.sim.ops import kernels, shapes
from accelctl.errors import UsageError

Operands = Mapping[str, Any]
"""Name -> shape (fp32), or (element type, shape), or a tensor."""


def described(one: Any) -> Tensor | None:
    if one is None or isinstance(one, Tensor):
        return one
    dtype, shape = one if one and isinstance(one[0], str) else ("fp32", one)
    return tensor(shape, DTYPES[dtype])


def call(name: str, operands: Operands, **attrs: str) -> Call:
    op = OPS[name]
    unknown = operands.keys() - {one.name for one in (*op.inputs, *op.outputs)}
    assert not unknown
    inputs, outputs = (tuple(described(operands.get(one.name)) for one in row) for row in (op.inputs, op.outputs))
    return Call(op, inputs, outputs, op.parse(attrs))


IMAGE = {"X": (2, 4, 8, 8), "W": (6, 2, 3, 3), "B": (6,), "Y": (2, 6, 6, 6)}
HEADS = {"Q": (4, 5, 8), "K": (2, 7, 8), "V": (2, 7, 6), "O": (4, 5, 6)}
PAGED = {
    "Q": (3, 4, 8),
    "k_cache": (9, 16, 2, 8),
    "v_cache": (9, 16, 2, 6),
    "block_table": ("int32", (3, 5)),
    "seq_lens": ("int32", (3,)),
    "O": (3, 4, 6),
}
EXPERTS = {"gating": (5, 8), "weights": (5, 2), "ids": ("int32", (5, 2))}
SLOTS = {
    "topk_ids": ("int32", (3, 2)),
    "sorted_token_ids": ("int32", (10,)),
    "expert_ids": ("int32", (5,)),
    "num_tokens_post_pad": ("int32", (1,)),
}
RIGHT: dict[str, tuple[Operands, dict[str, str]]] = {
    "matmul": ({"A": (5, 1, 2, 3), "B": (4, 3, 6), "Y": (5, 4, 2, 6)}, {}),
    "conv2d": (IMAGE, {"group": "2"}),
    "layernorm": ({"X": (2, 3, 4), "scale": (3, 4), "B": (3, 4), "Y": (2, 3, 4)}, {"axis": "1", "epsilon": "0"}),
    "relu": ({"X": ("uint8", (3,)), "Y": ("uint8", (3,))}, {}),
    "add": ({"A": ("fp16", (3, 1)), "B": ("int32", (4,)), "C": ("fp16", (3, 4))}, {}),
    "softmax": ({"X": ("bf16", (3, 4)), "Y": (3, 4)}, {}),
    "rmsnorm": ({"X": (3, 4), "residual": (3, 4), "Y": (3, 4)}, {"epsilon": "0", "variant": "fused_add"}),
    "rope": ({"X": (2, 5, 3, 8), "positions": ("int32", (2, 5)), "Y": (2, 5, 3, 8)}, {"style": "neox"}),
    "silu_and_mul": ({"X": (3, 8), "Y": (3, 4)}, {}),
    "attention_prefill": (HEADS | {"mask": ("uint8", (5, 7)), "lse": (4, 5)}, {"window": "3"}),
    "attention_decode": (PAGED | {"lse": (3, 4)}, {"block_size": "16"}),
    "grouped_gemm": ({"A": (7, 5), "B": (3, 5, 2), "offs": ("int32", (3,)), "Y": (7, 2)}, {}),
    "topk_softmax": (EXPERTS | {"bias": (8,)}, {"k": "2", "renormalize": "true"}),
    "moe_align": (SLOTS | {"expert_map": ("int32", (4,))}, {"num_experts": "4", "block_size": "2"}),
    "copy": ({"X": ("bf16", (4,)), "Y": ("int8", (3, 4))}, {}),
}
WRONG: list[tuple[str, Operands, dict[str, str], str]] = [
    ("matmul", {"B": (4, 4, 6)}, {}, r"A \(5,1,2,3\) and B \(4,4,6\): the inner lengths differ"),
    ("matmul", {"B": ()}, {}, "a scalar is no matrix"),
    ("matmul", {"B": ("fp16", (4, 3, 6))}, {}, "A is fp32, B is fp16"),
    ("matmul", {"A": (5, 2, 2, 3)}, {}, r"shapes \(5,2\) and \(4,\) do not broadcast"),
    ("matmul", {"Y": (5, 4, 6, 2)}, {}, r"Y: shape \(5,4,6,2\), it must be \(5,4,2,6\)"),
    ("matmul", {"Y": ("fp16", (5, 4, 2, 6))}, {}, "Y: fp16, it must be fp32"),
    ("matmul", {"Y": ("bf16", (2, 6)), "A": ("fp16", (2, 3)), "B": ("fp16", (3, 6))}, {}, "Y: bf16, it must be"),
    ("matmul", {"A": ("int8", (2, 3)), "B": ("int8", (3, 6)), "Y": (2, 6)}, {}, "Y: fp32, it must be int32"),
    ("matmul", {"A": (1 << 14, 1 << 14), "B": (1 << 14, 1 << 14), "Y": (1 << 14, 1 << 14)}, {}, "products are more"),
    ("conv2d", {}, {"group": "3"}, "X has 4 channels, W takes 2 in 3 groups"),
    ("conv2d", {}, {"group": "4"}, "4 does not divide 6 channels"),
    ("conv2d", {}, {"group": "0"}, "0 does not divide"),
    ("conv2d", {"X": (2, 0, 8, 8), "W": (6, 0, 3, 3)}, {}, "X has 0 channels"),
    ("conv2d", {"X": (2, 4, 2, 8)}, {}, "W: larger than the padded image"),
    ("conv2d", {"W": (6, 2, 0, 3)}, {}, "W: an empty kernel"),
    ("conv2d", {}, {"strides": "1"}, r"attrs\['strides'\]: 2 numbers of at least 1"),
    ("conv2d", {}, {"strides": "0,1"}, "numbers of at least 1"),
    ("conv2d", {}, {"dilations": "1,-1"}, "numbers of at least 1"),
    ("conv2d", {}, {"pads": "1,1"}, "4 numbers of at least 0"),
    ("conv2d", {}, {"pads": "0,0,0,-1"}, "4 numbers of at least 0"),
    ("conv2d", {}, {"pads": "1,0,0,0", "auto_pad": "valid"}, "with auto_pad nobody says them"),
    ("conv2d", {}, {"pads": f"{1 << 40},0,0,0", "strides": f"{1 << 40},1"}, "the padded images are too large"),
    ("conv2d", {"B": (2,)}, {}, r"B: shape \(2,\), it must be \(6,\)"),
    ("conv2d", {"W": ("fp16", (6, 2, 3, 3))}, {}, "W: fp16, it must be fp32"),
    ("conv2d", {}, {"layout": "nhwc"}, "X has 8 channels"),
    ("conv2d", {"X": (4, 8)}, {}, "X: 2 dimensions, it must have 3 or 4"),
    ("layernorm", {}, {"axis": "3"}, "X has 3 dimensions, no axis 3"),
    ("layernorm", {}, {"axis": "-4"}, "no axis -4"),
    ("layernorm", {"scale": (4,)}, {}, r"scale: shape \(4,\), it must be \(3,4\)"),
    ("layernorm", {"B": ("fp16", (3, 4))}, {}, "B: fp16, it must be fp32"),
    ("layernorm", {"Y": ("fp16", (2, 3, 4))}, {}, "Y: fp16, it must be fp32"),
    ("layernorm", {"X": ()}, {}, "X: a scalar"),
    ("relu", {"Y": ("int8", (3,))}, {}, "Y: int8, it must be uint8"),
    ("relu", {"X": None}, {}, "X: it is missing"),
    ("add", {"A": ("int8", (3, 1))}, {}, "A is int8, B is int32: integers of two kinds are not added"),
    ("add", {"A": ("int32", (3, 1)), "C": ("int32", (3, 4))}, {"alpha": "0.5"}, "0.5 is no whole number, and int32 is"),
    ("add", {"C": ("fp32", (3, 4))}, {}, "C: fp32, it must be fp16"),
    ("add", {"A": ("bf16", (3, 1)), "B": ("fp16", (4,))}, {}, "C: fp16, it must be fp32"),
    ("softmax", {"X": ("int8", (3, 4))}, {}, "X: softmax takes no int8"),
    ("softmax", {"Y": ("fp16", (3, 4))}, {}, "Y: fp16, it must be bf16 or fp32"),
    ("softmax", {}, {"axis": "2"}, "no axis 2"),
    ("rmsnorm", {"residual": None}, {}, "it goes with variant fused_add"),
    ("rmsnorm", {}, {"variant": "plain"}, "it goes with variant fused_add"),
    ("rmsnorm", {"residual": None, "residual_out": (3, 4)}, {"variant": "plain"}, "residual_out: it goes with"),
    ("rmsnorm", {"scale": (3,)}, {}, r"scale: shape \(3,\), it must be \(4,\)"),
    ("rmsnorm", {"residual": (4,)}, {}, r"residual: shape \(4,\)"),
    ("rope", {}, {"rotary_dim": "3"}, r"attrs\['rotary_dim'\]: 3 of 8"),
    ("rope", {}, {"rotary_dim": "10"}, "10 of 8"),
    ("rope", {}, {"rotary_dim": "-2"}, "-2 of 8"),
    ("rope", {}, {"base": "0"}, "base"),
    ("rope", {"positions": ("int32", (5,))}, {}, r"positions: shape \(5,\), it must be \(2,5\)"),
    ("rope", {"X": (8,), "Y": (8,)}, {}, "X: it must be tokens, heads, dim"),
    ("silu_and_mul", {"X": (3, 7)}, {}, "not two halves"),
    ("silu_and_mul", {"Y": (3, 8)}, {}, r"Y: shape \(3,8\), it must be \(3,4\)"),
    ("attention_prefill", {"K": (3, 7, 8)}, {}, "Q has 4 heads, no multiple of 3"),
    ("attention_prefill", {"K": (0, 7, 8)}, {}, "no multiple of 0"),
    ("attention_prefill", {"K": (2, 7, 6)}, {}, "K: shape .* does not fit Q"),
    ("attention_prefill", {"V": (2, 6, 6)}, {}, "V: shape .* does not fit K"),
    ("attention_prefill", {"V": ("fp16", (2, 7, 6))}, {}, "V: fp16, Q is fp32"),
    ("attention_prefill", {"Q": (5, 8)}, {}, "Q: 2 dimensions, it must have 3 or 4"),
    ("attention_prefill", {"K": (1, 2, 7, 8)}, {}, r"K: shape \(1,2,7,8\) does not fit Q \(4,5,8\)"),
    ("attention_prefill", {"mask": ("uint8", (5, 6))}, {}, "do not broadcast"),
    ("attention_prefill", {"mask": ("uint8", (2, 1, 1, 5, 7))}, {}, "is not repeated to"),
    ("attention_prefill", {"mask": ("fp16", (5, 7))}, {}, "mask: fp16, it must be uint8 or as Q"),
    ("attention_prefill", {"lse": ("fp32", (5, 4))}, {}, r"lse: shape \(5,4\), it must be \(4,5\)"),
    ("attention_prefill", {"lse": ("fp16", (4, 5))}, {}, "lse: attention_prefill takes no fp16"),
    ("attention_prefill", {}, {"window": "-1"}, "window"),
    ("attention_prefill", {}, {"softcap": "-1"}, "softcap"),
    ("attention_decode", {}, {"block_size": "8"}, "blocks of k_cache have 16 tokens"),
    ("attention_decode", {"v_cache": (9, 8, 2, 6)}, {}, "v_cache: shape"),
    ("attention_decode", {"block_table": ("int32", (2, 5))}, {}, r"block_table: shape \(2,5\), it must be \(3,5\)"),
    ("attention_decode", {"seq_lens": ("int32", (4,))}, {}, "seq_lens: shape"),
    ("attention_decode", {"block_table": (3, 5)}, {}, "block_table: attention_decode takes no fp32"),
    ("attention_decode", {"Q": (3, 3, 8)}, {}, "Q has 3 heads, no multiple of 2"),
    ("grouped_gemm", {"offs": ("int32", (2,))}, {}, r"offs: shape \(2,\), it must be \(3,\)"),
    ("grouped_gemm", {"B": (3, 4, 2)}, {}, r"A: shape \(7,5\), it must be \(7,4\)"),
    ("grouped_gemm", {"B": (5, 2)}, {}, "B: 2 dimensions, it must have 3"),
    ("topk_softmax", {}, {"k": "9"}, "9 of 8 experts"),
    ("topk_softmax", {}, {"k": "-1"}, "-1 of 8 experts"),
    ("topk_softmax", {"bias": (5,)}, {}, "bias: shape"),
    ("topk_softmax", {}, {"k": "3"}, r"weights: shape \(5,2\), it must be \(5,3\)"),
    ("moe_align", {}, {"num_experts": "0"}, "num_experts"),
    ("moe_align", {}, {"num_experts": "5000"}, "1 to 4096 are possible"),
    ("moe_align", {}, {"block_size": "0"}, "block_size"),
    ("moe_align", {"expert_map": ("int32", (3,))}, {}, "expert_map: shape"),
    ("moe_align", {"expert_ids": ("int32", (6,))}, {}, "expert_ids: shape"),
    ("moe_align", {"sorted_token_ids": ("int32", (9,))}, {}, "sorted_token_ids: shape"),
    ("copy", {"X": (5,)}, {}, "do not broadcast"),
    ("copy", {"X": (2, 3, 4)}, {}, r"X \(2,3,4\) is not repeated to \(3,4\)"),
    ("copy", {"X": (1 << 29,), "Y": (1 << 29,)}, {}, "X: more than 268435456 elements"),
    ("copy", {"Y": Tensor((3, 4), DTYPES["int8"], (0, 1))}, {}, "Y: elements lie on each other"),
    ("copy", {"Y": Tensor((3, 4), DTYPES["int8"], (3, 1))}, {}, "Y: elements lie on each other"),
]  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_call_that_makes_sense(name: str) -> None:
    made = call(name, RIGHT[name][0], **RIGHT[name][1])
    shapes.check(made)
    template = next(one for one in kernels.TEMPLATES if one.op == name and made.tensors[0].dtype.name in one.dtypes)
    assert kernels.why_not(template, made) == ""
    assert template.launch(made).encode() >= 0


@pytest.mark.parametrize(("name", "changed", "attrs", "said"), WRONG)
def test_a_call_that_does_not(name: str, changed: Operands, attrs: dict[str, str], said: str) -> None:
    operands, given_attrs = RIGHT[name]
    with pytest.raises(UsageError, match=said):
        shapes.check(call(name, {**operands, **changed}, **given_attrs | attrs))


@pytest.mark.parametrize("mask", [(7,), (1, 1), (4, 5, 7), (1, 4, 1, 7), ()])
def test_masks_that_are_repeated(mask: tuple[int, ...]) -> None:
    shapes.check(call("attention_prefill", HEADS | {"mask": ("uint8", mask)}))


# -- OPS-04 --


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "out", "pads"),
    [
        (4, 3, 2, 2, (0, 1)),
        (5, 3, 2, 3, (1, 1)),
        (6, 3, 2, 3, (0, 1)),
        (224, 7, 2, 112, (2, 3)),
        (4, 2, 1, 4, (0, 1)),
        (32, 4, 1, 32, (1, 2)),
        (3, 1, 3, 1, (0, 0)),
    ],
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_ops_04_same_padding(size: int, kernel: int, stride: int, out: int, pads: tuple[int, int], layout: str) -> None:
    shape, found = (
        ((1, 1, size, size), (1, 1, out, out)) if layout == "nchw" else ((1, size, size, 1), (1, out, out, 1))
    )
    for how, wanted in (("same_upper", pads), ("same_lower", pads[::-1])):
        attrs = {"auto_pad": how, "strides": f"{stride},{stride}", "layout": layout}
        made = call("conv2d", {"X": shape, "W": (1, 1, kernel, kernel), "Y": found}, **attrs)
        assert shapes.conv_pads(made) == (wanted, wanted)
        shapes.check(made)


# -- the grid --


def test_launches_cover_the_work_and_fit_their_fields() -> None:
    """What exceeds a grid is strided over by the kernel."""
    for name, operands, grid, block in (
        ("relu", {"X": (1000,), "Y": (1000,)}, (4, 1, 1), (256, 1, 1)),
        ("relu", {"X": (0,), "Y": (0,)}, (1, 1, 1), (256, 1, 1)),
        ("relu", {"X": (1 << 34,), "Y": (1 << 34,)}, (1 << 24, 1, 1), (256, 1, 1)),
        ("matmul", {"A": (5, 33, 3), "B": (3, 17), "Y": (5, 33, 17)}, (2, 3, 5), (16, 16, 1)),
        ("matmul", {"A": (3,), "B": (3,), "Y": ()}, (1, 1, 1), (16, 16, 1)),
        ("conv2d", {"X": (2, 4, 8, 8), "W": (6, 4, 3, 3), "Y": (2, 6, 6, 6)}, (3, 1, 2), (16, 16, 1)),
        ("softmax", {"X": (4, 5, 6), "Y": (4, 5, 6)}, (20, 1, 1), (256, 1, 1)),
        ("softmax", {"X": (), "Y": ()}, (1, 1, 1), (256, 1, 1)),
        ("attention_prefill", HEADS, (1, 4, 1), (128, 1, 1)),
        ("grouped_gemm", {"A": (40, 5), "B": (3, 5, 2), "offs": ("int32", (3,)), "Y": (40, 2)}, (1, 3, 3), (16, 16, 1)),
    ):
        template = next(one for one in kernels.TEMPLATES if one.op == name)
        launch = template.launch(call(name, operands))
        assert (launch.grid, launch.block) == (grid, block), name
        launch.encode()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=4))
def test_outputs_whose_elements_share_a_place_are_always_refused(axes: list[tuple[int, int]]) -> None:
    """Against looking at all of them. Some that are in order are refused as well: interleaved in odd ways."""
    lengths, strides = [length for length, _ in axes], [stride for _, stride in axes]
    places = [0]
    for length, stride in axes:
        places = [place + stride * step for place in places for step in range(length)]
    made = Tensor(tuple(lengths), DTYPES["int8"], tuple(strides))
    one_by_one = Call(OPS["relu"], (tensor(lengths, DTYPES["int8"]),), (made,), {})
    if len(set(places)) != len(places):
        with pytest.raises(UsageError, match="lie on each other"):
            shapes.check(one_by_one)
    elif made.dense:
        shapes.check(one_by_one)
