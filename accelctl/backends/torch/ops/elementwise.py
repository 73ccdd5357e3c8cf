"""copy, relu, add, silu_and_mul."""

from __future__ import annotations

import torch

from accelctl.abi.opset import Attrs, real
from accelctl.backends.torch.ops.numeric import Array, f32, f64, store, store_wide


def copy(attrs: Attrs, out: Array, x: Array) -> None:
    """Y = X, repeated and converted: to floating types one rounding; to integers truncated and saturated, NaN is 0."""
    x = x.expand(out.shape)
    if x.dtype == out.dtype:
        store(out, x.clone())  # it may lie on the output
    elif not out.dtype.is_floating_point:
        limits = torch.iinfo(out.dtype)
        store(out, torch.nan_to_num(f64(x).trunc()).clamp(limits.min, limits.max))
    elif x.dtype.is_floating_point:
        store(out, f32(x))
    else:
        store_wide(out, f64(x))


def relu(attrs: Attrs, out: Array, x: Array) -> None:
    """max(x, 0); NaN stays NaN."""
    store(out, torch.relu(x))


def add(attrs: Attrs, out: Array, a: Array, b: Array) -> None:
    """A + alpha * B. One rounding: the sum of two halves is taken in fp32 (its 24 bits are twice 11 and 2 more, so that
    rounding twice is rounding once), everything else in fp64 or, for integers, in 64 bits that wrap."""
    alpha = real(attrs["alpha"])
    if not out.dtype.is_floating_point:
        factor = (int(alpha) + (1 << 31)) % (1 << 32) - (1 << 31)  # what a product keeps of it in 32 bits
        store(out, a.to(torch.int64) + factor * b.to(torch.int64))
    elif alpha == 1.0 and a.dtype == b.dtype:
        store(out, f32(a) + f32(b))
    else:
        store_wide(out, f64(a) + alpha * f64(b))


def silu_and_mul(attrs: Attrs, out: Array, x: Array) -> None:
    """gate * sigmoid(gate) * up, the gate first."""
    gate, up = f32(x).chunk(2, dim=-1)
    store(out, torch.nn.functional.silu(gate) * up)
