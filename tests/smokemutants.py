"""Executors that are right but for one mistake, which ports really make. Smoke must notice each of them."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from accelctl.abi.opset import OPS
from accelctl.smoke import reference
from accelctl.smoke.cases import Arg, Trial
from accelctl.smoke.numbers import Array, floating, rounded, wide
from tests.smokehost import execute

Values = dict[str, Any]
Attrs = dict[str, Any]
Wrong = Callable[[Values, Attrs, Trial], Mapping[str, Array] | None]
"""(operands, attributes, trial) -> float64 or int64 results; None where the mistake does not show."""


class Mutant(NamedTuple):
    """``op`` with one mistake."""

    op: str
    name: str
    wrong: Wrong


MUTANTS: list[Mutant] = []


def mutant(*ops: str) -> Callable[[Wrong], Wrong]:
    """Note a mistake of these ops; its name is the function's."""

    def note(wrong: Wrong) -> Wrong:
        MUTANTS.extend(Mutant(op, wrong.__name__, wrong) for op in ops)
        return wrong

    return note


def run(one: Mutant, trial: Trial) -> dict[str, Array]:
    """What the mutant answers: rounded once, as a device stores it."""
    right = execute(trial)
    with np.errstate(all="ignore"):
        found = one.wrong(dict(trial.values), dict(OPS[one.op].parse(trial.attrs)), trial)
    if found is None:
        return right
    types = {name: out.dtype for name, out in trial.outputs.items()}
    stored = {
        name: array if array.dtype == right[name].dtype else rounded(array, types[name])
        for name, array in found.items()
        if name in types
    }
    return right | stored


def ref(op: str, values: Values, attrs: Attrs, trial: Trial) -> dict[str, Array]:
    targets = {name: reference.Target(out.shape, out.dtype) for name, out in trial.outputs.items()}
    return reference.compute(op, values, attrs, targets)


def half(array: Array, dtype: str) -> Array:
    """Rounded to a type, and back in float64."""
    return rounded(array.astype(np.float64), dtype).astype(np.float64)


def narrow(dtype: str) -> str:
    """The half type that a careless kernel would sum in."""
    return dtype if dtype in ("fp16", "bf16") else "fp16"


# -- reading operands: any op --


@mutant(*(op for op in OPS if op != "attention_decode"))
def strides_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Operands are read as if they were dense."""
    changed = False
    for name, arg in t.inputs.items():
        count = int(np.prod(arg.shape))
        part = arg.storage[arg.offset : arg.offset + count]
        if part.size == count:
            v[name] = part.reshape(arg.shape)
            changed = changed or arg.strides != Arg(part, arg.shape, v[name].strides).strides
    try:
        return ref(t.case.op, v, a, t) if changed else None
    except ValueError:
        return None


@mutant("matmul", "relu", "add", "copy")
def offset_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Operands are read from the start of their allocation."""
    v = {name: arg._replace(offset=0).value for name, arg in t.inputs.items()}
    if any(floating(arg.dtype) for arg in t.inputs.values()) and t.case.dtype in ("fp32", "fp16", "bf16"):
        return ref(t.case.op, v, a, t)
    return None


