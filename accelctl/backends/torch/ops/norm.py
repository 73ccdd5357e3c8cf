"""layernorm, rmsnorm, softmax in fp32, by PyTorch's own functions."""

from __future__ import annotations

import torch

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.torch.ops.numeric import Array, f32, store


def _epsilon(attrs: Attrs) -> float:
    """One that is too small for fp32, in which it is added, must not become 0: a row of zeros would be NaN."""
    epsilon = real(attrs["epsilon"])
    return max(epsilon, torch.finfo(torch.float32).tiny) if epsilon > 0 else epsilon


def layernorm(attrs: Attrs, out: Array, x: Array, scale: Array | None, bias: Array | None) -> None:
    """Over the dimensions from ``axis`` on; eps inside the root."""
    if not x.numel():
        return
    inner = x.shape[whole(attrs["axis"]) % x.ndim :]
    more = (None if one is None else f32(one) for one in (scale, bias))
    store(out, torch.nn.functional.layer_norm(f32(x), inner, *more, _epsilon(attrs)))


def rmsnorm(
    attrs: Attrs, out: Array, kept: Array | None, x: Array, scale: Array | None, residual: Array | None
) -> None:
    """Over the last axis, eps inside the root. With a residual the sum is normalised as it is in fp32, and kept
    rounded."""
    if not x.numel():
        return
    total = f32(x) if residual is None else f32(x) + f32(residual)
    factor = None if scale is None else f32(scale) + float(attrs["variant"] == "gemma")
    y = torch.nn.functional.rms_norm(total, x.shape[-1:], factor, _epsilon(attrs))
    store(out, y)
    if kept is not None:
        store(kept, total)


def softmax(attrs: Attrs, out: Array, x: Array) -> None:
    """A row of -inf is NaN."""
    if x.numel():
        store(out, torch.softmax(f32(x), whole(attrs["axis"])))
