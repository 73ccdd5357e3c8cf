"""How near a result must come to the reference.

The numbers are those that the collected op facts propose, with what was measured for them: [rtol, atol], a result
passes where |y - ref| <= atol + rtol*|ref|. For contractions the allowance grows with the length of the sum. Where the
inputs decide what fp32 can do at all (a mean far from 0, a large position), that is added and explained here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.abi.tensors import DTYPES
from accelctl.smoke.numbers import Array, floating, wide
from accelctl.smoke.reference.common import Inputs, axis_of, maybe, need, real, whole
from accelctl.smoke.reference.routing import scores

EPS32 = DTYPES["fp32"].epsilon
FACTOR = 32
"""Times eps32*sqrt(K)*rms(A)*rms(B). The largest factor seen from blocked fp32 sums on a CPU was 21 (fp16, K 8192);
sums in fp16 break it in 14 to 96 % of the elements from K 256 on.

One fp32 accumulator that takes product after product is right too, and its error grows with K itself: 0.15*eps32*K is
one sigma when rounding errors are spread evenly, and a factor of 57 was seen from a CPU library at K 4095. So from
K = 1024 on, where both are equal, eps32*K is allowed: 6 sigma. Sums in fp16 at K 8192 are a hundred times beyond it."""

Pair = tuple[float, float]
_ATTENTION = {"fp32": (1e-5, 1e-5), "fp16": (2e-3, 2e-3), "bf16": (1.6e-2, 1.5e-2)}
CLOSE: dict[str, dict[str, Pair]] = {
    "layernorm": {"fp32": (1e-5, 1e-5), "fp16": (1e-3, 1e-3), "bf16": (1.6e-2, 1e-2)},
    "rmsnorm": {"fp32": (1e-5, 1e-6), "fp16": (2e-3, 2e-3), "bf16": (1.6e-2, 1e-2)},
    "softmax": {"fp32": (1e-5, 1e-7), "fp16": (1e-3, 1e-4), "bf16": (1.6e-2, 1e-4)},
    "rope": {"fp32": (1e-5, 1e-5), "fp16": (1e-3, 1e-3), "bf16": (1.6e-2, 1e-2)},
    "silu_and_mul": {"fp32": (1e-6, 1e-6), "fp16": (2e-3, 1e-4), "bf16": (1.6e-2, 1e-3)},
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
}
"""Op -> element type of the result -> (rtol, atol). Decode in fp32 has no proposal of its own: prefill's."""
LSE: Pair = (1e-3, 1e-3)
WEIGHTS: Pair = (1e-5, 1e-6)
SCORE_GAP = 1e-6
"""Experts whose scores are this near may change places; equal ones may not."""
ROW_SUM = 1e-5
"""How far the sum of a softmax may be from 1, in fp32."""

Check = Callable[[Array], str]
"""A further demand on a result (in float64): what is wrong, or nothing."""


class Rule(NamedTuple):
    """How one result is judged. ``kind``: close, exact, ids (of topk_softmax) or blocks (of moe_align). ``atol`` may
    be an array that broadcasts to the result. ``text`` is for people. ``context`` is what ids and blocks need."""

    kind: str
    text: str
    rtol: float = 0.0
    atol: float | Array = 0.0
    check: Check | None = None
    context: Mapping[str, Array] = {}


EXACT = Rule("exact", "exact")


def close(pair: Pair, more: float | Array = 0.0, text: str = "", check: Check | None = None) -> Rule:
    """A rule of kind close; ``more`` is allowed on top of atol."""
    rtol, atol = pair
    said = f"rtol {rtol:.2g}, atol {atol:.2g}" + (f" + {text}" if text else "")
    return Rule("close", said, rtol, atol + more, check)