@mutant(*(op for op in OPS if op not in ("matmul", "moe_align", "attention_prefill", "attention_decode")))
def last_element_left_out(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The tail of the result is not written."""
    name = next(iter(t.expected))
    found = np.array(t.expected[name])
    found.reshape(-1)[-1:] = 0
    return {name: found}


# -- contractions --


def chunked(a: Array, b: Array, dtype: str, step: int) -> Array:
    """A matrix product whose running sum is rounded after every ``step`` products."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    for start in range(0, a.shape[-1], step):
        total = half(total + a[..., start : start + step] @ b[..., start : start + step, :], dtype)
    return total


@mutant("matmul")
def sum_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """fp16 accumulation, 16 products at a time."""
    if v["A"].ndim < 2 or v["B"].ndim < 2 or not floating(t.case.dtype) or t.case.dtype == "fp32":
        return None
    return {"Y": chunked(wide(v["A"]), wide(v["B"]), t.case.dtype, 16)}


@mutant("matmul")
def sum_in_half_64(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """fp16 accumulation, 64 products at a time: the least that a tensor core could do wrong."""
    if v["A"].ndim < 2 or v["B"].ndim < 2 or t.case.dtype != "fp16":
        return None
    return {"Y": chunked(wide(v["A"]), wide(v["B"]), "fp16", 64)}


@mutant("matmul")
def tf32_unasked(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Operands lose 13 bits of their fraction."""
    if t.case.dtype != "fp32":
        return None
    short = {name: (one.view(np.uint32) & 0xFFFFE000).view(np.float32) for name, one in v.items() if one.size}
    return ref("matmul", v | {n: s.reshape(v[n].shape) for n, s in short.items()}, a, t)


@mutant("matmul")
def zeros_skipped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """A product with 0 is not computed, so 0*inf is lost."""
    if t.case.dtype == "fp32" and np.isfinite(v["A"]).all() and v["B"].ndim == 2:
        return {"Y": wide(v["A"]) @ np.nan_to_num(wide(v["B"]), posinf=0.0)}
    return None


@mutant("matmul")
def saturated_instead_of_inf(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": np.clip(t.expected["Y"], -65504, 65504)} if t.outputs["Y"].dtype == "fp16" else None


@mutant("matmul")
def integers_saturate(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if floating(t.case.dtype):
        return None
    exact = np.matmul(wide(v["A"]).astype(object), wide(v["B"]).astype(object)) if v["A"].shape[-1] else None
    return None if exact is None else {"Y": np.clip(exact, -(2**31), 2**31 - 1).astype(np.int64)}


@mutant("matmul")
def rounded_before_a_wide_result(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return {"Y": half(t.expected["Y"], t.case.dtype)} if floating(t.case.dtype) else None


@mutant("matmul")
def first_batch_everywhere(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The batch stride is forgotten."""
    if v["A"].ndim < 3:
        return None
    return ref("matmul", v | {"A": np.broadcast_to(v["A"][:1], v["A"].shape)}, a, t)


@mutant("conv2d")
def kernel_flipped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("conv2d", v | {"W": v["W"][:, :, ::-1, ::-1]}, a, t)


@mutant("conv2d")
def odd_padding_at_the_wrong_end(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    other = {"same_upper": "same_lower", "same_lower": "same_upper"}
    return ref("conv2d", v, a | {"auto_pad": other.get(a["auto_pad"], a["auto_pad"])}, t)


@mutant("conv2d")
def begin_and_end_swapped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    pads = a["pads"]
    return ref("conv2d", v, a | {"pads": (pads[2], pads[3], pads[0], pads[1])}, t)


def _if_possible(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    try:
        found = ref("conv2d", v, a, t)
    except ValueError:
        return None
    return found if found["Y"].shape == t.outputs["Y"].shape else None


@mutant("conv2d")
def strides_swapped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return _if_possible(v, a | {"strides": a["strides"][::-1]}, t)


@mutant("conv2d")
def dilations_swapped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return _if_possible(v, a | {"dilations": a["dilations"][::-1]}, t)


@mutant("conv2d")
def channels_shuffled(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """Output channels are dealt to the groups one by one."""
    if a["group"] == 1 or a["layout"] == "nhwc":
        return None
    count = v["W"].shape[0]
    order = np.arange(count).reshape(-1, a["group"]).T.reshape(-1)
    return ref("conv2d", v | {"W": v["W"][order]}, a, t)


@mutant("conv2d")
def bias_forgotten(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    return ref("conv2d", v | {"B": None}, a, t)


@mutant("conv2d")
def layout_ignored(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """A channels-last image is handed out channels first."""
    if a["layout"] != "nhwc":
        return None
    return {"Y": np.moveaxis(t.expected["Y"], -1, 1).reshape(t.expected["Y"].shape)}


@mutant("conv2d")
def convolution_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The sum is rounded after each channel."""
    x, w = v["X"], v["W"]
    if a["group"] != 1 or t.case.dtype == "fp32" or a["layout"] == "nhwc" or x.ndim == 3 or v.get("B") is not None:
        return None
    total = np.zeros(t.expected["Y"].shape)
    for at in range(0, x.shape[1], 8):
        part = {"X": x[:, at : at + 8], "W": w[:, at : at + 8]}
        total = half(total + ref("conv2d", part, a, t)["Y"], t.case.dtype)
    return {"Y": total}


@mutant("grouped_gemm")
def empty_groups_skipped(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """The weights of the next group are those of the next group that has rows."""
    ends = [0, *v["offs"].tolist()]
    busy = [end > start for start, end in pairwise(ends)]
    order = np.cumsum(busy) - 1
    return ref("grouped_gemm", v | {"B": v["B"][np.maximum(order, 0)]}, a, t)


@mutant("grouped_gemm")
def starts_taken_for_ends(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    shifted = np.concatenate([v["offs"][1:], v["offs"][-1:]]).astype(np.int32)
    return ref("grouped_gemm", v | {"offs": shifted}, a, t)


@mutant("grouped_gemm")
def unused_rows_spread(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    """All rows are multiplied, and what does not belong is multiplied by 0: NaN stays."""
    if v["offs"][-1] >= len(v["A"]):
        return None
    spoiled = 0 * wide(v["A"]).sum()
    return {"Y": t.expected["Y"] + spoiled}


@mutant("grouped_gemm")
def tail_of_k_left_out(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    kept = v["A"].shape[1] // 16 * 16
    return ref("grouped_gemm", v | {"A": v["A"][:, :kept], "B": v["B"][:, :kept]}, a, t)


@mutant("grouped_gemm")
def groups_summed_in_half(v: Values, a: Attrs, t: Trial) -> Mapping[str, Array] | None:
    if t.case.dtype == "fp32" or not v["A"].size:
        return None
    found, ends = np.full(t.expected["Y"].shape, np.nan), [0, *v["offs"].tolist()]
    for group, (start, end) in enumerate(pairwise(ends)):
        found[start:end] = chunked(wide(v["A"])[start:end], wide(v["B"])[group], t.case.dtype, 64)
    return {"Y": found}
