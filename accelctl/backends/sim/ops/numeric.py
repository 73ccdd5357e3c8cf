"""Numbers of the arithmetic units: how element types are read, and the one rounding with which results are stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NUMPY: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
_INTS = "iu"


def f32(x: Array) -> Array:
    """As fp32, row major. Exact for all floating types and the 8-bit integers."""
    return x.astype(np.float32, order="C")


def store(out: Array, value: Array) -> None:
    """fp32 (or narrower) results into an output: rounded once, to the nearest even."""
    out[...] = value


def store_wrapped(out: Array, value: Array) -> None:
    """Integers of 64 bits into an integer output: what does not fit wraps."""
    out[...] = value.astype(out.dtype)


def store_wide(out: Array, value: Array) -> None:
    """fp64 results into a floating output, rounded once.

    numpy goes from fp64 to bf16 by way of fp32, which rounds twice; with the first rounding to odd the second one sees
    on which side of the middle a number was (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    out[...] = _odd(value) if out.dtype == NUMPY["bf16"] else value


def _odd(x: Array) -> Array:
    """fp64 to fp32, to the neighbour whose last bit is 1 where it is not exact."""
    near = x.astype(np.float32)
    away = np.nextafter(near, np.where(x > near, np.inf, -np.inf).astype(np.float32))
    even = near.view(np.int32) % 2 == 0
    exact = (near.astype(np.float64) == x) | ~np.isfinite(near)
    return np.where(exact | ~even, near, away)


def store_converted(out: Array, x: Array) -> None:
    """Any element type into any: to floating types one rounding; to integers truncated and saturated, NaN is 0."""
    if out.dtype.kind not in _INTS:
        if x.dtype.kind in _INTS:
            store_wide(out, x.astype(np.float64))
        else:
            store(out, f32(x))
        return
    limits = np.iinfo(out.dtype)
    if x.dtype.kind in _INTS:
        found = x.astype(np.int64)
    else:
        found = np.trunc(x.astype(np.float64))
        found = np.where(np.isnan(found), 0.0, found)
    out[...] = np.clip(found, limits.min, limits.max).astype(out.dtype)
