"""rope."""

from __future__ import annotations

from accelctl.abi.tensors import show
from accelctl.umd.translators.common import Ask, Output, attr, exactly, rank, shape_of


def rope(ask: Ask) -> tuple[Output, ...]:
    """X [tokens, heads, dim] or [batch, tokens, heads, dim], positions [tokens] or [batch, tokens]."""
    x = rank(ask, 0, 3, 4)
    ask.must(1)
    exactly(ask, 1, x.shape[:-2], f"one position for each token of X {show(x.shape)}")
    dim, rotary = x.shape[-1], ask.number("rotary_dim")
    if not 0 <= rotary <= dim:
        raise attr("rotary_dim", f"{rotary}: X has a head dimension of {dim}")
    if rotary % 2:
        raise attr("rotary_dim", f"{rotary}: pairs are rotated, so it must be even")
    if not rotary and dim % 2:
        raise shape_of(0, f"{show(x.shape)}: pairs are rotated, so the head dimension must be even")
    if ask.real("base") <= 0:
        raise attr("base", f"{ask.real('base')!r}: it must be above 0")
    return (Output(x.shape, (x.dtype,)),)


CHECKS = {"rope": rope}
