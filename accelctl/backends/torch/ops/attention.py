"""Attention: over whole sequences, and of one new token over a paged cache. Scores, softmax and sums in fp32."""

from __future__ import annotations

import math

import torch

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.torch.ops.kernels import MOST_ELEMENTS
from accelctl.backends.torch.ops.line import Fault
from accelctl.backends.torch.ops.numeric import Array, f32, store

_SCORES = 1 << 24
"""Scores that are held at one time: more queries are done one part after the other."""


def _attend(q: Array, k: Array, v: Array, bias: Array | None, attrs: Attrs) -> tuple[Array, Array]:
    """Output and log-sum-exp of queries [.., L, E] over keys [.., S, E], values [.., S, F], all fp32; ``bias`` is
    added after the soft cap, -inf there hides a key. A query that sees nothing gives 0, and -inf."""
    scale, cap = real(attrs["scale"]) or 1 / math.sqrt(q.shape[-1]), real(attrs["softcap"])
    if not k.shape[-2]:
        return q.new_zeros((*q.shape[:-1], v.shape[-1])), q.new_full(q.shape[:-1], -torch.inf)
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = torch.where(torch.isneginf(bias), bias, scores + bias)  # hidden, even if the score is NaN
    top = scores.amax(-1, keepdim=True)
    blind = torch.isneginf(top)
    powers = torch.exp(scores - top.masked_fill(blind, 0))
    total = powers.sum(-1, keepdim=True)
    out = _weighed(powers, v, ~torch.isneginf(scores)) / total.masked_fill(blind, 1)
    lse = (top + torch.log(total)).masked_fill(blind, -torch.inf)
    return out, lse[..., 0]


def _weighed(powers: Array, v: Array, seen: Array) -> Array:
    """powers x v, of the keys that are seen: what a hidden one holds, NaN too, takes no part (0 x NaN would)."""
    finite = torch.isfinite(v)
    if bool(finite.all()):
        return torch.matmul(powers, v)
    out = torch.matmul(powers, v.masked_fill(~finite, 0))
    weighs = powers > 0
    for infinite in (torch.inf, -torch.inf):
        out = torch.where(_meet(weighs, v == infinite), out + infinite, out)
    return out.masked_fill(_meet(seen, torch.isnan(v)) | _meet(seen & ~weighs, torch.isinf(v)), torch.nan)


def _meet(keys: Array, values: Array) -> Array:
    """Where a query has at least one of these keys whose value is one of these."""
    return torch.matmul(keys.float(), values.float()) > 0


def _hidden(queries: Array, keys: int, shift: int, attrs: Attrs) -> Array | None:
    """-inf for keys that these queries do not see by ``causal`` and ``window``, 0 for the others; None: all are seen.
    ``shift``: the key at which query 0 stands. A window is always of keys that are not later than the query's own."""
    window = whole(attrs["window"])
    if attrs["causal"] == "none" and not window:
        return None
    at, key = queries[:, None] + shift, torch.arange(keys, device=queries.device)
    seen = key <= at
    if window:
        seen &= key > at - window
    return torch.zeros(seen.shape, device=queries.device).masked_fill(~seen, -torch.inf)


def _together(mask: Array | None, hidden: Array | None) -> Array | None:
    if mask is None or hidden is None:
        return hidden if mask is None else mask
    return torch.where(torch.isneginf(hidden), hidden, mask)


def _added(mask: Array) -> Array:
    """A mask of uint8 says which keys take part; one of floats is added as it is."""
    if mask.dtype.is_floating_point:
        return f32(mask)
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask == 0, -torch.inf)


def prefill(attrs: Attrs, out: Array, lse: Array | None, q: Array, k: Array, v: Array, mask: Array | None) -> None:
    """Query heads that share a head of keys stand beside each other in an axis of their own."""
    if q.ndim == 3:
        q, k, v, out, lse = q[None], k[None], v[None], out[None], None if lse is None else lse[None]
    batch, heads, queries, _ = q.shape
    keys, share = k.shape[2], heads // k.shape[1]
    groups = (batch, k.shape[1], share)
    if mask is not None:
        mask = _added(mask).expand(batch, heads, queries, keys).reshape(*groups, queries, keys)
    shift = 0 if attrs["causal"] == "upper_left" else keys - queries
    query, key, value = f32(q).reshape(*groups, *q.shape[2:]), f32(k)[:, :, None], f32(v)[:, :, None]
    found = q.new_empty((*groups, queries, v.shape[-1]), dtype=torch.float32)
    logs = q.new_empty((*groups, queries), dtype=torch.float32)
    step = max(1, _SCORES // max(1, batch * heads * keys))
    for start in range(0, queries, step):
        rows = slice(start, min(queries, start + step))
        hidden = _hidden(torch.arange(rows.start, rows.stop, device=q.device), keys, shift, attrs)
        bias = _together(None if mask is None else mask[..., rows, :], hidden)
        found[..., rows, :], logs[..., rows] = _attend(query[..., rows, :], key, value, bias, attrs)
    store(out, found.reshape(out.shape))
    if lse is not None:
        store(lse, logs.reshape(lse.shape))


def decode(
    attrs: Attrs,
    out: Array,
    lse: Array | None,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    table: Array,
    lens: Array,
) -> None:
    """Each sequence's last token over all of it, or over the window's. Only those slots are read. Fault for a length or
    a block that the cache does not have."""
    blocks, size, kv_heads = k_cache.shape[:3]
    found = q.new_empty(out.shape, dtype=torch.float32)
    logs = q.new_empty(out.shape[:-1], dtype=torch.float32)
    for n, length in enumerate(lens.tolist()):
        if not 0 <= length <= table.shape[1] * size:
            raise Fault(f"seq_lens[{n}] is {length}, {table.shape[1]} blocks of {size} hold fewer")
        if length * max(q.shape[1], kv_heads * max(q.shape[2], v_cache.shape[3])) > MOST_ELEMENTS:
            raise Fault(f"seq_lens[{n}] is {length}, more than one instruction may ask for")
        first = max(0, length - whole(attrs["window"])) if whole(attrs["window"]) else 0
        used = table[n, first // size : -(-length // size)]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < blocks:
            raise Fault(f"block_table[{n}] names blocks {int(used.min())} to {int(used.max())}, the cache has {blocks}")
        seen = slice(first % size, first % size + length - first)
        key, value = (_tokens(cache, used, seen).movedim(0, 1) for cache in (k_cache, v_cache))
        query = f32(q[n]).reshape(kv_heads, -1, q.shape[2])
        some, log = _attend(query, key, value, None, attrs)
        found[n], logs[n] = some.reshape(found[n].shape), log.reshape(-1)
    store(out, found)
    if lse is not None:
        store(lse, logs)


def _tokens(cache: Array, used: Array, seen: slice) -> Array:
    """[tokens, heads, dim] of some tokens in some blocks, as fp32."""
    return f32(cache[used.long()]).reshape(-1, *cache.shape[2:])[seen]
