"""layernorm, rmsnorm, softmax in float64. The variance is that of the differences from the mean, eps is below the
root."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.reference.common import (
    Inputs,
    Outputs,
    axis_of,
    exact,
    maybe,
    real,
    refuse,
    same_types,
    shown,
    whole,
)


def layernorm(inputs: Inputs, attrs: Attrs) -> Outputs:
    """(x - mean) / sqrt(var + eps) * scale + bias over the axes from ``axis`` on."""
    same_types(inputs, "X", "scale", "B")
    x, scale, bias = exact(inputs, "X"), maybe(inputs, "scale"), maybe(inputs, "B")
    first = axis_of(whole(attrs, "axis"), x.ndim)
    for name, one in (("scale", scale), ("B", bias)):
        wrong = one is not None and one.shape != x.shape[first:]
        refuse(wrong, f"{name} is {shown(one.shape if one is not None else ())}, not {shown(x.shape[first:])}")
    if x.size == 0:
        return {"Y": x}
    axes = tuple(range(first, x.ndim))
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = np.square(centred).mean(axis=axes, keepdims=True)
        y = centred / np.sqrt(variance + real(attrs, "epsilon"))
        y = y if scale is None else y * scale
        return {"Y": y if bias is None else y + bias}


def rmsnorm(inputs: Inputs, attrs: Attrs) -> Outputs:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis. fused_add normalises x + residual and gives that sum too;
    gemma multiplies by 1 + scale."""
    same_types(inputs, "X", "scale", "residual")
    x, scale, residual = exact(inputs, "X"), maybe(inputs, "scale"), maybe(inputs, "residual")
    refuse(x.ndim == 0, "X has no axis to normalise")
    refuse(scale is not None and scale.shape != x.shape[-1:], "scale has the length of the last axis")
    fused = attrs["variant"] == "fused_add"
    refuse(fused != (residual is not None), "a residual belongs to variant fused_add, and to no other")
    if residual is not None:
        refuse(residual.shape != x.shape, f"residual is {shown(residual.shape)}, X {shown(x.shape)}")
        x = x + residual
    with np.errstate(invalid="ignore"):
        mean = np.square(x).sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)
        y = x / np.sqrt(mean + real(attrs, "epsilon"))
        if scale is not None:
            y = y * (1.0 + scale if attrs["variant"] == "gemma" else scale)
    return {"Y": y, "residual_out": x} if fused else {"Y": y}


def softmax(inputs: Inputs, attrs: Attrs) -> Outputs:
    """exp(x - max) / sum along an axis. A row of -inf only, or one with +inf or NaN, is NaN."""
    x = exact(inputs, "X")
    axis = axis_of(whole(attrs, "axis"), max(x.ndim, 1))
    row = x[None] if x.ndim == 0 else x
    if row.size == 0:
        return {"Y": x}
    with np.errstate(invalid="ignore", under="ignore"):
        powers = np.exp(row - row.max(axis=axis, keepdims=True))
        return {"Y": (powers / powers.sum(axis=axis, keepdims=True)).reshape(x.shape)}
