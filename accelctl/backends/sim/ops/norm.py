"""layernorm, rmsnorm, softmax in fp32; only sums over a row are taken in fp64: a mean of 1000 costs no digits then."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.sim.ops.numeric import Array, f32, store


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.mean(x, axis=axes, dtype=np.float64, keepdims=True))


def layernorm(attrs: Attrs, out: Array, x: Array, scale: Array | None, bias: Array | None) -> None:
    """Two passes: the mean, then the mean square of what differs from it; eps inside the root."""
    if not x.size:
        return
    axis = whole(attrs["axis"])
    axes = tuple(range(axis % x.ndim, x.ndim))
    x = f32(x)
    apart = x - _mean(x, axes)
    y = (apart / np.sqrt(_mean(apart * apart, axes) + real(attrs["epsilon"]))).astype(np.float32)
    if scale is not None:
        y = y * f32(scale)
    store(out, y if bias is None else y + f32(bias))


def rmsnorm(
    attrs: Attrs, out: Array, kept: Array | None, x: Array, scale: Array | None, residual: Array | None
) -> None:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, eps inside the root. With a residual the sum is normalised
    as it is in fp32, and kept rounded."""
    if not x.size:
        return
    total = f32(x) if residual is None else f32(x) + f32(residual)
    square = _mean(total.astype(np.float64) ** 2, (-1,))
    y = (total / np.sqrt(square + real(attrs["epsilon"]))).astype(np.float32)
    if scale is not None:
        y = y * (f32(scale) + np.float32(attrs["variant"] == "gemma"))
    store(out, y)
    if kept is not None:
        store(kept, total)


def softmax(attrs: Attrs, out: Array, x: Array) -> None:
    """The maximum is subtracted first, so nothing overflows; a row of -inf is NaN."""
    if not x.size:
        return
    axis = whole(attrs["axis"])
    row = f32(x) if x.ndim else f32(x)[None]
    powers = np.exp(row - np.max(row, axis=axis, keepdims=True))
    y = powers / np.sum(powers, axis=axis, dtype=np.float64, keepdims=True)
    store(out, y.astype(np.float32).reshape(out.shape))
