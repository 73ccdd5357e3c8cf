"""The small transformer of the decode loop: its sizes, its weights, and the whole of it in float64.

Nothing here is paged, batched or rounded on the way: a sequence is computed at once, from formulas of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from accelctl.smoke.numbers import NUMPY, Array

EPSILON, BASE = 1e-6, 10000.0


class Sizes(NamedTuple):
    """Of a model; ``block`` is how many tokens a block of the cache holds."""

    vocabulary: int = 96
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    inner: int = 128
    block: int = 4

    @property
    def projected(self) -> int:
        """Columns of the fused projection: queries, keys, values."""
        return (self.heads + 2 * self.kv_heads) * self.dim


class Layer(NamedTuple):
    """Weights of one layer, each as it is multiplied from the right."""

    norm_in: Array
    qkv: Array
    out: Array
    norm_mid: Array
    gate_up: Array
    down: Array


class Model(NamedTuple):
    """All weights, in one element type."""

    sizes: Sizes
    dtype: str
    embedding: Array
    layers: tuple[Layer, ...]
    norm: Array
    head: Array


def build(dtype: str, seed: int = 0, sizes: Sizes | None = None) -> Model:
    """Random weights that keep activations near 1. The same seed gives the same numbers before rounding."""
    size = sizes or Sizes()
    rng = np.random.default_rng([seed, 0x7F])

    def matrix(rows: int, columns: int) -> Array:
        return rng.normal(0, rows**-0.5, (rows, columns)).astype(NUMPY[dtype])

    def scale() -> Array:
        return rng.normal(1, 0.1, size.hidden).astype(NUMPY[dtype])

    embedding = rng.normal(0, 1, (size.vocabulary, size.hidden)).astype(NUMPY[dtype])
    layers = tuple(
        Layer(
            scale(),
            matrix(size.hidden, size.projected),
            matrix(size.heads * size.dim, size.hidden),
            scale(),
            matrix(size.hidden, 2 * size.inner),
            matrix(size.inner, size.hidden),
        )
        for _ in range(size.layers)
    )
    return Model(size, dtype, embedding, layers, scale(), matrix(size.hidden, size.vocabulary))


def logits(model: Model, tokens: Sequence[int]) -> Array:
    """float64 logits [tokens, vocabulary] of one sequence."""
    x = model.embedding.astype(np.float64)[list(tokens)]
    for layer in model.layers:
        weights = Layer(*(one.astype(np.float64) for one in layer))
        x = x + _attention(model.sizes, _normed(x, weights.norm_in) @ weights.qkv) @ weights.out
        both = _normed(x, weights.norm_mid) @ weights.gate_up
        gate, up = both[:, : model.sizes.inner], both[:, model.sizes.inner :]
        x = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights.down
    return np.asarray(_normed(x, model.norm.astype(np.float64)) @ model.head.astype(np.float64))


def _normed(x: Array, scale: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * scale)


def _turned(x: Array, dim: int) -> Array:
    """Halves of each head turned by the position: as complex numbers."""
    half = dim // 2
    angle = np.arange(len(x))[:, None] * BASE ** (-np.arange(half) * 2.0 / dim)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None, :]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def _attention(size: Sizes, projected: Array) -> Array:
    """Token by token, each over itself and those before it."""
    count = len(projected)
    heads = projected.reshape(count, -1, size.dim)
    q = _turned(heads[:, : size.heads], size.dim)
    k = _turned(heads[:, size.heads : size.heads + size.kv_heads], size.dim)
    v = heads[:, size.heads + size.kv_heads :]
    out = np.zeros((count, size.heads, size.dim))
    share = size.heads // size.kv_heads
    for token in range(count):
        for head in range(size.heads):
            scores = k[: token + 1, head // share] @ q[token, head] / size.dim**0.5
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ v[: token + 1, head // share] / weights.sum()
    return out.reshape(count, -1)
