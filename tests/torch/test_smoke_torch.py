"""The reference against PyTorch, over the whole catalogue: in float64 nearly digit by digit, and PyTorch in the tested
element type as one more executor that must pass."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from accelctl.abi.opset import OPS, Attrs
from accelctl.smoke.cases import Case, Trial, select
from accelctl.smoke.compare import judge
from accelctl.smoke.numbers import NUMPY, Array, floating, name_of, rounded

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: the reference is not compared with it")

TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
Tensors = Mapping[str, Any]


def tensor(array: Array, dtype: Any = None) -> Any:
    """An array as PyTorch has it; bf16 goes by its bits."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if name_of(array) == "bf16":
        found = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        found = torch.from_numpy(array.copy())
    return found if dtype is None or not found.is_floating_point() else found.to(dtype)


def array(found: Any) -> Array:
    if found.dtype == torch.bfloat16:
        return np.asarray(found.contiguous().view(torch.int16).numpy()).view(NUMPY["bf16"])
    return np.asarray(found.numpy())


def matmul(t: Tensors, attrs: Attrs) -> dict[str, Any]:
    a, b = t["A"], t["B"]
    if not a.is_floating_point():
        return {"Y": torch.matmul(a.to(torch.int32), b.to(torch.int32))}
    return {"Y": torch.matmul(a, b)}


def conv2d(t: Tensors, attrs: Any) -> dict[str, Any]:
    x, w = t["X"], t["W"]
    if attrs["layout"] == "nhwc":
        x = x.movedim(-1, -3)
    pads = list(attrs["pads"]) if attrs["auto_pad"] == "notset" else [0, 0, 0, 0]
    if attrs["auto_pad"].startswith("same"):
        for axis in (0, 1):
            length, stride = x.shape[-2 + axis], attrs["strides"][axis]
            reach = attrs["dilations"][axis] * (w.shape[2 + axis] - 1) + 1
            total = max(0, (math.ceil(length / stride) - 1) * stride + reach - length)
            small, large = total // 2, (total + 1) // 2
            upper = attrs["auto_pad"] == "same_upper"
            pads[axis], pads[axis + 2] = (small, large) if upper else (large, small)
    padded = torch.nn.functional.pad(x, (pads[1], pads[3], pads[0], pads[2]))
    y = torch.nn.functional.conv2d(padded, w, t.get("B"), attrs["strides"], 0, attrs["dilations"], attrs["group"])
    return {"Y": y.movedim(-3, -1) if attrs["layout"] == "nhwc" else y}


def layernorm(t: Tensors, attrs: Any) -> dict[str, Any]:
    x = t["X"]
    shape = x.shape[attrs["axis"] :] if attrs["axis"] else x.shape
    return {"Y": torch.nn.functional.layer_norm(x, shape, t.get("scale"), t.get("B"), attrs["epsilon"])}


def rmsnorm(t: Tensors, attrs: Any) -> dict[str, Any]:
    x, scale = t["X"], t.get("scale")
    if "residual" in t:
        x = x + t["residual"]
    if attrs["variant"] == "gemma":
        scale = 1.0 + t["scale"]
    return {"Y": torch.nn.functional.rms_norm(x, x.shape[-1:], scale, attrs["epsilon"]), "residual_out": x}


def add(t: Tensors, attrs: Any) -> dict[str, Any]:
    alpha = attrs["alpha"]
    return {"C": torch.add(t["A"], t["B"], alpha=int(alpha) if alpha == int(alpha) else alpha)}


def silu_and_mul(t: Tensors, attrs: Attrs) -> dict[str, Any]:
    gate, up = t["X"].chunk(2, dim=-1)
    return {"Y": torch.nn.functional.silu(gate) * up}


def prefill(t: Tensors, attrs: Any) -> dict[str, Any]:
    """Without a soft cap, which PyTorch's function does not have."""
    q, k, v = t["Q"], t["K"], t["V"]
    rows, columns = q.shape[-2], k.shape[-2]
    shift = 0 if attrs["causal"] == "upper_left" else columns - rows
    i, j = torch.arange(rows)[:, None] + shift, torch.arange(columns)[None]
    seen = (j <= i) if attrs["causal"] != "none" or attrs["window"] else torch.ones(rows, columns, dtype=torch.bool)
    if attrs["window"]:
        seen = seen & (i - attrs["window"] < j)
    bias = torch.zeros(rows, columns, dtype=q.dtype).masked_fill(~seen, -math.inf)
    mask = t.get("mask")
    if mask is not None:
        bias = bias + (mask if mask.is_floating_point() else torch.zeros(mask.shape).masked_fill(mask == 0, -math.inf))
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, bias.to(q.dtype), scale=attrs["scale"] or None, enable_gqa=True
    )
    return {"O": found}


