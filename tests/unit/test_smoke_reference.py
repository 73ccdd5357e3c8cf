"""The float64 reference: golden data, published cases, and what it refuses."""

import json
from typing import Any

import numpy as np
import pytest

from accelctl.abi.opset import OPS, text_of
from accelctl.abi.tensors import DTYPES, byte_size, span
from accelctl.errors import UsageError
from accelctl.smoke import reference
from accelctl.smoke.cases import catalogue
from accelctl.smoke.cases.plans import PLANS, Plan
from accelctl.smoke.compare import compare
from accelctl.smoke.numbers import NUMPY, Array, rounded, ulp, ulp_distance
from accelctl.smoke.reference import Refused
from accelctl.smoke.tolerance import EXACT, close
from tests.conftest import shared_folder
from tests.helpers import ROOT

GOLDEN = json.loads((ROOT / "tests/golden/op_data.json").read_text(encoding="utf-8"))
DATA = [(op, entry) for op, facts in GOLDEN.items() for entry in facts["golden"]]
INTEGERS = {"positions", "block_table", "seq_lens", "offs", "topk_ids", "ids", "expert_map"}


def array(name: str, held: dict[str, Any], integers: bool) -> Array:
    kind = "int32" if integers or name in INTEGERS else "fp32"
    numbers = [float(one) if isinstance(one, str) else one for one in held["data"]]
    found = np.array(numbers, np.float64).reshape(held["shape"])
    return np.asarray(found.astype(np.int32) if kind == "int32" else found)


def golden(op: str, entry: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Inputs and typed attributes; attributes that the entry leaves out have no influence there."""
    given = {name: tuple(one) if isinstance(one, list) else one for name, one in entry["attrs"].items()}
    integers = given.pop("dtype", "") == "int32"
    known = {attr.name for attr in OPS[op].attrs}
    texts = {name: text_of(value) for name, value in given.items() if name in known}
    inputs = {name: array(name, held, integers) for name, held in entry["inputs"].items()}
    return inputs, OPS[op].parse(texts)


def test_there_are_32_golden_cases_for_14_ops() -> None:
    assert len(DATA) == 32
    assert set(GOLDEN) == set(OPS) - {"copy"}


@pytest.mark.parametrize(("op", "entry"), DATA, ids=[f"{op}-{entry['name']}" for op, entry in DATA])
def test_golden(op: str, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The data are float64: the reference is handed them as such, to all the digits that are written down."""
    monkeypatch.setitem(NUMPY, "fp32", np.dtype(np.float64))
    monkeypatch.setattr(
        "accelctl.smoke.numbers._NAMES",
        {np.dtype(np.float64): "fp32", np.dtype(np.int32): "int32"}
        | {dtype: name for name, dtype in NUMPY.items() if name not in ("fp32", "int32")},
    )
    mask = entry["inputs"].get("mask")
    inputs, attrs = golden(op, entry)
    if mask is not None:
        inputs["mask"] = np.array(mask["data"]).astype(np.uint8).reshape(mask["shape"])
    found = reference.compute(op, inputs, attrs)
    for name, held in entry["outputs"].items():
        want = array(name, held, found[name].dtype == np.int64)
        assert found[name].shape == want.shape
        result = found[name] if want.dtype == np.float64 else rounded(found[name], "int32")
        np.testing.assert_allclose(result, want, rtol=1e-12, atol=1e-14, equal_nan=True)


def test_the_golden_copy_is_what_was_collected() -> None:
    path = shared_folder() / "ops" / "ops.json"
    if not path.is_file():
        pytest.skip("the collected op facts are not here: the committed copy is not compared with them")
    collected = json.loads(path.read_text(encoding="utf-8"))["ops"]
    assert {op["id"]: {key: op[key] for key in ("proposed", "golden")} for op in collected} == GOLDEN


# -- rounding and distances --


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_number_of_a_format_survives(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    raw = bits << 16 if dtype == "fp32" else bits.astype(np.uint16)
    numbers = raw.view(NUMPY[dtype])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        numbers = numbers[np.isfinite(numbers.astype(np.float64))]
    assert (rounded(numbers.astype(np.float64), dtype) == numbers).all()


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 10), ("bf16", 7)])
def test_rounding_is_done_once(dtype: str, bits: int) -> None:
    """Just above the middle goes up, even where float32 would first put it into the middle; the middle to the even."""
    step = 2.0**-bits
    middle = 1 + step / 2
    values = np.array([middle + 2.0**-40, middle - 2.0**-40, middle, middle + step, -middle - 2.0**-40])
    assert rounded(values, dtype).astype(float).tolist() == [1 + step, 1, 1, 1 + 2 * step, -1 - step]


@pytest.mark.parametrize(
    ("dtype", "most"), [("fp16", 65504.0), ("bf16", 3.3895313892515355e38), ("fp32", 3.4028234663852886e38)]
)
def test_rounding_at_the_ends(dtype: str, most: float) -> None:
    step = float(ulp(np.array(most), dtype))
    values = np.array([most, most + step * 0.499, most + step * 0.5, -most - step, np.inf, np.nan])
    found = rounded(values, dtype).astype(float)
    np.testing.assert_array_equal(found, [most, most, np.inf, -np.inf, np.inf, np.nan])


