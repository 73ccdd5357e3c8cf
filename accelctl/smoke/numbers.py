"""Element types as numpy has them, correct rounding from float64, and distances counted in units in the last place."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from accelctl.abi.tensors import DTYPES

Array = npt.NDArray[Any]

NUMPY: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
"""Name of an element type (abi.tensors) -> numpy's."""
_NAMES = {dtype: name for name, dtype in NUMPY.items()}


class Format(NamedTuple):
    """A binary floating-point format: bits of the fraction, smallest exponent of a normal number, largest number."""

    fraction: int
    lowest: int
    most: float


FORMATS = {
    "fp32": Format(23, -126, (2 - 2.0**-23) * 2.0**127),
    "fp16": Format(10, -14, 65504.0),
    "bf16": Format(7, -126, (2 - 2.0**-7) * 2.0**127),
}


def name_of(array: Array) -> str:
    """Name of an array's element type. KeyError for one that no tensor has."""
    return _NAMES[array.dtype]


def floating(dtype: str) -> bool:
    """Whether that element type is a floating one."""
    return DTYPES[dtype].floating


def wide(array: Array) -> Array:
    """Values in float64, or in int64 for integers: exact, and the input of every formula of the reference."""
    return array.astype(np.float64 if floating(name_of(array)) else np.int64)


def rounded(values: Array, dtype: str) -> Array:
    """float64 (or int64) values in an element type, rounded once: to the nearest, ties to even; beyond the largest
    number to inf. Integers wrap."""
    if not floating(dtype):
        return values.astype(np.int64).astype(NUMPY[dtype])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype != "bf16":
            return values.astype(np.float64).astype(NUMPY[dtype])
        return _to_odd(values.astype(np.float64)).astype(NUMPY[dtype])


def _to_odd(values: Array) -> Array:
    """float64 in float32, rounded to an odd last bit where that is inexact. Rounding the result to bf16, which is at
    least two bits shorter, gives what one rounding from float64 gives; nearest twice would not."""
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    inexact = np.isfinite(values) & (back != values)
    even = (near.view(np.uint32) & 1) == 0
    toward = np.where(back < values, np.float32(np.inf), np.float32(-np.inf))
    return np.where(inexact & even, np.nextafter(near, toward), near)


def ulp(values: Array, dtype: str) -> Array:
    """Distance between neighbouring numbers of a format at each (float64) value; that of the largest ones beyond the
    end of the range, and at inf and NaN."""
    fraction, lowest, most = FORMATS[dtype]
    size = np.minimum(np.where(np.isfinite(values), np.abs(values), most), most)
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, lowest), lowest)
    return np.asarray(np.ldexp(1.0, exponent - fraction))


def ulp_distance(first: Array, second: Array) -> Array:
    """How many numbers of their (same) element type lie between two arrays, elementwise, as int64. Both zeros are one
    number; where either is NaN the distance is 0 (compare those by position)."""
    dtype = name_of(first)
    if name_of(second) != dtype:
        raise TypeError(f"{dtype} and {name_of(second)} have no common last place")
    if not floating(dtype):
        return np.asarray(np.abs(wide(first) - wide(second)))
    there = ~(np.isnan(first.astype(np.float32)) | np.isnan(second.astype(np.float32)))
    return np.asarray(np.where(there, np.abs(_ordered(first) - _ordered(second)), 0))


def _ordered(array: Array) -> Array:
    """Bits of floating-point numbers as integers that count them in order; 0 for both zeros."""
    size = array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(np.int32 if size == 4 else np.int16).astype(np.int64)
    bits = bits.reshape(array.shape)
    return np.where(bits < 0, -(bits + (1 << (8 * size - 1))), bits)
