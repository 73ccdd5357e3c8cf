"""rope in float64: positions rotate pairs of numbers."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.reference.common import Inputs, Outputs, exact, real, refuse, shown, whole


def rope(inputs: Inputs, attrs: Attrs) -> Outputs:
    """X [tokens, heads, dim] with positions [tokens], or [batch, tokens, heads, dim] with [batch, tokens]. Pair i of
    rd/2 turns by position * base^(-2i/rd); neox pairs the halves, interleaved the neighbours; what is beyond rd
    passes through."""
    x, positions = exact(inputs, "X"), exact(inputs, "positions")
    refuse(x.ndim not in (3, 4), "X is [tokens, heads, dim] or [batch, tokens, heads, dim]")
    refuse(positions.shape != x.shape[:-2], f"positions are {shown(positions.shape)}, not {shown(x.shape[:-2])}")
    turned = whole(attrs, "rotary_dim") or x.shape[-1]
    refuse(turned % 2 != 0 or not 0 <= turned <= x.shape[-1], f"{turned} of {x.shape[-1]} numbers cannot be paired")
    refuse(real(attrs, "base") <= 0, "base must be positive")
    half = turned // 2
    angle = positions[..., None, None] * real(attrs, "base") ** (np.arange(half) * (-2.0 / max(turned, 1)))
    neox = attrs["style"] == "neox"
    first, second = (slice(0, half), slice(half, turned)) if neox else (slice(0, turned, 2), slice(1, turned, 2))
    y = x.copy()
    y[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    y[..., second] = x[..., second] * np.cos(angle) + x[..., first] * np.sin(angle)
    return {"Y": y}
