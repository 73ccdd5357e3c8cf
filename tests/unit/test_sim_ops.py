"""What the simulated chip computes, from its memory to its memory: the golden data, and the cases of group OPS.

Reference values are not ours: they come from the golden data, or are written here as numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'accelctl[umd]'")
pytest.importorskip("ml_dtypes", reason="needs ml-dtypes: pip install 'accelctl[umd]'")

import numpy as np

from accelctl.abi.call import Call
from accelctl.abi.opset import OPS, text_of
from accelctl.abi.tensors import DTYPES
from accelctl.errors import UsageError
from tests.opskit import Array, Machine, Out, array, machine, view
from tests.simkit import open_sim

INF, NAN = math.inf, math.nan


@pytest.fixture(scope="module")
def sim() -> Iterator[Machine]:
    from accelctl.backends.sim.ops.contract import OPS as SIM

    opened = open_sim()
    with machine(SIM, opened.session) as made:
        yield made
    opened.session.close()
    opened.device.check()
    assert opened.device.memory == -1, "the device is still on"


def close(found: Array, wanted: Any, rtol: float, atol: float = 0.0) -> None:
    """|found - wanted| <= atol + rtol * |wanted|, NaN where NaN is, and the shape of ``wanted``."""
    right = np.asarray(wanted, np.float64)
    assert found.shape == right.shape
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=rtol, atol=atol, equal_nan=True)


# -- golden data --


def golden(shared: Path, op: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An entry of ops.json, and its cases."""
    with open(shared / "ops" / "ops.json", encoding="utf-8") as file:
        every = json.load(file)["ops"]
    (entry,) = (entry for entry in every if entry["id"] == op)
    return entry, entry["golden"]


def filled(name: str, one: dict[str, Any], dtype: str) -> Array:
    values = np.array([float(value) for value in one["data"]]).reshape(one["shape"])
    whole = {"mask": "uint8", "positions": "int32", "block_table": "int32", "seq_lens": "int32", "offs": "int32"}
    found: Array = values.astype({"int32": np.int32, "uint8": np.uint8, "fp32": np.float32}[whole.get(name, dtype)])
    return found


def attr_text(value: Any) -> str:
    return text_of(tuple(value) if isinstance(value, list) else value)


def contraction_bound(case: dict[str, Any], wanted: Array) -> Array:
    """eps * |ref| + 32 * eps * sqrt(K) * rms(A) * rms(B), fp32."""
    one, other = list(case["inputs"].values())[:2]
    rms = [math.sqrt(np.mean(np.square(side["data"]))) if side["data"] else 0.0 for side in (one, other)]
    length = other["shape"][-2] if len(other["shape"]) < 4 else math.prod(other["shape"][1:])
    return 2.0**-23 * (np.abs(wanted) + 32 * math.sqrt(length) * rms[0] * rms[1])


def compare(entry: dict[str, Any], case: dict[str, Any], name: str, found: Array, wanted: Array) -> None:
    """By the tolerance that the entry proposes."""
    op, proposed = entry["id"], entry["proposed"]
    if op in ("matmul", "conv2d", "grouped_gemm"):
        assert found.shape == wanted.shape
        assert np.all(np.abs(found.astype(np.float64) - wanted) <= contraction_bound(case, wanted))
    elif name == "sorted_token_ids":  # the order within one expert is free
        size = case["attrs"]["block_size"]
        assert sorted(map(sorted, found.reshape(-1, size).tolist())) == sorted(
            map(sorted, wanted.reshape(-1, size).tolist())
        )
    elif found.dtype == np.int32:
        assert found.tolist() == wanted.tolist()
    elif op in ("relu", "add"):
        close(found, wanted.astype(np.float32), *(0, 0) if op == "relu" else (2.0**-23, 2.0**-23))
    else:
        rule = proposed.get("lse" if name == "lse" else "weights_float32" if name == "weights" else "float32")
        close(found, wanted, *rule or (1e-5, 1e-5))  # attention_decode proposes none for fp32: as prefill's