def rules(
    op: str, inputs: Inputs, attrs: Attrs, results: Mapping[str, Array], types: Mapping[str, str]
) -> dict[str, Rule]:
    """A rule for each result. ``results`` are the reference's, ``types`` the element types that are asked for."""
    found = {}
    for name in results:
        if name == "lse":
            found[name] = close(LSE)
        elif op in _SPECIAL:
            found[name] = _SPECIAL[op](name, inputs, attrs, types[name])
        elif op in CLOSE:
            found[name] = close(CLOSE[op][types[name]])
        else:
            found[name] = EXACT
    return found


def _rms(array: Array, axes: tuple[int, ...]) -> Array:
    """Root of the mean square over these axes; what is not finite does not count."""
    finite = np.isfinite(array)
    count = np.maximum(finite.sum(axis=axes), 1)
    return np.asarray(np.sqrt(np.square(np.where(finite, array, 0.0)).sum(axis=axes) / count))


def _contraction(dtype: str, length: int, size: Array) -> Rule:
    """eps_out*|ref| + eps32*max(32*sqrt(K), K)*rms(A)*rms(B); ``size`` is the product of the two."""
    eps = DTYPES[dtype].epsilon
    steps, said = (
        (length, f"K={length}") if length > FACTOR**2 else (FACTOR * length**0.5, f"{FACTOR}*sqrt(K={length})")
    )
    return close((eps, 0.0), EPS32 * steps * size, f"eps32*{said}*rms(A)*rms(B)")


