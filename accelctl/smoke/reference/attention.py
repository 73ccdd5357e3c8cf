"""Attention in float64: prefill over whole sequences, and decode over a paged cache."""

from __future__ import annotations

import math

import numpy as np

from accelctl.abi.opset import Attrs
from accelctl.smoke.numbers import Array, name_of, wide
from accelctl.smoke.reference.common import Inputs, Outputs, exact, need, real, refuse, same_types, shown, whole


def attend(q: Array, k: Array, v: Array, bias: Array, attrs: Attrs) -> tuple[Array, Array]:
    """Output and log-sum-exp of queries [.., L, E] over keys [.., S, E] and values [.., S, F]. ``bias`` is added after
    the soft cap, -inf hides a key whatever its score and its value. A row that sees nothing gives 0, and -inf."""
    scale = real(attrs, "scale") or 1.0 / math.sqrt(q.shape[-1] or 1)
    cap = real(attrs, "softcap")
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = np.where(np.isneginf(bias), -np.inf, scores + bias)
    with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        seen = ~np.isneginf(top)
        powers = np.where(seen, np.exp(scores - np.where(seen, top, 0.0)), 0.0)
        total = powers.sum(axis=-1, keepdims=True)
        out = _sum(powers, v, ~np.isneginf(scores)) / np.where(seen, total, 1.0)
        return out, np.where(seen, top + np.log(total), -np.inf)[..., 0]


def _sum(powers: Array, v: Array, seen: Array) -> Array:
    """Powers times values, of the keys that are seen: 0 x NaN of another one must not count."""
    if np.isfinite(v).all():
        return np.asarray(np.matmul(powers, v))
    terms = powers[..., None] * v[..., None, :, :]
    return np.asarray(np.where(seen[..., None], terms, 0.0).sum(axis=-2))


def visible(rows: int, columns: int, causal: object, width: int) -> Array:
    """Which key each query sees. upper_left: key j up to query i; lower_right: up to i + columns - rows; a window of
    width w leaves the last w of those (without causal it is aligned to the lower right)."""
    shift = 0 if causal == "upper_left" else columns - rows
    query, key = np.arange(rows)[:, None] + shift, np.arange(columns)[None, :]
    seen = np.ones((rows, columns), bool)
    if causal != "none" or width > 0:
        seen &= key <= query
    return seen & (key > query - width) if width > 0 else seen