@pytest.mark.parametrize("op", [name for name in OPS if name != "copy"])
def test_golden_data(sim: Machine, shared: Path, op: str) -> None:
    entry, cases = golden(shared, op)
    assert cases
    for case in cases:
        attrs = {name: attr_text(value) for name, value in case["attrs"].items()}
        dtype = attrs.pop("dtype", "int32" if op == "moe_align" else "fp32")
        inputs = {name: filled(name, one, dtype) for name, one in case["inputs"].items()}
        kinds = {operand.name: min(operand.dtypes & {"fp32", "int32"}) for operand in OPS[op].outputs}
        kinds |= {name: dtype for name in ("Y", "C", "O") if name in kinds}
        wanted = {
            name: np.array([float(value) for value in one["data"]]).reshape(one["shape"])
            for name, one in case["outputs"].items()
        }
        outputs = {name: Out(one.shape, kinds[name]) for name, one in wanted.items()}
        if op == "attention_decode":  # what lies behind the last token is not looked at
            inputs["k_cache"][0, 1], inputs["v_cache"][0, 1] = NAN, NAN
        found = sim.run(op, inputs, outputs, **attrs)
        for name, values in wanted.items():
            compare(entry, case, name, found[name], values)


def test_golden_data_is_all_there(shared: Path) -> None:
    names = [name for name in OPS if name != "copy"]
    assert sum(len(golden(shared, name)[1]) for name in names) == 32


# -- OPS-01 --


def test_ops_01_softmax_in_half_precision_does_not_overflow(sim: Machine) -> None:
    found = sim.run("softmax", {"X": array([[12, 10, 11]], "fp16")}, {"Y": Out((1, 3), "fp16")})
    close(found["Y"], [[0.66524, 0.09003, 0.24473]], rtol=2.0**-10, atol=5e-6)
    found = sim.run("softmax", {"X": array([[-60000, -60000]], "fp16")}, {"Y": Out((1, 2), "fp16")})
    close(found["Y"], [[0.5, 0.5]], rtol=0)


# -- OPS-02 --


@pytest.mark.parametrize("first", [10000, 4096])
def test_ops_02_the_variance_survives_a_large_mean(sim: Machine, first: int) -> None:
    x = array([first, first + 1, first + 2, first + 3])
    inputs = {"X": x, "scale": array([1] * 4), "B": array([0] * 4)}
    found = sim.run("layernorm", inputs, {"Y": Out((4,))}, epsilon="1e-5")
    close(found["Y"], [-1.34164, -0.44721, 0.44721, 1.34164], rtol=0, atol=5e-6)


def test_ops_02_c_squares_beyond_fp16(sim: Machine) -> None:
    x = array([300, -300, 300, -300], "fp16")
    inputs = {"X": x, "scale": array([1] * 4, "fp16"), "B": array([0] * 4, "fp16")}
    found = sim.run("layernorm", inputs, {"Y": Out((4,), "fp16")}, epsilon="1e-5")
    close(found["Y"], [1, -1, 1, -1], rtol=0)


# -- OPS-03 --


def ones(shape: tuple[int, ...], dtype: str, value: float = 1) -> Array:
    return array(np.full(shape, value), dtype)


def test_ops_03_sums_do_not_saturate(sim: Machine) -> None:
    def dot(length: int, dtype: str, value: float, out: str) -> float:
        a, b = ones((1, length), dtype, value), ones((length, 1), dtype, value)
        return float(sim.run("matmul", {"A": a, "B": b}, {"Y": Out((1, 1), out)})["Y"][0, 0])

    assert dot(512, "bf16", 1, "bf16") == 512
    assert dot(4096, "fp16", 1, "fp16") == 4096
    assert dot(128, "fp16", 32, "fp16") == INF
    assert dot(128, "fp16", 32, "fp32") == 131072


def test_ops_03_b_a_flat_softmax(sim: Machine) -> None:
    found = sim.run("softmax", {"X": ones((1, 512), "bf16", 0)}, {"Y": Out((1, 512), "bf16")})["Y"]
    assert set(found.reshape(-1).tolist()) == {0.001953125}


# -- OPS-05 --


