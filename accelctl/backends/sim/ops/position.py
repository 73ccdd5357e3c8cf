"""rope: pairs of numbers, turned by their token's position."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.sim.ops.numeric import Array, f32, store


def rope(attrs: Attrs, out: Array, x: Array, positions: Array) -> None:
    """Angles in fp64 (fp32 is wrong by 1e-3 at position 100000 already), the turn in fp32."""
    width = whole(attrs["rotary_dim"]) or x.shape[-1]
    half = width // 2
    rates = real(attrs["base"]) ** (np.arange(half, dtype=np.float64) * -2.0 / max(1, width))
    angles = (positions.astype(np.float64)[..., None] * rates)[..., None, :]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    neox = attrs["style"] == "neox"
    one = slice(0, half) if neox else slice(0, width, 2)
    two = slice(half, width) if neox else slice(1, width, 2)
    y = f32(x)
    first, second = y[..., one].copy(), y[..., two].copy()
    y[..., one] = first * cos - second * sin
    y[..., two] = second * cos + first * sin
    store(out, y)
