"""layernorm, rmsnorm and softmax."""

from __future__ import annotations

from accelctl.abi.tensors import show
from accelctl.umd.refusal import Refusal
from accelctl.umd.translators.common import Ask, Output, attr, axis_of, exactly, like_first, or_fp32, shape_of


def layernorm(ask: Ask) -> tuple[Output, ...]:
    """Over the dimensions from ``axis`` on. scale and B may have another floating type than X."""
    x = ask.must(0)
    if not x.shape:
        raise shape_of(0, "a scalar has no dimension to normalise over")
    inner = x.shape[axis_of(ask, len(x.shape)) :]
    for index in (1, 2):
        exactly(ask, index, inner, f"the normalised dimensions of X {show(x.shape)}")
    return (Output(x.shape, (x.dtype,)),)


def rmsnorm(ask: Ask) -> tuple[Output, ...]:
    """Over the last dimension; with fused_add of X + residual, which is an output too."""
    x = ask.must(0)
    if not x.shape:
        raise shape_of(0, "a scalar has no dimension to normalise over")
    exactly(ask, 1, x.shape[-1:], f"the last dimension of X {show(x.shape)}")
    fused = ask.attrs["variant"] == "fused_add"
    if fused and ask.inputs[2] is None:
        raise Refusal("inputs[2]", "variant fused_add needs a residual")
    if ask.inputs[2] is not None and not fused:
        raise attr("variant", f"{ask.attrs['variant']}: only fused_add has a residual")
    if not fused and ask.outputs[1] is not None:
        raise Refusal("outputs[1]", "only variant fused_add has a residual_out")
    exactly(ask, 2, x.shape, "as X")
    like_first(ask, 2)
    return (Output(x.shape, (x.dtype,)), Output(x.shape, (x.dtype,), needed=fused))


def softmax(ask: Ask) -> tuple[Output, ...]:
    """Along one axis."""
    x = ask.must(0)
    axis_of(ask, len(x.shape))
    return (Output(x.shape, or_fp32(x.dtype)),)


CHECKS = {"layernorm": layernorm, "rmsnorm": rmsnorm, "softmax": softmax}
