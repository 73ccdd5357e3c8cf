"""matmul, conv2d, grouped_gemm: products of fp32, rounded once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import torch

from accelctl.abi.opset import Attrs, whole
from accelctl.backends.torch.ops.line import Fault
from accelctl.backends.torch.ops.numeric import Array, f32, f64, store


def matmul(attrs: Attrs, out: Array, a: Array, b: Array) -> None:
    """Y = A x B, leading dimensions repeated; integers into int32. The permission to round fp32 to tf32 is not used."""
    if a.dtype.is_floating_point:
        store(out, torch.matmul(f32(a), f32(b)))
    elif a.dtype == torch.int32:
        store(out, _wrapped(a, b))
    else:  # products below 2^16, and far fewer than 2^37 of them
        store(out, torch.matmul(f64(a), f64(b)).to(torch.int64))


def _wrapped(a: Array, b: Array) -> Array:
    """Products of 32-bit integers, modulo 2^32, in fp64, as GPUs multiply no matrices of integers that wide. Both are
    halved: 2^20 products of two halves stay below the 2^53 up to which fp64 is exact. The product of the upper halves
    lies above 2^32."""
    inner = torch.matmul(_low(a), _low(b)).to(torch.int64)
    cross = (torch.matmul(f64(a >> 16), _low(b)) + torch.matmul(_low(a), f64(b >> 16))).to(torch.int64)
    return inner + ((cross & 0xFFFF) << 16)


def _low(x: Array) -> Array:
    return f64(x & 0xFFFF)


def conv2d(attrs: Attrs, out: Array, x: Array, w: Array, bias: Array | None) -> None:
    """Cross-correlation; nhwc is a matter of strides."""
    if attrs["layout"] == "nhwc":
        x, out = x.movedim(-1, -3), out.movedim(-1, -3)
    strides, dilations = _two(attrs, "strides"), _two(attrs, "dilations")
    padded = torch.nn.functional.pad(f32(x), _pads(attrs, x.shape, w.shape, strides, dilations))
    more = None if bias is None else f32(bias)
    found = torch.nn.functional.conv2d(padded, f32(w), more, strides, 0, dilations, whole(attrs["group"]))
    store(out, found)


def _two(attrs: Attrs, name: str) -> tuple[int, int]:
    first, second = cast("tuple[int, int]", attrs[name])
    return first, second


def _pads(attrs: Attrs, image: Any, kernel: Any, strides: tuple[int, int], dilations: tuple[int, int]) -> list[int]:
    """Columns before and after, then rows: PyTorch names the last axis first."""
    rule = attrs["auto_pad"]
    if rule == "notset":
        top, left, bottom, right = cast("tuple[int, int, int, int]", attrs["pads"])
        return [left, right, top, bottom]
    found: list[int] = []
    for length, taps, step, gap in zip(image[-2:], kernel[2:], strides, dilations, strict=True):
        total = 0 if rule == "valid" else max(0, (-(-length // step) - 1) * step + gap * (taps - 1) + 1 - length)
        less, more = total // 2, total - total // 2
        found = [less, more, *found] if rule != "same_lower" else [more, less, *found]
    return found


def grouped_gemm(attrs: Attrs, out: Array, a: Array, b: Array, offs: Array) -> None:
    """Rows up to offs[g] times B[g]. Rows from the last offset on keep what they were. Fault for offsets that decrease
    or leave A."""
    ends = [0, *offs.tolist()]
    if ends != sorted(ends) or ends[-1] > a.shape[0]:
        raise Fault(f"offs: {ends[1:9]} do not rise to {a.shape[0]} rows of A at most")
    parts = [f32(a[start:end]) @ f32(b[g]) for g, (start, end) in enumerate(pairwise(ends))]
    if parts:
        store(out[: ends[-1]], torch.cat(parts))
