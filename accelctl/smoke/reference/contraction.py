"""matmul, conv2d, grouped_gemm in float64. Integers are summed in 64 bits that wrap, which is right modulo 2^32."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.numbers import Array
from accelctl.smoke.reference.common import (
    Inputs,
    Outputs,
    common_shape,
    exact,
    maybe,
    need,
    refuse,
    same_types,
    shown,
    whole,
)


def product(a: Array, b: Array) -> Array:
    """Sum over the last axis of a and the last but one of b. Every product counts: 0*inf is NaN (a library that skips
    zeros would lose it, so plain sums are used where something is not finite)."""
    with np.errstate(invalid="ignore", over="ignore"):
        if a.dtype == np.int64 or (np.isfinite(a).all() and np.isfinite(b).all()):
            return np.asarray(np.matmul(a, b))
        return np.asarray((a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2))


def matmul(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Y[..,m,n] = sum_k A[..,m,k] B[..,k,n]; a vector on the left is a row, on the right a column, and is dropped."""
    same_types(inputs, "A", "B")
    a, b = exact(inputs, "A"), exact(inputs, "B")
    refuse(a.ndim == 0 or b.ndim == 0, "a scalar has no matrix product")
    left, right = a.ndim == 1, b.ndim == 1
    a, b = a[None, :] if left else a, b[:, None] if right else b
    refuse(a.shape[-1] != b.shape[-2], f"A {shown(a.shape)} and B {shown(b.shape)} do not multiply")
    common_shape(a.shape[:-2], b.shape[:-2])
    dropped = ((-2,) if left else ()) + ((-1,) if right else ())
    return {"Y": np.squeeze(product(a, b), axis=dropped)}


class Window(NamedTuple):
    """Geometry of a convolution along one axis: lengths in elements."""

    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    out: int

    def taps(self) -> Iterator[tuple[int, slice]]:
        """Each kernel element with the padded input that it meets."""
        for tap in range(self.kernel):
            start = tap * self.dilation
            yield tap, slice(start, start + (self.out - 1) * self.stride + 1, self.stride)


def window(length: int, kernel: int, axis: int, attrs: Attrs) -> Window:
    """The geometry along axis 0 (height) or 1 (width). "same": out = ceil(in/stride), the odd element of the padding
    at the end (upper) or at the beginning (lower)."""
    strides, pads, dilations = (_ints(attrs, name) for name in ("strides", "pads", "dilations"))
    refuse((len(strides), len(pads), len(dilations)) != (2, 4, 2), "two strides, four pads, two dilations")
    stride, dilation, auto = strides[axis], dilations[axis], attrs["auto_pad"]
    refuse(stride < 1 or dilation < 1 or min(pads) < 0, "a stride or dilation below 1, or a negative pad")
    reach = dilation * (kernel - 1) + 1
    begin, end = (pads[axis], pads[axis + 2]) if auto == "notset" else (0, 0)
    if auto in ("same_upper", "same_lower"):
        total = max(0, (-(-length // stride) - 1) * stride + reach - length)
        short, long = total // 2, total - total // 2
        begin, end = (short, long) if auto == "same_upper" else (long, short)
    padded = length + begin + end
    refuse(reach > padded, f"the kernel reaches over {reach}, the padded input is {padded}")
    return Window(kernel, stride, dilation, begin, end, (padded - reach) // stride + 1)


def _ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def conv2d(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Cross-correlation (the kernel is not flipped), zeros outside; layout nhwc changes X and Y, W stays OIHW. X may
    come without the batch axis."""
    same_types(inputs, "X", "W", "B")
    x, w, bias, group = exact(inputs, "X"), exact(inputs, "W"), maybe(inputs, "B"), whole(attrs, "group")
    refuse(x.ndim not in (3, 4) or w.ndim != 4, "X has 3 or 4 dimensions, W 4")
    last = attrs["layout"] == "nhwc"
    batched = x if x.ndim == 4 else x[None]
    batched = np.moveaxis(batched, -1, 1) if last else batched
    _check_channels(batched.shape[1], w.shape, group)
    refuse(bias is not None and bias.shape != w.shape[:1], "the bias has one value for each output channel")
    y = _correlate(batched, w, group, attrs)
    if bias is not None:
        y = y + bias[:, None, None]
    y = np.moveaxis(y, 1, -1) if last else y
    return {"Y": y if x.ndim == 4 else y[0]}


def _check_channels(channels: int, w: tuple[int, ...], group: int) -> None:
    refuse(group < 1, f"group {group}")
    refuse(channels == 0, "no input channels")
    refuse(channels % group != 0, f"group {group} does not divide {channels} input channels")
    refuse(w[0] % group != 0, f"group {group} does not divide {w[0]} output channels")
    refuse(w[1] != channels // group, f"W has {w[1]} channels for each group, X {channels // group}")
    refuse(0 in w[2:], "a kernel without elements")


def _correlate(x: Array, w: Array, group: int, attrs: Attrs) -> Array:
    rows, columns = (window(x.shape[2 + axis], w.shape[2 + axis], axis, attrs) for axis in (0, 1))
    padded = np.pad(x, ((0, 0), (0, 0), (rows.begin, rows.end), (columns.begin, columns.end)))
    inner, outer = x.shape[1] // group, w.shape[0] // group
    y = np.zeros((x.shape[0], w.shape[0], rows.out, columns.out))
    for part in range(group):
        source = padded[:, part * inner : (part + 1) * inner]
        kernel = w[part * outer : (part + 1) * outer]
        for u, down in rows.taps():
            for v, across in columns.taps():
                spot = np.moveaxis(source[:, :, down, across], 1, -1)
                met = product(spot[..., None, :], kernel[:, :, u, v].T)[..., 0, :]
                y[:, part * outer : (part + 1) * outer] += np.moveaxis(met, -1, 1)
    return y


def grouped_gemm(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Rows offs[g-1] to offs[g] of A times B[g]. Rows from the last offset on are not defined (NaN here; they are not
    compared: see undefined_rows)."""
    same_types(inputs, "A", "B")
    a, b, offs = exact(inputs, "A"), exact(inputs, "B"), exact(inputs, "offs")
    refuse(a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[1], f"A {shown(a.shape)}, B {shown(b.shape)}")
    refuse(offs.shape != b.shape[:1], f"{offs.size} offsets for {b.shape[0]} groups")
    ends = [0, *offs.tolist()]
    refuse(any(one > other for one, other in pairwise(ends)), "the offsets decrease")
    refuse(ends[-1] > a.shape[0], f"the last offset {ends[-1]} is behind the {a.shape[0]} rows")
    y = np.full((a.shape[0], b.shape[2]), np.nan)
    for group, (start, end) in enumerate(pairwise(ends)):
        y[start:end] = product(a[start:end], b[group])
    return {"Y": y}


def undefined_rows(inputs: Inputs) -> Array:
    """True where a row of Y belongs to no group."""
    offs = exact(inputs, "offs").tolist()
    return np.arange(need(inputs, "A").shape[0]) >= (offs[-1] if offs else 0)
