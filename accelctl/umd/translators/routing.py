"""topk_softmax and moe_align: which token goes to which expert."""

from __future__ import annotations

from accelctl.abi.tensors import FP32, INT32, show
from accelctl.umd.translators.common import Ask, Output, attr, exactly, rank, shape_of

_MOST = 1 << 31


def topk_softmax(ask: Ask) -> tuple[Output, ...]:
    """gating [T, E], bias [E]. weights are fp32; bias may have another floating type."""
    gating, k = rank(ask, 0, 2), ask.number("k")
    tokens, experts = gating.shape
    exactly(ask, 1, (experts,), "one for each expert")
    if not 0 <= k <= experts:
        raise attr("k", f"{k}: gating {show(gating.shape)} has {experts} experts")
    return (Output((tokens, k), (FP32,)), Output((tokens, k), (INT32,)))


def moe_align(ask: Ask) -> tuple[Output, ...]:
    """topk_ids [T, k]; expert_map [num_experts]."""
    ids = rank(ask, 0, 2)
    experts, block = ask.number("num_experts"), ask.number("block_size")
    for name, value in (("num_experts", experts), ("block_size", block)):
        if not 1 <= value < _MOST:
            raise attr(name, f"{value}: 1 or more, and below 2^31")
    exactly(ask, 1, (experts,), "one for each expert")
    slots = ids.elements + experts * (block - 1)
    if ask.attrs["pad_sorted_ids"]:
        slots = -(-slots // block) * block
    if slots >= _MOST:
        text = f"{show(ids.shape)} with {experts} experts and blocks of {block}: 32-bit ids cannot count {slots} slots"
        raise shape_of(0, text)
    return (
        Output((slots,), (INT32,)),
        Output((-(-slots // block),), (INT32,)),
        Output((1,), (INT32,)),
    )


CHECKS = {"topk_softmax": topk_softmax, "moe_align": moe_align}
