"""matmul, conv2d, grouped_gemm: products summed in fp32, rounded once."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np

from accelctl.abi.opset import Attrs, whole
from accelctl.backends.sim.ops.numeric import Array, f32, store, store_wrapped
from accelctl.backends.sim.tables import JobFault


def matmul(attrs: Attrs, out: Array, a: Array, b: Array) -> None:
    """Y = A x B, leading dimensions repeated; integers into int32. The permission to round fp32 to tf32 is not used."""
    if a.dtype.kind not in "iu":
        store(out, np.matmul(f32(a), f32(b)))
    elif a.dtype.itemsize == 1:  # exact in fp64: products below 2^16, and far fewer than 2^37 of them
        store_wrapped(out, np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64))
    else:
        store_wrapped(out, np.matmul(a.astype(np.int64), b.astype(np.int64)))


def matvec(attrs: Attrs, out: Array, a: Array, b: Array) -> None:
    """Y = A x b for one column: one pass over the rows of A."""
    rows = f32(a).reshape(-1, a.shape[-1])
    store(out, np.dot(rows, f32(b).reshape(-1)).reshape(out.shape))


def conv2d(
    attrs: Attrs, out: Array, x: Array, w: Array, bias: Array | None, *, pads: tuple[tuple[int, int], ...]
) -> None:
    """Cross-correlation, channels first: for each element of the kernel one product over the channels of a group.
    ``pads``: rows before and after, columns before and after."""
    x, y = (x, out) if x.ndim == 4 else (x[None], out[None])
    (down, across), (dy, dx), group = _two(attrs, "strides"), _two(attrs, "dilations"), whole(attrs["group"])
    batch, channels = x.shape[:2]
    outs, rows, columns = y.shape[1:]
    padded = np.pad(f32(x), ((0, 0), (0, 0), *pads))
    weights = f32(w).reshape(group, outs // group, channels // group, *w.shape[2:])
    total = np.zeros((batch, group, outs // group, rows * columns), np.float32)
    for u in range(w.shape[2]):
        for v in range(w.shape[3]):
            top, left = u * dy, v * dx
            met = padded[
                :, :, top : top + (rows - 1) * down + 1 : down, left : left + (columns - 1) * across + 1 : across
            ]
            total += weights[..., u, v] @ met.reshape(batch, group, channels // group, rows * columns)
    total = total.reshape(y.shape)
    store(y, total if bias is None else total + f32(bias)[:, None, None])


def _two(attrs: Attrs, name: str) -> tuple[int, int]:
    first, second = cast("tuple[int, int]", attrs[name])  # shapes.check saw to it
    return first, second


def grouped_gemm(attrs: Attrs, out: Array, a: Array, b: Array, offs: Array) -> None:
    """Rows up to offs[g] times B[g]. Rows from the last offset on keep what they were. JobFault for offsets that
    decrease or leave A."""
    ends = [0, *offs.tolist()]
    if ends != sorted(ends) or ends[-1] > a.shape[0]:
        raise JobFault(f"offs: {ends[1:9]} do not rise to {a.shape[0]} rows of A at most")
    parts = [f32(a[start:end]) @ f32(b[g]) for g, (start, end) in enumerate(pairwise(ends))]
    if parts:
        store(out[: ends[-1]], np.concatenate(parts))
