"""relu, add, silu_and_mul, copy in float64; integers in 64 bits, wrapped or saturated where they are stored."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.numbers import NUMPY, Array, floating, name_of, wide
from accelctl.smoke.reference.common import Inputs, Outputs, Refused, Target, common_shape, exact, need, real, refuse


def relu(inputs: Inputs, attrs: Attrs) -> Outputs:
    """max(x, 0); NaN stays NaN."""
    x = exact(inputs, "X")
    return {"Y": np.where(x < 0, np.zeros_like(x), x)}


def promoted(a: str, b: str) -> str:
    """Element type of a sum: the same; the floating one; fp32 for two different floating ones."""
    if a == b:
        return a
    if not floating(a) and not floating(b):
        raise Refused(f"{a} and {b}: integers of two kinds have no common type here")
    if floating(a) and floating(b):
        return "fp32"
    return a if floating(a) else b


def add(inputs: Inputs, attrs: Attrs) -> Outputs:
    """A + alpha*B, broadcast from the right."""
    a, b = need(inputs, "A"), need(inputs, "B")
    dtype, alpha = promoted(name_of(a), name_of(b)), real(attrs, "alpha")
    common_shape(a.shape, b.shape)
    if floating(dtype):
        with np.errstate(invalid="ignore", over="ignore"):
            return {"C": a.astype(np.float64) + alpha * b.astype(np.float64)}
    refuse(alpha != int(alpha), f"alpha {alpha} with integers")
    return {"C": wide(a) + int(alpha) * wide(b)}


def silu_and_mul(inputs: Inputs, attrs: Attrs) -> Outputs:
    """gate * sigmoid(gate) * up, gate in the first half of the last axis. exp never overflows: below 0 it is taken of
    gate instead of -gate. silu(-inf) is NaN by this formula; see unsettled."""
    x = exact(inputs, "X")
    refuse(x.ndim == 0 or x.shape[-1] % 2 != 0, "the last axis holds two halves")
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        small = np.exp(-np.abs(gate))
        sigmoid = np.where(gate < 0, small, 1.0) / (1.0 + small)
        return {"Y": gate * sigmoid * up}


def unsettled(inputs: Inputs) -> Array:
    """True where silu_and_mul has no agreed value: the gate is -inf (the formula says NaN, the limit is 0)."""
    x = exact(inputs, "X")
    return np.isneginf(x[..., : x.shape[-1] // 2])


def copy(inputs: Inputs, attrs: Attrs, target: Target) -> Outputs:
    """X in another shape (by broadcast) and element type: one rounding; to an integer truncated and saturated. NaN has
    no integer: no case asks for one."""
    x = need(inputs, "X")
    refuse(common_shape(x.shape, target.shape) != target.shape, "Y is narrower than X")
    values = np.broadcast_to(wide(x), target.shape)
    if floating(target.dtype):
        return {"Y": values.astype(np.float64)}
    limits = np.iinfo(NUMPY[target.dtype])
    if values.dtype == np.float64:
        refuse(bool(np.isnan(values).any()), "NaN has no integer")
        values = np.trunc(values)
    return {"Y": np.clip(values, limits.min, limits.max).astype(np.int64)}
