"""Numbers: how element types are read, and the one rounding with which results are stored."""

from __future__ import annotations

from typing import Any

import torch

from accelctl.backends.torch.ops.line import Fault

Array = Any
"""A torch.Tensor."""
TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
"""Name of an element type (abi.tensors) -> PyTorch's."""


def f32(x: Array) -> Array:
    """As fp32: exact for all floating types and the 8-bit integers. Often x itself: never written to."""
    return x.to(torch.float32)


def f64(x: Array) -> Array:
    """As fp64: exact for everything."""
    return x.to(torch.float64)


def store(out: Array, value: Array) -> None:
    """Results of the output's own shape: floats rounded once, to the nearest even; integers wrap."""
    if out.shape != value.shape:  # copy_ would repeat it
        raise Fault(f"a result of shape {tuple(value.shape)} for an output of {tuple(out.shape)}")
    out.copy_(value)


def store_wide(out: Array, value: Array) -> None:
    """fp64 results into a floating output, rounded once.

    PyTorch goes from fp64 to both 16-bit types by way of fp32, which rounds twice; with the first rounding to odd the
    second one sees on which side of the middle a number was (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    store(out, value if out.dtype == torch.float32 else _odd(value))


def _odd(x: Array) -> Array:
    """fp64 to fp32, to the neighbour whose last bit is 1 where it is not exact."""
    near = x.to(torch.float32)
    inf = torch.full_like(near, torch.inf)
    away = torch.nextafter(near, torch.where(x > near.to(torch.float64), inf, -inf))
    even = near.view(torch.int32) % 2 == 0
    exact = (near.to(torch.float64) == x) | ~torch.isfinite(near)
    return torch.where(exact | ~even, near, away)
