"""relu, add, silu_and_mul and copy."""

from __future__ import annotations

from accelctl.abi.tensors import FP32, DType, Shape, broadcast, show
from accelctl.errors import UsageError
from accelctl.umd.refusal import Refusal
from accelctl.umd.translators.common import Ask, Output, attr, common_shape, shape_of


def relu(ask: Ask) -> tuple[Output, ...]:
    """max(X, 0)."""
    x = ask.must(0)
    return (Output(x.shape, (x.dtype,)),)


def add(ask: Ask) -> tuple[Output, ...]:
    """A + alpha * B, broadcast."""
    a, b = ask.must(0), ask.must(1)
    result = promoted(a.dtype, b.dtype)
    if not result.floating:
        _whole(ask.real("alpha"))
    return (Output(common_shape(1, a.shape, b.shape), (result,)),)


def _whole(alpha: float) -> None:
    if not alpha.is_integer() or not -(2.0**31) <= alpha < 2.0**31:
        raise attr("alpha", f"{alpha!r}: with whole numbers it must be one too, of 32 bits")


def promoted(first: DType, second: DType) -> DType:
    """The type of a sum. Refusal for two kinds of whole numbers, of which none holds the other's."""
    if first is second:
        return first
    if first.floating and second.floating:
        return FP32
    if first.floating or second.floating:
        return first if first.floating else second
    text = f"{second.name}: A is {first.name}, and two kinds of whole numbers have no common type here"
    raise Refusal("inputs[1].data_type", text)


def silu_and_mul(ask: Ask) -> tuple[Output, ...]:
    """X [.., 2d] is gate and up, side by side."""
    x = ask.must(0)
    if not x.shape or x.shape[-1] % 2:
        raise shape_of(0, f"{show(x.shape)}: the last dimension is gate and up, so it must be even")
    return (Output((*x.shape[:-1], x.shape[-1] // 2), (x.dtype,)),)


def copy(ask: Ask) -> tuple[Output, ...]:
    """X, repeated where Y is wider, in Y's type."""
    x, y = ask.must(0), ask.outputs[0]
    shape = x.shape if y is None or y.shape is None else y.shape
    if shape != x.shape and not _repeats(x.shape, shape):
        raise Refusal("outputs[0].shape", f"{show(shape)}: X {show(x.shape)} cannot be repeated to that")
    return (Output(shape, (x.dtype if y is None or y.dtype is None else y.dtype,)),)


def _repeats(shape: Shape, wide: Shape) -> bool:
    try:
        return broadcast(shape, wide) == wide
    except UsageError:
        return False


CHECKS = {"relu": relu, "add": add, "silu_and_mul": silu_and_mul, "copy": copy}
