"""matmul, conv2d and grouped_gemm."""

from __future__ import annotations

from accelctl.abi.tensors import INT8, INT32, UINT8, DType, show
from accelctl.umd.translators.common import (
    Ask,
    Output,
    attr,
    common_shape,
    exactly,
    like_first,
    or_fp32,
    rank,
    shape_of,
)


def matmul(ask: Ask) -> tuple[Output, ...]:
    """A [.., M, K] x B [.., K, N]; a vector on the left has no M, one on the right no N."""
    a, b = ask.must(0), ask.must(1)
    for index, one in enumerate((a, b)):
        if not one.shape:
            raise shape_of(index, "a scalar is no operand of a matrix product")
    like_first(ask, 1)
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise shape_of(1, f"{show(a.shape)} and {show(b.shape)} do not fit: K is {a.shape[-1]} in A and {inner} in B")
    batch = common_shape(1, a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return (Output(batch + rows + columns, _product(a.dtype)),)


def _product(dtype: DType) -> tuple[DType, ...]:
    return (INT32,) if dtype in (INT8, UINT8, INT32) else or_fp32(dtype)


def conv2d(ask: Ask) -> tuple[Output, ...]:
    """X NCHW (or NHWC; N may be missing), W OIHW."""
    x, w = rank(ask, 0, 3, 4), rank(ask, 1, 4)
    like_first(ask, 1, 2)
    last = ask.attrs["layout"] == "nhwc"
    channels, size = (x.shape[-1], x.shape[-3:-1]) if last else (x.shape[-3], x.shape[-2:])
    outputs, inner, *kernel = w.shape
    group = ask.number("group")
    if not 1 <= group < 1 << 31:
        raise attr("group", f"{group}: at least 1")
    if not channels:
        raise shape_of(0, f"{show(x.shape)}: no channels")
    if channels != inner * group:
        raise shape_of(1, f"{show(w.shape)} with group {group} needs {inner * group} channels, X has {channels}")
    if outputs % group:
        raise shape_of(1, f"{show(w.shape)}: {outputs} output channels do not divide into {group} groups")
    exactly(ask, 2, (outputs,), "one for each output channel")
    out = _window(ask, size, (kernel[0], kernel[1]))
    shape = (*x.shape[:-3], *out, outputs) if last else (*x.shape[:-3], outputs, *out)
    return (Output(shape, (x.dtype,)),)


def _window(ask: Ask, size: tuple[int, ...], kernel: tuple[int, int]) -> tuple[int, int]:
    """Height and width of what comes out. Refusal for padding that makes no sense, and a kernel that does not fit."""
    strides, dilations = ask.numbers("strides", 2, 1), ask.numbers("dilations", 2, 1)
    pads, auto = ask.numbers("pads", 4, 0), ask.attrs["auto_pad"]
    if auto != "notset" and any(pads):
        raise attr("pads", f"{show(pads)} together with auto_pad {auto}: say one of them")
    if not all(kernel):
        raise shape_of(1, f"{show(ask.must(1).shape)}: the kernel is empty")
    found = []
    for axis in range(2):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        if auto in ("same_upper", "same_lower"):
            found.append(-(-size[axis] // strides[axis]))
            continue
        padded = size[axis] + pads[axis] + pads[axis + 2]
        if padded < reach:
            where = ("height", "width")[axis]
            raise shape_of(1, f"the kernel reaches over {reach}, the padded {where} is {padded}")
        found.append((padded - reach) // strides[axis] + 1)
    return found[0], found[1]


def grouped_gemm(ask: Ask) -> tuple[Output, ...]:
    """A [T, K], B [G, K, N], offs [G] (exclusive ends)."""
    a, b, offs = rank(ask, 0, 2), rank(ask, 1, 3), rank(ask, 2, 1)
    like_first(ask, 1)
    if a.shape[1] != b.shape[1]:
        raise shape_of(1, f"{show(a.shape)} and {show(b.shape)}: K is {a.shape[1]} in A and {b.shape[1]} in B")
    exactly(ask, 2, b.shape[:1], "one end for each group of B")
    if a.shape[0] >> 31:
        raise shape_of(0, f"{show(a.shape)}: the 32-bit offsets cannot count {a.shape[0]} rows")
    assert offs.dtype is INT32
    return (Output((a.shape[0], b.shape[2]), (a.dtype,)),)


CHECKS = {"matmul": matmul, "conv2d": conv2d, "grouped_gemm": grouped_gemm}
