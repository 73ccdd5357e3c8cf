"""Every kernel of the simulated chip in every element type, against float64 on the rounded inputs; and through views.

The float64 side is written here in the plainest numpy there is; it is no copy of the chip's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'accelctl[umd]'")
pytest.importorskip("ml_dtypes", reason="needs ml-dtypes: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi.tensors import DTYPES
from accelctl.backends.sim.ops.contract import OPS as SIM
from accelctl.backends.sim.ops.kernels import TEMPLATES
from tests.opskit import EMPTY, Array, Machine, Out, array, machine
from tests.simkit import open_sim

Wide = dict[str, Array]
"""Operands in float64, by name."""
HALF = ("fp16", "bf16")


@pytest.fixture(scope="module")
def sim() -> Iterator[Machine]:
    opened = open_sim()
    with machine(SIM, opened.session) as made:
        yield made
    opened.session.close()
    opened.device.check()


class Case(NamedTuple):
    """Inputs (shapes of normal numbers, or arrays of integers), the float64 outputs, attributes."""

    op: str
    inputs: dict[str, Any]
    right: Callable[[Wide], Wide]
    attrs: Mapping[str, str] = {}
    spread: float = 4.0
    """Errors in units of eps that fp32 arithmetic may have relative to the largest output."""


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def layernorm(given: Wide) -> Wide:
    x = given["X"]
    apart = x - x.mean(axis=(1, 2), keepdims=True)
    return {"Y": apart / np.sqrt((apart**2).mean(axis=(1, 2), keepdims=True) + 1e-5) * given["scale"] + given["B"]}


def fused(given: Wide) -> Wide:
    total = given["X"] + given["residual"]
    return {
        "Y": total / np.sqrt((total**2).mean(axis=-1, keepdims=True) + 1e-6) * given["scale"],
        "residual_out": total,
    }


def rope(style: str) -> Callable[[Wide], Wide]:
    def right(given: Wide) -> Wide:
        """One pair after the other, as complex numbers."""
        y = given["X"].copy()
        for token, position in enumerate(given["positions"]):
            for i in range(3):
                one, two = (i, i + 3) if style == "neox" else (2 * i, 2 * i + 1)
                turn = np.exp(1j * position * 500000.0 ** (-2 * i / 6))
                pair = (given["X"][token, :, one] + 1j * given["X"][token, :, two]) * turn
                y[token, :, one], y[token, :, two] = pair.real, pair.imag
        return {"Y": y}

    return right


def silu(given: Wide) -> Wide:
    gate, up = np.split(given["X"], 2, axis=-1)
    return {"Y": gate / (1 + np.exp(-gate)) * up}


def conv(given: Wide) -> Wide:
    """Seven nested loops: stride (2,1), pads 1,0,2,1, dilation (1,2), two groups."""
    x = np.pad(given["X"], ((0, 0), (0, 0), (1, 2), (0, 1)))
    w, outs = given["W"], given["W"].shape[0]
    y = np.zeros((x.shape[0], outs, (x.shape[2] - 3) // 2 + 1, x.shape[3] - 2))
    for n, o, i, j in np.ndindex(*y.shape):
        for c, u, v in np.ndindex(*w.shape[1:]):
            y[n, o, i, j] += x[n, o // (outs // 2) * w.shape[1] + c, 2 * i + u, j + 2 * v] * w[o, c, u, v]
    return {"Y": y + given["B"][:, None, None]}


def attention(q: Array, k: Array, v: Array, seen: Array) -> tuple[Array, Array]:
    """One query [E] over keys [S, E]; ``seen`` are those that take part."""
    if not seen.any():
        return np.zeros(v.shape[1]), np.array(-np.inf)
    scores = 3 * np.tanh(k[seen] @ q / math.sqrt(len(q)) / 3)
    return np.asarray(softmax(scores) @ v[seen]), np.log(np.exp(scores).sum())


def prefill(given: Wide) -> Wide:
    """Lower right, softcap 3, window 4, a mask, two query heads on each head of keys."""
    q, k, v = given["Q"], given["K"], given["V"]
    out, lse = np.zeros((*q.shape[:3], v.shape[-1])), np.zeros(q.shape[:3])
    keys = np.arange(k.shape[2])
    for n, h, i in np.ndindex(*lse.shape):
        at = i + k.shape[2] - q.shape[2]
        seen = (keys <= at) & (keys > at - 4) & (given["mask"][i] > 0)
        out[n, h, i], lse[n, h, i] = attention(q[n, h, i], k[n, h // 2], v[n, h // 2], seen)
    return {"O": out, "lse": lse}


TABLE = np.array([[4, 1, 0], [1, 4, 9], [2, 3, 5]], np.int32)
LENS = np.array([12, 0, 7], np.int32)


def decode(given: Wide, window: int = 99) -> Wide:
    """Blocks of 5 tokens, no power of two; the 9 in the table is a block that there is not, and is not needed."""
    q = given["Q"]
    out, lse = np.zeros((3, 4, 6)), np.zeros((3, 4))
    for n, h in np.ndindex(3, 4):
        places = [(TABLE[n, t // 5], t % 5, h // 2) for t in range(LENS[n])]
        k = np.array([given["k_cache"][place] for place in places]).reshape(-1, 8)
        v = np.array([given["v_cache"][place] for place in places]).reshape(-1, 6)
        out[n, h], lse[n, h] = attention(q[n, h], k, v, np.arange(LENS[n]) > LENS[n] - 1 - window)
    return {"O": out, "lse": lse}


def grouped(given: Wide) -> Wide:
    a, b = given["A"], given["B"]
    return {"Y": np.concatenate([a[:3] @ b[0], a[3:3] @ b[1], a[3:7] @ b[2]])}


def topk(given: Wide) -> Wide:
    scores = 1 / (1 + np.exp(-given["gating"]))
    ids = np.array([sorted(range(9), key=lambda e: -(row + given["bias"])[e])[:3] for row in scores])
    weights = np.array([row[chosen] for row, chosen in zip(scores, ids, strict=True)])
    return {"weights": weights / weights.sum(axis=1, keepdims=True), "ids": ids}


CAPPED = {"softcap": "3"}
CACHES = {"Q": (3, 4, 8), "k_cache": (6, 5, 2, 8), "v_cache": (6, 5, 2, 6), "block_table": TABLE, "seq_lens": LENS}
CASES = [
    Case("copy", {"X": (3, 5)}, lambda g: {"Y": g["X"]}),
    Case("matmul", {"A": (3, 1, 7, 300), "B": (2, 300, 5)}, lambda g: {"Y": g["A"] @ g["B"]}, spread=40),
    Case("conv2d", {"X": (2, 4, 9, 8), "W": (6, 2, 3, 2), "B": (6,)}, conv,
         {"strides": "2,1", "pads": "1,0,2,1", "dilations": "1,2", "group": "2"}, spread=20),
    Case("layernorm", {"X": (5, 3, 7), "scale": (3, 7), "B": (3, 7)}, layernorm, {"epsilon": "1e-5", "axis": "1"}),
    Case("relu", {"X": (5, 7)}, lambda g: {"Y": np.maximum(g["X"], 0)}, spread=0),
    Case("add", {"A": (5, 1, 3), "B": (4, 3)}, lambda g: {"C": g["A"] + 0.3 * g["B"]}, {"alpha": "0.3"}),
    Case("add", {"A": (5, 7), "B": (7,)}, lambda g: {"C": g["A"] + g["B"]}, spread=0),
    Case("softmax", {"X": (6, 33)}, lambda g: {"Y": softmax(g["X"])}),
    Case("rmsnorm", {"X": (4, 769), "scale": (769,), "residual": (4, 769)}, fused,
         {"epsilon": "1e-6", "variant": "fused_add"}),
    Case("rope", {"X": (3, 2, 8), "positions": np.array([0, 7, 100000], np.int32)}, rope("neox"),
         {"style": "neox", "base": "500000", "rotary_dim": "6"}),
    Case("rope", {"X": (3, 2, 8), "positions": np.array([0, 7, 100000], np.int32)}, rope("interleaved"),
         {"style": "interleaved", "base": "500000", "rotary_dim": "6"}),
    Case("silu_and_mul", {"X": (5, 14)}, silu, spread=10),
    Case("attention_prefill", {"Q": (2, 4, 5, 8), "K": (2, 2, 7, 8), "V": (2, 2, 7, 6),
                               "mask": np.array([[1, 1, 0, 1, 1, 1, 1]] * 4 + [[1, 1, 1, 0, 0, 0, 0]], np.uint8)},
         prefill, CAPPED | {"causal": "lower_right", "window": "4"}, spread=20),
    Case("attention_decode", CACHES, decode, CAPPED | {"block_size": "5"}, spread=20),
    Case("attention_decode", CACHES, lambda g: decode(g, 6), CAPPED | {"block_size": "5", "window": "6"}, spread=20),
    Case("grouped_gemm", {"A": (7, 50), "B": (3, 50, 4), "offs": np.array([3, 3, 7], np.int32)}, grouped, spread=40),
    Case("topk_softmax", {"gating": (8, 9), "bias": (9,)}, topk,
         {"k": "3", "renormalize": "true", "scoring": "sigmoid"}),
]  # fmt: skip
FLOATS = [
    (case, dtype)
    for case in CASES
    for dtype in ("fp32", *HALF)
    if any(one.op == case.op and dtype in one.dtypes for one in TEMPLATES)
]


def ids(value: Any) -> str:
    return value.op if isinstance(value, Case) else str(value)


def given(case: Case, dtype: str) -> dict[str, Array]:
    random = np.random.default_rng(7)
    return {
        name: array(random.normal(size=one), dtype) if isinstance(one, tuple) else one
        for name, one in case.inputs.items()
    }


def wanted(case: Case, inputs: dict[str, Array]) -> Wide:
    return case.right({name: one.astype(np.float64) for name, one in inputs.items()})


def kinds(name: str, dtype: str) -> str:
    return {"lse": "fp32", "weights": "fp32", "ids": "int32"}.get(name, dtype)


def check(case: Case, name: str, found: Array, right: Array, dtype: str) -> None:
    """One rounding of the output's type, and what fp32 may do on the way."""
    assert found.shape == right.shape, name
    finite = np.isfinite(right)
    assert np.array_equal(found[~finite].astype(np.float64), right[~finite]), name
    far = np.abs(found.astype(np.float64)[finite] - right[finite])
    largest = np.abs(right[finite]).max(initial=0)
    once = DTYPES[dtype].epsilon / 2 * np.abs(right[finite])
    assert np.all(far <= once + case.spread * 2.0**-24 * largest), (name, far.max(), largest)


