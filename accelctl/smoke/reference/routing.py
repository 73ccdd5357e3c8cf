"""topk_softmax and moe_align: which expert gets which token."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.numbers import Array
from accelctl.smoke.reference.common import Inputs, Outputs, exact, maybe, refuse, shown, whole
from accelctl.smoke.reference.norm import softmax


def scores(inputs: Inputs, attrs: Attrs) -> tuple[Array, Array]:
    """(what weighs, what chooses), both [tokens, experts]. A score that is NaN counts as 0, so that a row of NaN or
    inf still gives distinct experts and finite weights."""
    gating, bias = exact(inputs, "gating"), maybe(inputs, "bias")
    refuse(gating.ndim != 2, "gating is [tokens, experts]")
    if attrs["scoring"] == "sigmoid":
        with np.errstate(under="ignore", invalid="ignore"):
            small = np.exp(-np.abs(gating))
            found = np.where(gating < 0, small, 1.0) / (1.0 + small)
    else:
        found = softmax({"X": inputs["gating"]}, {"axis": -1})["Y"]
    found = np.nan_to_num(found, nan=0.0, posinf=np.inf, neginf=-np.inf)
    if bias is None:
        return found, found
    refuse(bias.shape != gating.shape[1:], f"bias is {shown(bias.shape)} for {gating.shape[1]} experts")
    return found, np.nan_to_num(found + bias, nan=0.0, posinf=np.inf, neginf=-np.inf)


def topk_softmax(inputs: Inputs, attrs: Attrs) -> Outputs:
    """The k experts with the highest score, best first, of equal ones the lower index; their weights are the scores
    without the bias, on request divided by their sum (where that is not 0)."""
    weighing, choosing = scores(inputs, attrs)
    k = whole(attrs, "k")
    refuse(not 0 <= k <= choosing.shape[1], f"{k} of {choosing.shape[1]} experts")
    ids = np.argsort(-choosing, axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(weighing, ids, axis=1)
    if attrs["renormalize"]:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return {"weights": weights, "ids": ids.astype(np.int64)}


def moe_align(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Slots (token * k + choice) sorted by expert, each expert's list filled up to whole blocks with T*k; the expert of
    each block (0 behind the last one); how many places are used. An expert map renames the experts afterwards."""
    chosen, mapped = exact(inputs, "topk_ids"), maybe(inputs, "expert_map")
    experts, block = whole(attrs, "num_experts"), whole(attrs, "block_size")
    refuse(chosen.ndim != 2, "topk_ids is [tokens, k]")
    refuse(experts < 1 or block < 1, f"{experts} experts, blocks of {block}")
    refuse(mapped is not None and mapped.shape != (experts,), f"the map does not name {experts} experts")
    slots = chosen.size
    length = slots + experts * (block - 1)
    if attrs["pad_sorted_ids"]:
        length = -(-length // block) * block
    order, owners = np.full(length, slots, np.int64), np.zeros(-(-length // block), np.int64)
    at = 0
    for expert in range(experts):
        mine = np.flatnonzero(chosen.reshape(-1) == expert)
        order[at : at + mine.size] = mine
        blocks = -(-mine.size // block)
        owners[at // block : at // block + blocks] = expert if mapped is None else mapped[expert]
        at += blocks * block
    return {"sorted_token_ids": order, "expert_ids": owners, "num_tokens_post_pad": np.array([at], np.int64)}
