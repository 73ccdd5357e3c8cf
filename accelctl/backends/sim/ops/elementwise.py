"""copy, relu, add, silu_and_mul."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs, real
from accelctl.backends.sim.ops.numeric import Array, f32, store, store_converted, store_wide, store_wrapped


def copy(attrs: Attrs, out: Array, x: Array) -> None:
    """Y = X, repeated and converted."""
    if x.dtype == out.dtype:
        out[...] = x  # numpy looks whether the output lies on the input
    else:
        store_converted(out, np.broadcast_to(x, out.shape))


def relu(attrs: Attrs, out: Array, x: Array) -> None:
    """max(x, 0); NaN stays NaN."""
    zero = x.dtype.type(0)
    out[...] = np.where(x < zero, zero, x)


def add(attrs: Attrs, out: Array, a: Array, b: Array) -> None:
    """A + alpha * B. One rounding: the sum of two halves is taken in fp32 (its 24 bits are twice 11 and 2 more, so that
    rounding twice is rounding once), everything else in fp64 or, for integers, in 64 bits that wrap."""
    alpha = real(attrs["alpha"])
    if out.dtype.kind in "iu":
        factor = np.array(int(alpha) % (1 << 64), np.uint64).astype(np.int64)
        store_wrapped(out, a.astype(np.int64) + factor * b.astype(np.int64))
    elif alpha == 1.0 and a.dtype == b.dtype:
        store(out, f32(a) + f32(b))
    else:
        store_wide(out, a.astype(np.float64) + alpha * b.astype(np.float64))


def silu_and_mul(attrs: Attrs, out: Array, x: Array) -> None:
    """gate * sigmoid(gate) * up, the gate first. exp(-gate) that overflows makes the sigmoid 0, as it should be."""
    half = x.shape[-1] // 2
    gate, up = f32(x[..., :half]), f32(x[..., half:])
    one = np.float32(1)
    store(out, gate / (one + np.exp(-gate)) * up)
