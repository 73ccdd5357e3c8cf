"""topk_softmax and moe_align: which expert gets which token."""

from __future__ import annotations

import torch

from accelctl.abi.opset import Attrs, whole
from accelctl.backends.torch.ops.numeric import Array, f32, store


def topk_softmax(attrs: Attrs, weights: Array, ids: Array, gating: Array, bias: Array | None) -> None:
    """The k best experts, best first, of equal ones the lower. A score that is NaN counts as 0, so that even a row of
    NaN gives different experts and finite weights. ``bias`` helps to choose and does not weigh."""
    if not gating.numel() or not whole(attrs["k"]):
        return
    scores = torch.sigmoid(f32(gating)) if attrs["scoring"] == "sigmoid" else torch.softmax(f32(gating), 1)
    scores = _numbers(scores)
    wanted = scores if bias is None else _numbers(scores + f32(bias))
    best = torch.sort(wanted, dim=1, descending=True, stable=True).indices[:, : whole(attrs["k"])]
    found = scores.gather(1, best)
    if attrs["renormalize"]:
        total = found.sum(1, keepdim=True)
        found = found / torch.where(total > 0, total, torch.ones_like(total))
    store(weights, found)
    store(ids, best)


def _numbers(x: Array) -> Array:
    return x.masked_fill(torch.isnan(x), 0)


def moe_align(attrs: Attrs, order: Array, owners: Array, count: Array, chosen: Array, mapped: Array | None) -> None:
    """Slots by expert, each expert's filled up to whole blocks with T*k; the expert of each block, renamed by the map;
    how many places are used. Blocks behind the last one say 0. Slots of an expert that there is not are left out."""
    experts, block = whole(attrs["num_experts"]), whole(attrs["block_size"])
    flat = chosen.reshape(-1).long()
    flat = flat.masked_fill((flat < 0) | (flat >= experts), experts)
    counts = torch.bincount(flat, minlength=experts + 1)[:experts]
    padded = (counts + block - 1) // block * block
    slots = torch.sort(flat, stable=True).indices[: int(counts.sum())]
    shift = (torch.cumsum(padded, 0) - padded) - (torch.cumsum(counts, 0) - counts)
    places = torch.full_like(order, flat.numel(), dtype=torch.long)
    places[torch.arange(slots.numel(), device=flat.device) + shift[flat[slots]]] = slots
    names = torch.repeat_interleave(torch.arange(experts, device=flat.device), padded // block)
    blocks = torch.zeros_like(owners, dtype=torch.long)
    blocks[: names.numel()] = names if mapped is None else mapped.long()[names]
    store(order, places)
    store(owners, blocks)
    store(count, padded.sum().reshape(1))