@pytest.mark.parametrize(("case", "dtype"), FLOATS, ids=ids)
def test_a_kernel_against_float64(sim: Machine, case: Case, dtype: str) -> None:
    inputs = given(case, dtype)
    right = wanted(case, inputs)
    found = sim.run(case.op, inputs, {n: Out(v.shape, kinds(n, dtype)) for n, v in right.items()}, **case.attrs)
    for name, values in right.items():
        kind = kinds(name, dtype)
        if kind == "int32":
            assert found[name].tolist() == values.tolist()
        else:
            check(case, name, found[name], values, kind)


def test_every_kernel_is_run_in_every_floating_type() -> None:
    run = {(case.op, dtype) for case, dtype in FLOATS}
    assert run >= {(one.op, dtype) for one in TEMPLATES for dtype in one.dtypes & {"fp32", *HALF}}
    assert {one.op for one in TEMPLATES} - {op for op, _ in run} == {"moe_align"}  # integers; has golden data


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", ["matmul", "softmax"])
def test_results_of_halves_that_are_kept_in_fp32(sim: Machine, op: str, dtype: str) -> None:
    (case,) = (case for case in CASES if case.op == op)
    inputs = given(case, dtype)
    right = wanted(case, inputs)["Y"]
    check(case, "Y", sim.run(op, inputs, {"Y": Out(right.shape)}, **case.attrs)["Y"], right, "fp32")