def repeat_heads(kv: Array, heads: int, axis: int) -> Array:
    """Key or value heads as the query heads use them: head h has h // (Hq/Hkv), each one repeated in place."""
    there = kv.shape[axis]
    refuse(there == 0 or heads % there != 0, f"{heads} query heads over {there} key heads")
    return np.repeat(kv, heads // there, axis=axis)


def attention_prefill(inputs: Inputs, attrs: Attrs) -> Outputs:
    """Q [H,L,E] or [N,H,L,E]; K, V with as many dimensions; mask uint8 (1 takes part) or floating (added)."""
    same_types(inputs, "Q", "K", "V")
    q, k, v = exact(inputs, "Q"), exact(inputs, "K"), exact(inputs, "V")
    refuse(q.ndim not in (3, 4) or k.ndim != q.ndim or v.ndim != q.ndim, "Q, K, V have 3 dimensions each, or 4")
    refuse(k.shape[-1] != q.shape[-1] or k.shape[:-1] != v.shape[:-1], f"K {shown(k.shape)}, V {shown(v.shape)}")
    refuse(q.ndim == 4 and k.shape[0] != q.shape[0], f"{q.shape[0]} sequences of Q, {k.shape[0]} of K")
    refuse(whole(attrs, "window") < 0, "a negative window")
    heads, rows, columns = q.shape[-3], q.shape[-2], k.shape[-2]
    k, v = repeat_heads(k, heads, -3), repeat_heads(v, heads, -3)
    seen = visible(rows, columns, attrs["causal"], whole(attrs, "window"))
    bias = np.where(seen, 0.0, -np.inf) + _mask(inputs, (*q.shape[:-1], columns))
    out, lse = attend(q, k, v, bias, attrs)
    return {"O": out, "lse": lse}


def _mask(inputs: Inputs, shape: tuple[int, ...]) -> Array:
    """What a mask adds to the scores."""
    mask = inputs.get("mask")
    if mask is None:
        return np.zeros(())
    refuse(mask.ndim > len(shape), f"mask {shown(mask.shape)} for scores {shown(shape)}")
    aligned = (1,) * (len(shape) - mask.ndim) + mask.shape
    fits = all(have in (1, want) for have, want in zip(aligned, shape, strict=True))
    refuse(not fits, f"mask {shown(mask.shape)} for scores {shown(shape)}")
    return np.where(mask != 0, 0.0, -np.inf) if name_of(mask) == "uint8" else wide(mask)


def attention_decode(inputs: Inputs, attrs: Attrs) -> Outputs:
    """One query for each sequence, the last of its seq_len tokens. Token t lies in slot t % block_size of block
    block_table[t // block_size]; slots behind seq_len and other blocks are not looked at."""
    same_types(inputs, "Q", "k_cache", "v_cache")
    q, keys, values = exact(inputs, "Q"), need(inputs, "k_cache"), need(inputs, "v_cache")
    table, lengths = exact(inputs, "block_table"), exact(inputs, "seq_lens")
    refuse(whole(attrs, "window") < 0, "a negative window")
    size = _check_cache(q, keys, values, table, lengths, whole(attrs, "block_size"))
    out = np.zeros((*q.shape[:2], values.shape[-1]))
    lse = np.full(q.shape[:2], -np.inf)
    for row, length in enumerate(lengths.tolist()):
        refuse(not 0 <= length <= table.shape[1] * size, f"{length} tokens in {table.shape[1]} blocks of {size}")
        seen = visible(1, length, "lower_right", whole(attrs, "window"))
        bias = np.where(seen, 0.0, -np.inf)
        k, v = (_gather(cache, table[row], length, size, q.shape[1]) for cache in (keys, values))
        found = attend(q[row][:, None, :], k, v, bias, attrs)
        out[row], lse[row] = found[0][:, 0], found[1][:, 0]
    return {"O": out, "lse": lse}


def _check_cache(q: Array, keys: Array, values: Array, table: Array, lengths: Array, size: int) -> int:
    refuse(q.ndim != 3 or keys.ndim != 4 or values.ndim != 4, "Q has 3 dimensions, a cache 4")
    refuse(size < 1 or keys.shape[1] != size, f"block_size {size}, blocks of the cache have {keys.shape[1]} slots")
    refuse(keys.shape[:3] != values.shape[:3], f"caches {shown(keys.shape)} and {shown(values.shape)}")
    refuse(keys.shape[3] != q.shape[2], f"keys have {keys.shape[3]} numbers, queries {q.shape[2]}")
    refuse(
        table.ndim != 2 or table.shape[0] != q.shape[0], f"block_table {shown(table.shape)} for {q.shape[0]} queries"
    )
    refuse(lengths.shape != q.shape[:1], f"{lengths.size} seq_lens for {q.shape[0]} queries")
    refuse(keys.shape[2] == 0 or q.shape[1] % keys.shape[2] != 0, f"{q.shape[1]} query heads, {keys.shape[2]} of keys")
    return size


def _gather(cache: Array, blocks: Array, length: int, size: int, heads: int) -> Array:
    """Tokens of one sequence as [heads, tokens, dim]; only what it holds is read and widened."""
    used = -(-length // size)
    tokens = wide(cache[blocks[:used]]).reshape(used * size, *cache.shape[2:])[:length]
    return repeat_heads(np.swapaxes(tokens, 0, 1), heads, 0)