def test_rounding_integers_wraps() -> None:
    assert rounded(np.array([256, -1, 2**40 + 5]), "uint8").tolist() == [0, 255, 5]
    assert rounded(np.array([2**31]), "int32").tolist() == [-(2**31)]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_ulp_distance_counts_numbers(dtype: str) -> None:
    least = float(ulp(np.array(0.0), dtype))
    numbers = np.array([1.0, -least, 0.0, -0.0, np.nan]).astype(NUMPY[dtype])
    step = float(ulp(np.array(1.0), dtype))
    others = np.array([1.0 + 3 * step, least, -0.0, 2 * least, 1.0]).astype(NUMPY[dtype])
    assert ulp_distance(numbers, others).tolist() == [3, 2, 0, 2, 0]


def test_ulp_distance_needs_one_type() -> None:
    with pytest.raises(TypeError, match="fp32 and fp16"):
        ulp_distance(np.zeros(1, np.float32), np.zeros(1, np.float16))


# -- what cannot be computed --


REFUSED = [case for case in catalogue() if "/refused-" in case.id]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_what_must_be_refused_is(case: Any) -> None:
    """By the op table where an attribute is wrong, by the reference where operands are."""
    trial = case.load()
    assert trial.refusal is not None
    targets = {name: reference.Target(out.shape, out.dtype) for name, out in trial.outputs.items()}
    with pytest.raises((Refused, UsageError)):
        reference.compute(case.op, trial.values, OPS[case.op].parse(trial.attrs), targets)


def test_refusals_name_both_shapes() -> None:
    a, b = np.zeros((10, 1), np.float32), np.zeros((3, 1), np.float32)
    with pytest.raises(Refused, match=r"\(10,1\) and \(3,1\)"):
        reference.compute("add", {"A": a, "B": b}, OPS["add"].parse({}))


# -- OPS-07: sizes, planned only --


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_ops_07(plan: Plan) -> None:
    dtype = DTYPES[plan.dtype]
    assert int(np.prod([int(length) for length in plan.shape], dtype=object)) == plan.elements
    if plan.nbytes is None:
        with pytest.raises(UsageError, match="more than 64 bits"):
            byte_size(plan.shape, dtype)
    elif plan.strides:
        assert span(plan.shape, plan.strides, dtype) == plan.nbytes
    else:
        assert byte_size(plan.shape, dtype) == plan.nbytes


# -- values that the golden data do not have --


def op(name: str, inputs: dict[str, Array], **attrs: str) -> dict[str, Array]:
    return reference.compute(name, inputs, OPS[name].parse(attrs))


def f32(*values: Any) -> Array:
    return np.array(values, np.float32)


def test_negative_epsilon_is_taken_as_it_is() -> None:
    found = op("layernorm", {"X": f32([1, 3])}, epsilon="-0.5")["Y"]
    assert found.tolist() == [[-1 / 0.5**0.5, 1 / 0.5**0.5]]


def test_silu_of_very_negative_numbers_is_zero() -> None:
    found = op("silu_and_mul", {"X": f32(-1000, -88, 3, 3)})["Y"]
    assert abs(found[0]) == 0
    assert -1e-35 < found[1] < 0


def test_windows_and_alignments() -> None:
    """Two queries, three keys with equal scores: the output is the mean of what is seen."""
    q, k = np.zeros((1, 2, 1), np.float32), np.zeros((1, 3, 1), np.float32)
    v = np.array([[[1.0], [2.0], [4.0]]], np.float32)
    means: dict[tuple[str, str], list[float]] = {
        ("none", "0"): [7 / 3, 7 / 3],
        ("upper_left", "0"): [1, 1.5],
        ("lower_right", "0"): [1.5, 7 / 3],
        ("upper_left", "1"): [1, 2],
        ("lower_right", "2"): [1.5, 3],
        ("none", "1"): [2, 4],
    }
    for (causal, window), want in means.items():
        found = op("attention_prefill", {"Q": q, "K": k, "V": v}, causal=causal, window=window)["O"]
        np.testing.assert_allclose(found[0, :, 0], want)


def test_expert_map_renames_only_used_blocks() -> None:
    ids = np.array([[3], [1]], np.int32)
    mapped = np.array([7, -1, 5, 4], np.int32)
    found = op("moe_align", {"topk_ids": ids, "expert_map": mapped}, num_experts="4", block_size="2")
    assert found["expert_ids"].tolist() == [-1, 4, 0]
    assert found["sorted_token_ids"].tolist() == [1, 2, 0, 2, 2, 2]
    assert found["num_tokens_post_pad"].tolist() == [4]


def test_rules_speak_for_themselves() -> None:
    assert compare("Y", f32(1.0), np.array([1.0]), "fp32", EXACT).passed
    assert "rtol 0.001" in close((1e-3, 0.0)).text
