"""Tensors as both sides of the service describe them: type, shape, strides, address. No numbers, no numpy.

Sizes are Python integers and never wrap. What does not fit into 64 bits is refused here, before anything multiplies it
again (a size that wrapped to a small number is how a tensor's tail becomes zeros).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from accelctl.errors import UsageError

U64 = (1 << 64) - 1
MOST_DIMS = 8
"""Dimensions of a tensor that an instruction can describe."""

Shape = tuple[int, ...]


class DType(NamedTuple):
    """An element type. ``code`` is its number in the protocol and in instructions."""

    name: str
    code: int
    itemsize: int
    """Bytes."""
    floating: bool
    epsilon: float = 0.0
    """Distance from 1 to the next number (floating types)."""


FP32 = DType("fp32", 1, 4, True, 2.0**-23)
FP16 = DType("fp16", 2, 2, True, 2.0**-10)
BF16 = DType("bf16", 3, 2, True, 2.0**-7)
INT8 = DType("int8", 4, 1, False)
INT32 = DType("int32", 5, 4, False)
UINT8 = DType("uint8", 6, 1, False)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (FP32, FP16, BF16, INT8, INT32, UINT8)}
BY_CODE: dict[int, DType] = {dtype.code: dtype for dtype in DTYPES.values()}
"""Number -> type; 0 is no type."""
FLOATS = frozenset({"fp32", "fp16", "bf16"})
INTS = frozenset({"int8", "int32", "uint8"})


class Tensor(NamedTuple):
    """A tensor in device memory, or the description of one. ``strides`` are in elements; 0 repeats, negative ones are
    refused by :func:`span`."""

    shape: Shape
    dtype: DType
    strides: Shape
    address: int = 0

    @property
    def elements(self) -> int:
        """How many; 0 with an empty dimension, 1 for a scalar."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        """Row major without gaps."""
        return is_dense(self.shape, self.strides)


def tensor(shape: Sequence[int], dtype: DType, address: int = 0, strides: Sequence[int] = ()) -> Tensor:
    """A tensor; without strides it is dense."""
    shape = tuple(shape)
    return Tensor(shape, dtype, tuple(strides) if strides else dense_strides(shape), address)


def dense_strides(shape: Sequence[int]) -> Shape:
    """Strides, in elements, of a row-major tensor without gaps."""
    found, step = [], 1
    for length in reversed(shape):
        found.append(step)
        step *= length or 1
    return tuple(reversed(found))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row major without gaps. The stride of an axis of length 1 has no meaning; an empty tensor is dense."""
    if 0 in shape or strides == dense_strides(shape):
        return True
    return all(
        length == 1 or stride == dense
        for length, stride, dense in zip(shape, strides, dense_strides(shape), strict=True)
    )


def byte_size(shape: Sequence[int], dtype: DType) -> int:
    """Bytes of all elements. UsageError where that needs more than 64 bits, or for a negative length."""
    if shape and min(shape) < 0:
        raise UsageError(f"shape {show(shape)}: a length is negative")
    size = prod(shape) * dtype.itemsize
    # an empty dimension must not hide what the others would overflow: 0 x 2^80 is nobody's tensor
    if size > U64 or (not size and prod(length or 1 for length in shape) * dtype.itemsize > U64):
        raise UsageError(f"shape {show(shape)} of {dtype.name} needs more than 64 bits for its size in bytes")
    return size


def span(shape: Sequence[int], strides: Sequence[int], dtype: DType) -> int:
    """Bytes from the first element to the end of the last one; 0 for an empty tensor. UsageError as above, for a
    negative stride, and where shape and strides differ in length."""
    if len(strides) != len(shape):
        raise UsageError(f"{len(strides)} strides for {len(shape)} dimensions")
    if strides and min(strides) < 0:
        raise UsageError(f"strides {show(strides)}: a stride is negative")
    byte_size(shape, dtype)
    if 0 in shape:
        return 0
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    size = (last + 1) * dtype.itemsize
    if size > U64:
        raise UsageError(f"shape {show(shape)} with strides {show(strides)} spans more than 64 bits can say")
    return size


def broadcast(first: Sequence[int], second: Sequence[int]) -> Shape:
    """The common shape, aligned from the right; UsageError naming both where there is none."""
    if first == second:
        return tuple(first)
    rank = max(len(first), len(second))
    left = (1,) * (rank - len(first)) + tuple(first)
    right = (1,) * (rank - len(second)) + tuple(second)
    for one, other in zip(left, right, strict=True):
        if one not in (other, 1) and other != 1:
            raise UsageError(f"shapes {show(first)} and {show(second)} do not broadcast")
    return tuple(other if one == 1 else one for one, other in zip(left, right, strict=True))


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], wide: Sequence[int]) -> Shape:
    """Strides with which a tensor is read as the wider shape: 0 along what is repeated."""
    missing = len(wide) - len(shape)
    inner = (0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True))
    return (0,) * missing + tuple(inner)


def show(shape: Sequence[int]) -> str:
    """(2,3), as people write it."""
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
