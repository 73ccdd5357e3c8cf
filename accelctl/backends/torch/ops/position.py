"""rope: pairs of numbers, turned by their token's position."""

from __future__ import annotations

import torch

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.torch.ops.numeric import Array, f32, f64, store


def rope(attrs: Attrs, out: Array, x: Array, positions: Array) -> None:
    """Angles in fp64 (fp32 is wrong by 1e-3 at position 100000 already), the turn in fp32."""
    width = whole(attrs["rotary_dim"]) or x.shape[-1]
    half = width // 2
    steps = torch.arange(half, dtype=torch.float64, device=x.device)
    rates = real(attrs["base"]) ** (steps * (-2.0 / max(1, width)))
    angles = (f64(positions)[..., None] * rates)[..., None, :]
    cos, sin = f32(torch.cos(angles)), f32(torch.sin(angles))
    neox = attrs["style"] == "neox"
    one = slice(0, half) if neox else slice(0, width, 2)
    two = slice(half, width) if neox else slice(1, width, 2)
    y = f32(x).clone()
    first, second = y[..., one].clone(), y[..., two].clone()
    y[..., one] = first * cos - second * sin
    y[..., two] = second * cos + first * sin
    store(out, y)
