"""Mutants of norms, elementwise ops, rope and copy."""

from collections.abc import Mapping

import numpy as np

from accelctl.smoke.cases import Trial
from accelctl.smoke.numbers import NUMPY, Array, floating, rounded, wide
from tests.smokemutants import Attrs, Values, half, mutant, narrow, ref

F32 = np.float32


def axes(x: Array, a: Attrs) -> tuple[int, ...]:
    return tuple(range(a["axis"] % x.ndim, x.ndim))


def scaled(y: Array, v: Values) -> Mapping[str, Array]:
    scale, bias = v.get("scale"), v.get("B")
    y = y if scale is None else y * wide(scale)
    return {"Y": y if bias is None else y + wide(bias)}


def moments(v: Values, a: Attrs) -> tuple[Array, Array, Array]:
    x = wide(v["X"])
    mean = x.mean(axis=axes(x, a), keepdims=True)
    return x, mean, np.square(x - mean).mean(axis=axes(x, a), keepdims=True)


@mutant("layernorm")
def eps_outside(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size or a["epsilon"] < 0:
        return None
    x, mean, variance = moments(v, a)
    return scaled((x - mean) / (np.sqrt(variance) + a["epsilon"]), v)


@mutant("layernorm")
def variance_in_one_pass(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size or a["epsilon"] < 0:
        return None
    x = v["X"].astype(F32)
    mean = x.mean(axis=axes(x, a), keepdims=True, dtype=F32)
    variance = np.square(x).mean(axis=axes(x, a), keepdims=True, dtype=F32) - mean * mean
    return scaled(((x - mean) / np.sqrt(variance + F32(a["epsilon"]))).astype(float), v)


@mutant("layernorm")
def divided_by_n_minus_1(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size or a["epsilon"] < 0:
        return None
    x, mean, variance = moments(v, a)
    count = np.prod([x.shape[axis] for axis in axes(x, a)])
    return scaled((x - mean) / np.sqrt(variance * count / max(count - 1, 1) + a["epsilon"]), v)


@mutant("layernorm")
def only_the_last_axis(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size:
        return None
    x = wide(v["X"])
    centred = x - x.mean(axis=-1, keepdims=True)
    return scaled(centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + a["epsilon"]), v)


@mutant("layernorm")
def negative_axis_counted_from_the_front(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """axis -1 is taken for 1, in squares the mistake hides."""
    x = wide(v["X"])
    other = a | {"axis": abs(a["axis"]) % x.ndim}
    if not x.size or a["axis"] >= 0 or axes(x, other) == axes(x, a):
        return None
    return ref("layernorm", {"X": v["X"]}, other, t)


@mutant("layernorm")
def squares_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size or a["epsilon"] < 0 or t.case.dtype == "fp32":
        return None
    x, mean, _ = moments(v, a)
    variance = half(np.square(half(x - mean, t.case.dtype)), t.case.dtype).mean(axis=axes(x, a), keepdims=True)
    return scaled((x - mean) / np.sqrt(variance + a["epsilon"]), v)


@mutant("layernorm", "rmsnorm")
def normalised_in_bf16(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """A result that passed through a shorter type on its way."""
    return None if t.case.dtype == "bf16" else {"Y": half(t.expected["Y"], "bf16")}


def rms(v: Values, t: Trial, mean: Array, eps: float, outside: float = 0.0) -> Mapping[str, Array]:
    x = wide(v["X"]) if v.get("residual") is None else wide(v["X"]) + wide(v["residual"])
    y = x / (np.sqrt(mean + eps) + outside)
    return {"Y": y if v.get("scale") is None else y * wide(v["scale"])}


@mutant("rmsnorm")
def rms_eps_outside(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if a["variant"] != "plain" or not v["X"].size:
        return None
    return rms(v, t, np.square(wide(v["X"])).mean(axis=-1, keepdims=True), 0.0, a["epsilon"])


@mutant("rmsnorm")
def rms_squares_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if a["variant"] != "plain" or not v["X"].size or t.case.dtype == "fp32":
        return None
    squares = half(np.square(wide(v["X"])), t.case.dtype)
    return rms(v, t, squares.mean(axis=-1, keepdims=True), a["epsilon"])


@mutant("rmsnorm")
def mean_subtracted(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """layernorm in rmsnorm's place."""
    if a["variant"] != "plain" or not v["X"].size:
        return None
    return rms(v, t, wide(v["X"]).var(axis=-1, keepdims=True), a["epsilon"])


@mutant("rmsnorm")
def gemma_without_one(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("rmsnorm", v, a | {"variant": "plain"}, t) if a["variant"] == "gemma" else None


@mutant("rmsnorm")
def residual_not_added(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if a["variant"] != "fused_add":
        return None
    return ref("rmsnorm", v | {"residual": None}, a | {"variant": "plain"}, t)


@mutant("rmsnorm")
def residual_given_back_unchanged(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"residual_out": wide(v["residual"])} if "residual_out" in t.outputs else None


@mutant("rmsnorm")
def tail_of_odd_rows_left_out(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The mean is taken over whole vectors of 8."""
    kept = v["X"].shape[-1] // 8 * 8
    if a["variant"] != "plain" or not kept or not v["X"].size:
        return None
    x = wide(v["X"])[..., :kept]
    return rms(v, t, np.square(x).sum(axis=-1, keepdims=True) / v["X"].shape[-1], a["epsilon"])


@mutant("softmax")
def maximum_not_subtracted(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if not v["X"].size or v["X"].ndim == 0:
        return None
    powers = half(np.exp(wide(v["X"])), t.case.dtype)
    return {"Y": powers / powers.sum(axis=a["axis"], keepdims=True)}


@mutant("softmax")
def wrong_axis(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("softmax", v, a | {"axis": -1}, t)


@mutant("softmax")
def softmax_sum_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """One addition after the other."""
    x = wide(v["X"])
    if x.ndim != 2 or a["axis"] not in (-1, 1) or not 0 < x.shape[1] <= 4096 or t.case.dtype == "fp32":
        return None
    powers, total = np.exp(x - x.max(axis=1, keepdims=True)), np.zeros(len(x))
    for column in powers.T:
        total = half(total + column, t.case.dtype)
    return {"Y": powers / total[:, None]}


@mutant("softmax")
def sum_beyond_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Summed well, but kept in fp16: inf beyond 65504."""
    x = wide(v["X"])
    if x.ndim != 2 or not x.size or t.case.dtype != "fp16":
        return None
    powers = np.exp(x - x.max(axis=a["axis"], keepdims=True))
    return {"Y": powers / half(powers.sum(axis=a["axis"], keepdims=True), "fp16")}


@mutant("softmax")
def masked_rows_give_zero(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": np.nan_to_num(t.expected["Y"])}


@mutant("softmax")
def fast_exp(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Off by a thousandth, up or down with the argument."""
    if t.case.dtype != "fp32" or not v["X"].size or v["X"].ndim == 0:
        return None
    x = wide(v["X"])
    powers = np.exp(x - x.max(axis=a["axis"], keepdims=True)) * (1 + 1e-3 * np.sin(7 * x))
    return {"Y": powers / powers.sum(axis=a["axis"], keepdims=True)}


@mutant("relu")
def nan_dropped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": np.fmax(wide(v["X"]), 0)}


@mutant("relu")
def absolute_value(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": np.abs(wide(v["X"]))}


@mutant("add")
def aligned_from_the_left(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Sizes are matched without looking at the axes: the last-axis shortcut."""
    big, small = (v["A"], v["B"]) if v["A"].size >= v["B"].size else (v["B"], v["A"])
    if big.shape != t.outputs["C"].shape or not small.size or a["alpha"] != 1.0:
        return None
    return {"C": wide(big) + np.resize(wide(small), big.shape)}


@mutant("add")
def alpha_forgotten(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("add", v, a | {"alpha": 1.0}, t)


@mutant("add")
def product_rounded_first(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if a["alpha"] == 1.0 or not floating(t.case.dtype) or t.case.dtype == "fp32":
        return None
    return {"C": wide(v["A"]) + half(a["alpha"] * wide(v["B"]), t.case.dtype)}


@mutant("add")
def sums_saturate(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if floating(t.outputs["C"].dtype):
        return None
    limits = np.iinfo(NUMPY[t.outputs["C"].dtype])
    return {"C": np.clip(t.expected["C"], limits.min, limits.max)}


@mutant("add")
def subnormal_flushed(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    smallest = 2.0**-14 if t.outputs["C"].dtype == "fp16" else 2.0**-126
    c = t.expected["C"]
    return {"C": np.where(np.abs(c) < smallest, 0.0, c)} if floating(t.outputs["C"].dtype) else None


@mutant("add")
def wider_operand_narrowed(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Promotion to the type of A."""
    return {"C": half(t.expected["C"], narrow(t.case.dtype))} if t.outputs["C"].dtype == "fp32" else None


@mutant("add")
def truncated_sum(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Rounded toward zero."""
    if t.outputs["C"].dtype != "fp32":
        return None
    c = t.expected["C"]
    near = c.astype(F32)
    return {"C": np.where(np.abs(near.astype(float)) > np.abs(c), np.nextafter(near, F32(0)), near).astype(float)}


@mutant("silu_and_mul")
def halves_swapped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    gate, up = np.split(v["X"], 2, axis=-1)
    return ref("silu_and_mul", {"X": np.concatenate([up, gate], axis=-1)}, a, t)


@mutant("silu_and_mul")
def halves_interleaved(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("silu_and_mul", {"X": np.concatenate([v["X"][..., ::2], v["X"][..., 1::2]], axis=-1)}, a, t)


@mutant("silu_and_mul")
def exp_overflows(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """x*e^x/(1+e^x): inf/inf where e^x does not fit."""
    gate, up = np.split(v["X"].astype(F32), 2, axis=-1)
    power = np.exp(gate)
    return {"Y": (gate * (power / (1 + power)) * up).astype(float)}


@mutant("silu_and_mul")
def sigmoid_forgotten(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    gate, up = np.split(wide(v["X"]), 2, axis=-1)
    return {"Y": np.maximum(gate, 0) * up}


@mutant("rope")
def other_style(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("rope", v, a | {"style": "neox" if a["style"] == "interleaved" else "interleaved"}, t)


@mutant("rope")
def turned_backwards(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("rope", v | {"positions": -v["positions"]}, a, t)


@mutant("rope")
def row_taken_for_position(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    rows = np.broadcast_to(np.arange(v["X"].shape[-3], dtype=np.int32), v["positions"].shape)
    return ref("rope", v | {"positions": rows}, a, t)


@mutant("rope")
def angle_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Positions are kept in fp16: beyond 2048 not every one is there."""
    return ref("rope", v | {"positions": half(v["positions"], "fp16").astype(np.int32)}, a, t)


@mutant("rope")
def all_numbers_turned(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("rope", v, a | {"rotary_dim": 0}, t)


@mutant("rope")
def base_fixed(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("rope", v, a | {"base": 10000.0}, t)


@mutant("copy")
def wraps_instead_of_saturating(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    dtype = t.outputs["Y"].dtype
    if floating(dtype):
        return None
    x = np.broadcast_to(wide(v["X"]), t.outputs["Y"].shape)
    return {"Y": rounded(np.trunc(np.nan_to_num(x)).clip(-(2.0**62), 2.0**62).astype(np.int64), dtype)}


@mutant("copy")
def rounded_to_integers(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    dtype = t.outputs["Y"].dtype
    if floating(dtype) or not floating(t.case.dtype):
        return None
    limits = np.iinfo(NUMPY[dtype])
    return {"Y": np.clip(np.rint(wide(v["X"])), limits.min, limits.max).astype(np.int64)}


@mutant("copy")
def upper_bits_taken(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """fp32 to bf16 by dropping bits."""
    if (t.case.dtype, t.outputs["Y"].dtype) != ("fp32", "bf16"):
        return None
    kept = (np.ascontiguousarray(v["X"]).view(np.uint32) & 0xFFFF0000).view(F32)
    return {"Y": kept.astype(float)}


@mutant("copy")
def large_numbers_saturate(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": np.clip(t.expected["Y"], -65504, 65504)} if t.outputs["Y"].dtype == "fp16" else None