def _matmul(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    a, b = wide(need(inputs, "A")), wide(need(inputs, "B"))
    if a.dtype == np.int64:
        return EXACT
    kept = min(a.ndim, 2) + min(b.ndim, 2) - 2
    rows = _rms(a, (-2, -1)[-min(a.ndim, 2) :]) if a.ndim > 1 else _rms(a, (-1,))
    columns = _rms(b, (-2, -1)) if b.ndim > 1 else _rms(b, (-1,))
    size = np.asarray(rows * columns)
    return _contraction(dtype, a.shape[-1], size.reshape(size.shape + (1,) * kept))


def _conv2d(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    x, w, bias = wide(need(inputs, "X")), wide(need(inputs, "W")), maybe(inputs, "B")
    size = _rms(x, tuple(range(x.ndim))) * _rms(w, (0, 1, 2, 3))
    rule = _contraction(dtype, int(np.prod(w.shape[1:])), size)
    if bias is None or bias.size == 0:
        return rule
    return rule._replace(atol=rule.atol + 2 * EPS32 * float(np.abs(bias).max()))


def _grouped(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    a, b, ends = wide(need(inputs, "A")), wide(need(inputs, "B")), need(inputs, "offs").tolist()
    size = np.zeros((a.shape[0], 1))
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        size[start:end] = _rms(a[start:end], (0, 1)) * _rms(b[group], (0, 1))
    return _contraction(dtype, a.shape[1], size)


def _layernorm(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    """In fp32 the mean is known to eps32*|mean|, and the difference from it no better: with a mean of 1000 and a
    deviation of 1 that is 1e-4 of the result, ten times the proposed number."""
    x, scale = wide(need(inputs, "X")), maybe(inputs, "scale")
    pair = CLOSE["layernorm"][dtype]
    if x.size == 0:
        return close(pair)
    axes = tuple(range(axis_of(whole(attrs, "axis"), x.ndim), x.ndim))
    with np.errstate(invalid="ignore"):
        mean = np.abs(x.mean(axis=axes, keepdims=True))
        deviation = np.sqrt(np.abs(x.var(axis=axes, keepdims=True) + real(attrs, "epsilon")))
        lost = np.nan_to_num(2 * EPS32 * mean / deviation, nan=0.0, posinf=0.0)
    return close(pair, lost if scale is None else lost * np.abs(scale), "2*eps32*|mean|/std")


def _softmax(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    """82 eps were seen at 50000 columns, which is the whole proposed rtol: for longer rows it grows with the root."""
    x = need(inputs, "X")
    axis = axis_of(whole(attrs, "axis"), max(x.ndim, 1))
    rtol, atol = CLOSE["softmax"][dtype]
    length = x.shape[axis] if x.ndim else 1
    longer = max(1.0, (length / 50000) ** 0.5) if dtype == "fp32" else 1.0

    def sums(y: Array) -> str:
        total = y.sum(axis=axis if y.ndim else None)
        off = np.abs(total - 1.0)[np.isfinite(total)]
        return f"a row sums to 1 {off.max():+.2g}" if off.size and off.max() > ROW_SUM * longer else ""

    return close((rtol * longer, atol), check=sums if dtype == "fp32" and length else None)


def _rope(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    """An angle in fp32 is known to eps32 times the angle, and the result to that times the pair's length. In fp16 the
    angle would be off by 1 beyond position 2048, which is far outside."""
    x, positions = wide(need(inputs, "X")), wide(need(inputs, "positions"))
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    lost = 2 * EPS32 * np.abs(positions)[..., None, None] * largest
    turned = whole(attrs, "rotary_dim") or x.shape[-1]
    before = _pairs(x, turned, attrs)
    allowed = 2 * DTYPES[dtype].epsilon * before + 1e-5

    def lengths(y: Array) -> str:
        off = np.abs(_pairs(y, turned, attrs) - before) > allowed
        return f"{int(off.sum())} pairs changed their length" if off.any() else ""

    return close(CLOSE["rope"][dtype], lost, "2*eps32*position*|x|", lengths)


def _pairs(x: Array, turned: int, attrs: Attrs) -> Array:
    """Lengths of the pairs that rope turns."""
    half = turned // 2
    if attrs["style"] == "neox":
        return np.hypot(x[..., :half], x[..., half:turned])
    return np.hypot(x[..., :turned:2], x[..., 1:turned:2])


def _rmsnorm(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    return EXACT if name == "residual_out" else close(CLOSE["rmsnorm"][dtype])


def _add(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    """One sum of numbers that are there is exact. A factor that is no power of two costs roundings before that."""
    alpha = real(attrs, "alpha")
    if not floating(dtype) or abs(np.frexp(alpha)[0]) in (0.0, 0.5):
        return EXACT
    b = np.abs(alpha * wide(need(inputs, "B")))
    lost = 2 * EPS32 * np.where(np.isfinite(b), b, 0.0)
    return close((DTYPES[dtype].epsilon, 0.0), lost, "2*eps32*|alpha*B|")


def _topk(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    gating = wide(need(inputs, "gating"))
    _, choosing = scores(inputs, attrs)
    poisoned = np.isnan(gating).any(axis=1)
    if attrs["scoring"] == "softmax":
        poisoned |= np.isposinf(gating).any(axis=1) | np.isneginf(gating).all(axis=1)
    context: dict[str, Array] = {"scores": choosing, "poisoned": np.asarray(poisoned)}
    if name == "ids":
        return Rule("ids", f"exact, but for score gaps below {SCORE_GAP:g}", context=context)
    rtol, atol = WEIGHTS
    return Rule("weights", f"rtol {rtol:g}, atol {atol:g}", rtol, atol, context=context)


def _moe_align(name: str, inputs: Inputs, attrs: Attrs, dtype: str) -> Rule:
    if name == "num_tokens_post_pad":
        return EXACT
    block, chosen, mapped = whole(attrs, "block_size"), wide(need(inputs, "topk_ids")), inputs.get("expert_map")
    experts = whole(attrs, "num_experts")
    counts = np.bincount(chosen[(chosen >= 0) & (chosen < experts)], minlength=experts)
    lists = -(-counts // block) * block
    context = {"lists": lists, "block": np.array(block)}
    if name == "sorted_token_ids":
        return Rule("lists", "exact as one set for each expert", context=context)
    beyond = [0] if mapped is None else [0, int(mapped[0])]
    return Rule("owners", "exact", context={**context, "beyond": np.array(beyond)})


_SPECIAL: dict[str, Callable[[str, Inputs, Attrs, str], Rule]] = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "grouped_gemm": _grouped,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "add": _add,
    "topk_softmax": _topk,
    "moe_align": _moe_align,
}