# -- views --


def apart(values: Array) -> Array:
    """The same values in Fortran order with a gap behind each element."""
    holder = np.zeros((2, *values.shape[::-1]), values.dtype).T
    holder[..., 0] = values
    view: Array = holder[..., 0]
    return view


def strided(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Fortran order, every third element."""
    return tuple(3 * math.prod(shape[:axis]) for axis in range(len(shape)))


@pytest.mark.parametrize(
    "case", [case for case in CASES if any(one.op == case.op and one.strided for one in TEMPLATES)], ids=ids
)
def test_views_give_the_same_as_dense_operands(sim: Machine, case: Case) -> None:
    """To the bit, for inputs and outputs; what lies between the elements of an output stays as it was."""
    inputs = given(case, "fp32")
    shapes = {name: values.shape for name, values in wanted(case, inputs).items()}
    dense = sim.run(case.op, inputs, {n: Out(s, kinds(n, "fp32")) for n, s in shapes.items()}, **case.attrs)
    views = {name: apart(one) for name, one in inputs.items()}
    outputs = {name: Out(shape, kinds(name, "fp32"), strided(shape)) for name, shape in shapes.items()}
    found = sim.run(case.op, views, outputs, **case.attrs)
    for name, values in dense.items():
        assert found[name].tobytes() == values.tobytes(), name
    made = sim.call(case.op, views, outputs, **case.attrs)
    assert sim.ring.wait(sim.ring.submit(sim.instruction(made)), 60)
    assert sim.block.map is not None
    for one in made.outputs:
        if one is not None:
            start = one.address - sim.block.address
            raw = np.frombuffer(sim.block.map[start : start + 12 * one.elements], np.uint8).reshape(-1, 3, 4)
            assert set(raw[:, 1:].reshape(-1).tolist()) == {EMPTY}


def test_an_input_that_repeats_by_a_stride_of_zero(sim: Machine) -> None:
    row = array([1, 2, 3])
    wide = np.broadcast_to(row, (4, 3))
    assert wide.strides == (0, 4)
    assert sim.run("add", {"A": wide, "B": wide}, {"C": Out((4, 3))})["C"].tolist() == [[2, 4, 6]] * 4


@pytest.mark.parametrize("shift", [0, 4])
def test_an_output_may_lie_on_an_input(sim: Machine, shift: int) -> None:
    """All is read before anything is written, also where they only overlap."""
    made = sim.call("copy", {"X": array(range(100))}, {"Y": Out((100,))})
    (x,) = made.inputs
    assert x is not None
    there = made._replace(outputs=(x._replace(address=x.address + shift),))
    assert sim.ring.wait(sim.ring.submit(sim.instruction(there)), 60)
    assert there.outputs[0] is not None
    assert sim.read(there.outputs[0]).tolist() == list(range(100))


def test_rows_behind_the_last_group_keep_what_they_were(sim: Machine) -> None:
    inputs = {"A": array(np.full((4, 2), np.nan)), "B": array(np.ones((2, 2, 3))), "offs": np.array([1, 2], np.int32)}
    inputs["A"][:2] = 1
    found = sim.run("grouped_gemm", inputs, {"Y": Out((4, 3))})["Y"]
    assert found[:2].tolist() == [[2] * 3] * 2
    assert set(found[2:].tobytes()) == {EMPTY}


def test_routing_of_rows_that_are_not_numbers(sim: Machine) -> None:
    rows = array([[np.nan] * 4, [np.inf, 0, 0, 1], [0, 0, 0, 0], [-np.inf] * 4])
    outputs = {"weights": Out((4, 2)), "ids": Out((4, 2), "int32")}
    for renormalize, even in (("false", 0.25), ("true", 0.5)):
        found = sim.run("topk_softmax", {"gating": rows}, outputs, k="2", renormalize=renormalize)
        assert found["ids"].tolist() == [[0, 1]] * 4
        assert found["weights"].tolist() == [[0, 0], [0, 0], [even, even], [0, 0]]


def test_experts_are_renamed_after_sorting_and_unknown_ones_left_out(sim: Machine) -> None:
    choices = np.array([[2, 0], [7, 2], [-1, 0]], np.int32)
    outputs = {"sorted_token_ids": Out((12,), "int32"), "expert_ids": Out((4,), "int32")}
    outputs["num_tokens_post_pad"] = Out((1,), "int32")
    mapped = {"topk_ids": choices, "expert_map": np.array([5, -1, 4], np.int32)}
    found = sim.run("moe_align", mapped, outputs, num_experts="3", block_size="3", pad_sorted_ids="true")
    assert found["sorted_token_ids"].tolist() == [1, 5, 6, 0, 3, 6] + [6] * 6
    assert found["expert_ids"].tolist() == [5, 4, 0, 0]
    assert found["num_tokens_post_pad"].tolist() == [6]