def decode(t: Tensors, attrs: Any) -> dict[str, Any]:
    outputs = []
    for row, length in enumerate(t["seq_lens"].tolist()):
        blocks = t["block_table"][row, : math.ceil(length / attrs["block_size"])].long()
        k, v = (t[name][blocks].flatten(0, 1)[:length].transpose(0, 1) for name in ("k_cache", "v_cache"))
        call = {"causal": "lower_right", "window": attrs["window"], "scale": attrs["scale"]}
        outputs.append(prefill({"Q": t["Q"][row][:, None], "K": k, "V": v}, call)["O"][:, 0])
    return {"O": torch.stack(outputs)}


def grouped_gemm(t: Tensors, attrs: Attrs) -> dict[str, Any]:
    parts, at = [], 0
    for group, end in enumerate(t["offs"].tolist()):
        parts.append(t["A"][at:end] @ t["B"][group])
        at = end
    rest = t["A"].shape[0] - at
    return {"Y": torch.cat([*parts, torch.full((rest, t["B"].shape[2]), math.nan, dtype=t["A"].dtype)])}


def topk_softmax(t: Tensors, attrs: Any) -> dict[str, Any]:
    """Only the weights: of equal scores PyTorch takes any."""
    gating = t["gating"] if t["gating"].dtype == torch.float64 else t["gating"].float()
    scores = torch.softmax(gating, -1) if attrs["scoring"] == "softmax" else torch.sigmoid(gating)
    chosen = torch.topk(scores + t["bias"] if "bias" in t else scores, attrs["k"], sorted=True).indices
    weights = torch.gather(scores, 1, chosen)
    return {"weights": weights / weights.sum(-1, keepdim=True) if attrs["renormalize"] else weights}


def copied(t: Tensors, attrs: Attrs) -> dict[str, Any]:
    return {"Y": t["X"]}


PYTORCH: dict[str, Callable[[Tensors, Any], dict[str, Any]]] = {
    "matmul": matmul,
    "conv2d": conv2d,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "relu": lambda t, attrs: {"Y": torch.relu(t["X"])},
    "add": add,
    "softmax": lambda t, attrs: {"Y": torch.softmax(t["X"], attrs["axis"])},
    "silu_and_mul": silu_and_mul,
    "attention_prefill": prefill,
    "attention_decode": decode,
    "grouped_gemm": grouped_gemm,
    "topk_softmax": topk_softmax,
    "copy": copied,
}
"""rope and moe_align are not in PyTorch."""


def comparable(case: Case) -> bool:
    """What PyTorch has an answer to, and the same one."""
    name = case.id.rpartition("/")[2]
    odd = ("softcap", "both", "not-finite", "refused", "empty-sequence", "no-sequences", "no-columns", "2x0")
    return case.op in PYTORCH and not any(word in name for word in odd)


def trials(op: str) -> list[Trial]:
    return [case.load() for case in select([op]) if comparable(case)]


def run(trial: Trial, dtype: Any = None) -> dict[str, Any]:
    tensors = {name: tensor(one, dtype) for name, one in trial.values.items() if one is not None}
    return PYTORCH[trial.case.op](tensors, OPS[trial.case.op].parse(trial.attrs))


@pytest.mark.parametrize("op", PYTORCH)
def test_the_reference_in_float64(op: str) -> None:
    wrong, compared = [], 0
    for trial in trials(op):
        for name, found in run(trial, torch.float64).items():
            want = trial.expected.get(name)
            if want is None or not found.is_floating_point() or want.dtype != np.float64:
                continue
            hidden = np.broadcast_to(trial.unjudged.get(name, np.False_), want.shape)
            got = np.broadcast_to(found.numpy(), want.shape) if op == "copy" else found.numpy()
            size = np.abs(want[np.isfinite(want)]).max(initial=1e-300)
            # PyTorch's sum of a matrix product comes in another order: 1e-12 of the largest result
            if not np.allclose(np.where(hidden, want, got), want, rtol=1e-10, atol=1e-12 * size, equal_nan=True):
                wrong.append(trial.case.id)
            compared += 1
    assert wrong == []
    assert compared > 15


@pytest.mark.parametrize("op", PYTORCH)
def test_pytorch_in_the_tested_type_passes(op: str) -> None:
    """Types of results that PyTorch does not offer (fp32 of half operands) are left out, and conversion to integers,
    which it wraps where copy saturates."""
    wrong, passed = [], 0
    for trial in trials(op):
        got = {}
        for name, found in run(trial).items():
            out = trial.outputs.get(name)
            if op == "copy" and out is not None and (floating(out.dtype) or found.dtype == TYPES[out.dtype]):
                got[name] = np.broadcast_to(array(found.to(TYPES[out.dtype])), out.shape)
            elif out is not None and found.dtype == TYPES[out.dtype]:
                got[name] = array(found)
        judged = [one for one in judge(trial, got) if one.output in got]
        wrong += [f"{trial.case.id}: {one.detail}" for one in judged if not one.passed]
        passed += sum(one.passed for one in judged)
    assert wrong == []
    assert passed > 15


def test_bits_of_bf16_agree() -> None:
    """Rounding from float64 here is rounding from float32 there, where float32 is exact."""
    values = np.linspace(-3, 3, 1001, dtype=np.float32)
    assert (rounded(values.astype(np.float64), "bf16") == array(torch.from_numpy(values).to(torch.bfloat16))).all()
