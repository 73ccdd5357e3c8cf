"""Attention: over whole sequences, and of one new token over a paged cache. Scores, softmax and sums in fp32."""

from __future__ import annotations

import math

import numpy as np

from accelctl.abi.opset import Attrs, real, whole
from accelctl.backends.sim.ops.numeric import Array, f32, store
from accelctl.backends.sim.ops.shapes import MOST_ELEMENTS, MOST_WORK
from accelctl.backends.sim.tables import JobFault

_SCORES = 1 << 22
"""Scores that are held at one time: more queries are done one part after the other."""


def _attend(q: Array, k: Array, v: Array, bias: Array | None, attrs: Attrs) -> tuple[Array, Array]:
    """Output and log-sum-exp of queries [.., L, E] over keys [.., S, E], values [.., S, F], all fp32; ``bias`` is
    added after the soft cap, -inf there hides a key. A query that sees nothing gives 0, and -inf."""
    scale, cap = real(attrs["scale"]) or 1 / math.sqrt(q.shape[-1]), real(attrs["softcap"])
    cap = np.float32(cap and max(cap, np.finfo(np.float32).tiny))  # 0 is none at all
    scores = np.matmul(q * np.float32(scale), np.swapaxes(k, -1, -2))
    if cap:
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores = np.where(np.isneginf(bias), bias, scores + bias)  # hidden, even if the score is NaN
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    blind = np.isneginf(top)
    powers = np.exp(scores - np.where(blind, np.float32(0), top))
    total = np.sum(powers, axis=-1, dtype=np.float64, keepdims=True)
    out = _weighed(powers, v, np.asarray(~np.isneginf(scores))) / np.where(blind, 1.0, total)
    lse = np.where(blind, -np.inf, top + np.log(total))
    return out.astype(np.float32), lse[..., 0].astype(np.float32)


def _weighed(powers: Array, v: Array, seen: Array) -> Array:
    """powers x v, of the keys that are seen: what a hidden one holds, NaN too, takes no part (0 x NaN would)."""
    finite = np.isfinite(v)
    if finite.all():
        return np.asarray(np.matmul(powers, v))
    out = np.matmul(powers, np.where(finite, v, np.float32(0)))
    weighs = powers > 0
    for infinite in (np.inf, -np.inf):
        out = np.where(_meet(weighs, v == infinite), out + infinite, out)
    found: Array = np.where(_meet(seen, np.isnan(v)) | _meet(seen & ~weighs, np.isinf(v)), np.float32(np.nan), out)
    return found


def _meet(keys: Array, values: Array) -> Array:
    """Where a query has at least one of these keys whose value is one of these."""
    return np.asarray(np.matmul(keys.astype(np.float32), values.astype(np.float32)) > 0)


def _hidden(queries: Array, keys: int, shift: int, attrs: Attrs) -> Array | None:
    """-inf for keys that these queries do not see by ``causal`` and ``window``, 0 for the others; None: all are seen.
    ``shift``: the key at which query 0 stands. A window is always of keys that are not later than the query's own."""
    window = whole(attrs["window"])
    if attrs["causal"] == "none" and not window:
        return None
    at, key = queries[:, None] + shift, np.arange(keys)[None, :]
    seen = (key <= at) & ((key > at - window) | (window == 0))
    found: Array = np.where(seen, np.float32(0), np.float32(-np.inf))
    return found


def _together(mask: Array | None, hidden: Array | None) -> Array | None:
    if mask is None or hidden is None:
        return hidden if mask is None else mask
    return np.where(np.isneginf(hidden), hidden, mask)


def prefill(attrs: Attrs, out: Array, lse: Array | None, q: Array, k: Array, v: Array, mask: Array | None) -> None:
    """One sequence and one head of keys after the other, with the query heads that share it."""
    if q.ndim == 3:
        q, k, v, out, lse = q[None], k[None], v[None], out[None], None if lse is None else lse[None]
    batch, heads, queries, _ = q.shape
    keys, share = k.shape[2], heads // k.shape[1]
    if mask is not None:
        mask = np.where(mask != 0, np.float32(0), np.float32(-np.inf)) if mask.dtype == np.uint8 else f32(mask)
        mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    shift = 0 if attrs["causal"] == "upper_left" else keys - queries
    found, logs = np.empty(out.shape, np.float32), np.empty(out.shape[:-1], np.float32)
    step = max(1, _SCORES // max(1, share * keys))
    for n in range(batch):
        for head in range(k.shape[1]):
            mine = slice(head * share, (head + 1) * share)
            key, value = f32(k[n, head]), f32(v[n, head])
            for start in range(0, queries, step):
                rows = slice(start, min(queries, start + step))
                hidden = _hidden(np.arange(rows.start, rows.stop), keys, shift, attrs)
                bias = _together(None if mask is None else mask[n, mine, rows], hidden)
                found[n, mine, rows], logs[n, mine, rows] = _attend(f32(q[n, mine, rows]), key, value, bias, attrs)
    store(out, found)
    if lse is not None:
        store(lse, logs)


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
    """Each sequence's last token over all of it, or over the window's. Only those slots are read. JobFault for a length
    or a block that the cache does not have."""
    blocks, size, kv_heads = k_cache.shape[:3]
    share = q.shape[1] // kv_heads
    found, logs = np.empty(out.shape, np.float32), np.empty(out.shape[:-1], np.float32)
    tokens, width = lens.tolist(), q.shape[2] + v_cache.shape[3]
    if sum(tokens) * q.shape[1] * width > MOST_WORK or max(tokens, default=0) * kv_heads * width > MOST_ELEMENTS:
        raise JobFault(f"seq_lens: {sum(tokens)} tokens are more than one instruction may ask for")
    for n, length in enumerate(tokens):
        if not 0 <= length <= table.shape[1] * size:
            raise JobFault(f"seq_lens[{n}] is {length}, {table.shape[1]} blocks of {size} hold fewer")
        first = max(0, length - whole(attrs["window"])) if whole(attrs["window"]) else 0
        used = table[n, first // size : -(-length // size)]
        if used.size and not 0 <= used.min() <= used.max() < blocks:
            raise JobFault(f"block_table[{n}] names blocks {used.min()} to {used.max()}, the cache has {blocks}")
        seen = slice(first % size, first % size + length - first)
        key, value = (np.moveaxis(_tokens(cache, used, seen), 0, 1) for cache in (k_cache, v_cache))
        query = f32(q[n]).reshape(kv_heads, share, q.shape[2])
        some, log = _attend(query, key, value, None, attrs)
        found[n], logs[n] = some.reshape(found[n].shape), log.reshape(-1)
    store(out, found)
    if lse is not None:
        store(lse, logs)


def _tokens(cache: Array, used: Array, seen: slice) -> Array:
    """[tokens, heads, dim] of some tokens in some blocks, as fp32."""
    return f32(cache[used]).reshape(-1, *cache.shape[2:])[seen]
