"""topk_softmax and moe_align: which expert gets which token."""

from __future__ import annotations

import numpy as np

from accelctl.abi.opset import Attrs, whole
from accelctl.backends.sim.ops.numeric import Array, f32, store


def topk_softmax(attrs: Attrs, weights: Array, ids: Array, gating: Array, bias: Array | None) -> None:
    """The k best experts, best first, of equal ones the lower. A score that is NaN counts as 0, so that even a row of
    NaN gives different experts and finite weights. ``bias`` helps to choose and does not weigh."""
    scores = f32(gating)
    if not scores.size or not whole(attrs["k"]):
        return
    if attrs["scoring"] == "sigmoid":
        scores = 1 / (1 + np.exp(-scores))
    else:
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = (powers / powers.sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    scores = np.where(np.isnan(scores), np.float32(0), scores)
    wanted = scores if bias is None else scores + f32(bias)
    wanted = np.where(np.isnan(wanted), np.float32(0), wanted)
    best = np.argsort(-wanted, axis=1, kind="stable")[:, : whole(attrs["k"])]
    found = np.take_along_axis(scores, best, axis=1)
    if attrs["renormalize"]:
        total = found.sum(axis=1, dtype=np.float64, keepdims=True)
        found = (found / np.where(total > 0, total, 1)).astype(np.float32)
    store(weights, found)
    ids[...] = best


def moe_align(attrs: Attrs, order: Array, owners: Array, count: Array, chosen: Array, mapped: Array | None) -> None:
    """Slots by expert, each expert's filled up to whole blocks with T*k; the expert of each block, renamed by the map;
    how many places are used. Blocks behind the last one say 0. Slots of an expert that there is not are left out."""
    experts, block = whole(attrs["num_experts"]), whole(attrs["block_size"])
    flat = chosen.reshape(-1).astype(np.int64)
    right = (flat >= 0) & (flat < experts)
    counts = np.bincount(flat[right], minlength=experts)
    padded = -(-counts // block) * block
    starts = np.cumsum(padded) - padded
    slots = np.argsort(np.where(right, flat, experts), kind="stable")[: counts.sum()]
    within = np.arange(slots.size) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.full(order.shape, flat.size, np.int64)
    places[np.repeat(starts, counts) + within] = slots
    names = np.repeat(np.arange(experts), padded // block)
    blocks = np.zeros(owners.shape, np.int64)
    blocks[: names.size] = names if mapped is None else mapped[names]
    order[...], owners[...], count[...] = places, blocks, padded.sum()