def test_ops_05_a_transposed_operand(sim: Machine) -> None:
    a, b = array(np.arange(6).reshape(2, 3)), view(range(6), "fp32", (3, 2), (1, 3))
    assert sim.run("matmul", {"A": a, "B": b}, {"Y": Out((2, 2))})["Y"].tolist() == [[5, 14], [14, 50]]


def test_ops_05_b_two_strides_for_two_batch_axes(sim: Machine) -> None:
    x = view(range(8), "fp32", (2, 2, 2, 1), (4, 1, 2, 1))
    found = sim.run("matmul", {"A": x, "B": array([[1]])}, {"Y": Out((2, 2, 2, 1))})["Y"]
    assert found[..., 0].tolist() == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]


@pytest.mark.parametrize(("shape", "strides"), [((1, 3), (999, 1)), ((3, 1), (1, 7)), ((1, 3), (1 << 63, 1))])
def test_ops_05_c_the_stride_of_one_element_means_nothing(
    sim: Machine, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Neither for a kernel that takes strides, nor for one that takes dense operands only."""
    outputs = {"sorted_token_ids": Out((3,), "int32"), "expert_ids": Out((3,), "int32")}
    outputs["num_tokens_post_pad"] = Out((1,), "int32")
    choices = np.array([1, 0, 1], np.int32).reshape(shape)
    align = sim.call("moe_align", {"topk_ids": choices}, outputs, num_experts="2", block_size="1")
    assert result(sim, align, strides) == [1, 0, 2]
    assert result(sim, sim.call("relu", {"X": array(choices)}, {"Y": Out(shape)}), strides) == [1, 0, 1]


def result(sim: Machine, made: Call, strides: tuple[int, ...]) -> Any:
    """The first output, with other strides of the first input."""
    first, *rest = made.inputs
    assert first is not None
    odd = made._replace(inputs=(first._replace(strides=strides), *rest))
    assert sim.ring.wait(sim.ring.submit(sim.instruction(odd)), 1.0)
    assert made.outputs[0] is not None
    return sim.read(made.outputs[0]).reshape(-1).tolist()


# -- OPS-06 --


def total(sim: Machine, a: Any, b: Any, shape: tuple[int, ...]) -> Any:
    return sim.run("add", {"A": array(a), "B": array(b)}, {"C": Out(shape)})["C"]


def test_ops_06_broadcasting(sim: Machine) -> None:
    channels = total(sim, np.zeros((1, 2, 2, 2)), np.reshape([10, 20], (1, 2, 1, 1)), (1, 2, 2, 2))
    assert channels.reshape(-1).tolist() == [10] * 4 + [20] * 4
    table = total(sim, [[0], [10], [20]], [[1, 2, 3, 4]], (3, 4))
    assert table.tolist() == [[1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]]
    assert total(sim, np.ones((2, 2)), np.ones((2, 1)), (2, 2)).tolist() == [[2, 2], [2, 2]]
    assert total(sim, 1, np.ones((0, 3)), (0, 3)).shape == (0, 3)


def test_ops_06_d_shapes_that_do_not_fit_are_refused_and_named(sim: Machine) -> None:
    with pytest.raises(UsageError, match=r"shapes \(10,1\) and \(3,1\) do not broadcast"):
        total(sim, np.ones((10, 1)), np.ones((3, 1)), (10, 1))


# -- corners that ops.json names --


def test_matmul_corners(sim: Machine) -> None:
    def product(a: Array, b: Array, shape: tuple[int, ...]) -> Array:
        return sim.run("matmul", {"A": a, "B": b}, {"Y": Out(shape)})["Y"]

    assert product(array([1, 2, 3]), array([4, 5, 6]), ()).tolist() == 32
    assert product(array([1, 2]), array([[1, 2], [3, 4]]), (2,)).tolist() == [7, 10]
    assert product(array([[1, 2], [3, 4]]), array([1, 2]), (2,)).tolist() == [5, 11]
    assert product(ones((2, 0), "fp32"), ones((0, 3), "fp32"), (2, 3)).tolist() == [[0] * 3] * 2
    assert product(ones((0, 2), "fp32"), ones((2, 3), "fp32"), (0, 3)).shape == (0, 3)
    assert product(ones((0, 2, 2), "fp32"), ones((2, 2), "fp32"), (0, 2, 2)).shape == (0, 2, 2)
    for rows, columns in ((1, 1), (1, 5), (5, 1), (5, 7)):  # 0 * inf is NaN, and is not skipped
        a, b = ones((rows, 3), "fp32", 0), ones((3, columns), "fp32", INF)
        assert np.isnan(product(a, b, (rows, columns))).all()


def test_integer_products(sim: Machine) -> None:
    for dtype, low in (("int8", -128), ("uint8", 255)):
        a, b = ones((1, 1000), dtype, low), ones((1000, 1), dtype, low)
        found = sim.run("matmul", {"A": a, "B": b}, {"Y": Out((1, 1), "int32")})["Y"]
        assert found.tolist() == [[1000 * low * low]]
    big = ones((1, 2), "int32", 65536)
    found = sim.run("matmul", {"A": big, "B": big.T}, {"Y": Out((1, 1), "int32")})["Y"]
    assert found.tolist() == [[0]]  # 2 * 2^32 wraps
    odd = ones((1, 1), "int32", 2147483647)
    assert sim.run("matmul", {"A": odd, "B": odd}, {"Y": Out((1, 1), "int32")})["Y"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("dtype", "a", "b", "alpha", "wanted"),
    [
        ("int32", 2147483647, 1, "1", -2147483648),
        ("uint8", 255, 1, "1", 0),
        ("int8", 127, 1, "1", -128),
        ("int32", 5, 3, "-2", -1),
        ("int32", 0, 1, "4294967297.0", 1),  # 2^32 + 1
        ("uint8", 0, 3, "-1e300", 0),  # a multiple of 2^64
    ],
)
def test_integer_sums_wrap(sim: Machine, dtype: str, a: int, b: int, alpha: str, wanted: int) -> None:
    inputs = {"A": np.array([a]).astype(array([0], dtype).dtype), "B": np.array([b]).astype(array([0], dtype).dtype)}
    assert sim.run("add", inputs, {"C": Out((1,), dtype)}, alpha=alpha)["C"].tolist() == [wanted]


@pytest.mark.parametrize(
    ("a", "b", "out", "values", "wanted"),
    [
        ("int32", "fp16", "fp16", (100000, -50000), 50016),  # the sum is rounded, not its parts
        ("bf16", "fp16", "fp32", (256, 0.0009765625), 256.0009765625),
        ("fp16", "fp32", "fp32", (2048, 0.5), 2048.5),
        ("uint8", "bf16", "bf16", (255, 2), 256),  # 257 is between 256 and 258
        ("int32", "bf16", "bf16", (16842753, 0), 16908288),  # just above the middle: rounding twice gives 16777216
    ],
)
def test_sums_of_mixed_types(
    sim: Machine, a: str, b: str, out: str, values: tuple[float, float], wanted: float
) -> None:
    found = sim.run("add", {"A": array([values[0]], a), "B": array([values[1]], b)}, {"C": Out((1,), out)})
    assert float(found["C"][0]) == wanted


def test_softmax_corners(sim: Machine) -> None:
    def row(values: list[float], dtype: str = "fp32") -> Any:
        return sim.run("softmax", {"X": array(values, dtype)}, {"Y": Out((len(values),), dtype)})["Y"].tolist()

    assert row([1e30, 1e30]) == [0.5, 0.5]
    assert row([0.0, -INF]) == [1.0, 0.0]
    for bad in ([-INF, -INF], [INF, 0.0], [NAN, 0.0, 1.0]):
        assert all(math.isnan(value) for value in row(bad))
    assert sim.run("softmax", {"X": array(7)}, {"Y": Out(())})["Y"].tolist() == 1.0
    assert sim.run("softmax", {"X": ones((3, 0), "fp32")}, {"Y": Out((3, 0))})["Y"].shape == (3, 0)
    found = sim.run("softmax", {"X": array([[0, 1], [0, 3]])}, {"Y": Out((2, 2))}, axis="0")["Y"]
    close(found, [[0.5, 0.11920292], [0.5, 0.88079708]], rtol=1e-5)
    wide = sim.run("softmax", {"X": array([0, 1], "fp16")}, {"Y": Out((2,), "fp32")})["Y"]
    close(wide, [0.26894142137, 0.73105857863], rtol=1e-6)


def test_relu_corners(sim: Machine) -> None:
    for dtype in ("fp32", "fp16", "bf16"):
        found = sim.run("relu", {"X": array([NAN, -INF, INF, -0.0, -1, 2], dtype)}, {"Y": Out((6,), dtype)})["Y"]
        close(found, [NAN, 0, INF, 0, 0, 2], rtol=0)
    found = sim.run("relu", {"X": array([-128, 127], "int8")}, {"Y": Out((2,), "int8")})["Y"]
    assert found.tolist() == [0, 127]


def test_silu_corners(sim: Machine) -> None:
    found = sim.run("silu_and_mul", {"X": array([-100, 0, INF, NAN, 1, 1, 1, 1])}, {"Y": Out((4,))})["Y"]
    close(found, [0, 0, INF, NAN], rtol=0, atol=1e-37)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_norm_corners(sim: Machine, dtype: str) -> None:
    big = ones((1, 4), dtype, 60000)
    found = sim.run("rmsnorm", {"X": big}, {"Y": Out((1, 4), dtype)}, epsilon="1e-6")["Y"]
    close(found, [[1, 1, 1, 1]], rtol=0)
    gemma = {"X": ones((1, 4), dtype), "scale": array([0, 1, -1, 2], dtype)}
    found = sim.run("rmsnorm", gemma, {"Y": Out((1, 4), dtype)}, epsilon="0", variant="gemma")["Y"]
    close(found, [[1, 2, 0, 3]], rtol=0)
    if dtype != "bf16":  # for which there is no kernel
        inputs = {"X": ones((2, 1), dtype, 7), "B": array([3], dtype)}
        found = sim.run("layernorm", inputs, {"Y": Out((2, 1), dtype)}, epsilon="1e-5")["Y"]
        close(found, [[3], [3]], rtol=0)
        inputs = {"X": array([[1, INF], [1, 1]], dtype)}
        found = sim.run("layernorm", inputs, {"Y": Out((2, 2), dtype)}, epsilon="1e-5")["Y"]
        close(found, [[NAN, NAN], [0, 0]], rtol=0)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_copies_round_once_truncate_and_saturate(sim: Machine, name: str) -> None:
    x = array([0.0, -0.75, 3.99, 300, -1e10, 1e10, NAN, INF, 1.00390625, 65519.99])
    wanted = {
        "int8": [0, 0, 3, 127, -128, 127, 0, 127, 1, 127],
        "uint8": [0, 0, 3, 255, 0, 255, 0, 255, 1, 255],
        "int32": [0, 0, 3, 300, -(1 << 31), (1 << 31) - 1, 0, (1 << 31) - 1, 1, 65519],
        "fp32": x.tolist(),
        "fp16": [0, -0.75, 3.990234375, 300, -INF, INF, NAN, INF, 1.00390625, 65504],
        "bf16": [0, -0.75, 3.984375, 300, -9999220736, 9999220736, NAN, INF, 1.0, 65536],
    }[name]
    found = sim.run("copy", {"X": x}, {"Y": Out((10,), name)})["Y"]
    close(found, wanted, rtol=0)


def test_copies_of_integers(sim: Machine) -> None:
    x = np.array([-129, -1, 256, 16842753, 2147483647], np.int32)
    for name, wanted in {
        "int8": [-128, -1, 127, 127, 127],
        "uint8": [0, 0, 255, 255, 255],
        "fp16": [-129, -1, 256, INF, INF],
        "bf16": [-129, -1, 256, 16908288, 2147483648],
        "fp32": [-129, -1, 256, 16842752, 2147483648],
    }.items():
        close(sim.run("copy", {"X": x}, {"Y": Out((5,), name)})["Y"], wanted, rtol=0)
