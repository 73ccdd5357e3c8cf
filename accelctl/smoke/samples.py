"""Known samples: fixed chains of ops, one for each family, and one layer of a transformer.

Each step names the values that it takes and those that it makes. All of them are dense and in fp32, which every chip
has kernels for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from accelctl.smoke.cases.record import Case, Made, Trial, Wish
from accelctl.smoke.numbers import Array, name_of

EPSILON = "1e-05"
_TOKENS, _HIDDEN, _HEADS, _DIM, _INNER, _EXPERTS = 12, 64, 4, 16, 96, 8


class Step(NamedTuple):
    """One op. ``inputs``: operand -> value; ``outputs``: result -> value that it becomes; results that are not named
    are compared and forgotten. ``shapes``: value -> shape in which it is taken, where that is not its own."""

    op: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str] = {}
    attrs: Mapping[str, str] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    columns: Mapping[str, tuple[int, int]] = {}
    """Value -> the columns of it that are taken."""

    def operand(self, name: str, values: Mapping[str, Array]) -> Array:
        """A value as this step takes it."""
        array = values[name]
        if name in self.columns:
            array = array[..., slice(*self.columns[name])]
        return np.ascontiguousarray(array.reshape(self.shapes.get(name, array.shape)))

    def trial(self, identity: str, values: Mapping[str, Array], seed: int) -> Trial:
        """With operands, right results and rules."""
        inputs = {operand: self.operand(name, values) for operand, name in self.inputs.items()}
        wishes = {name: Wish() for name in self.outputs}
        if self.op == "copy":
            wishes = {"Y": Wish(shape=inputs["X"].shape)}
        dtype = name_of(next(iter(inputs.values())))
        return Case(identity, self.op, dtype, lambda maker: Made(inputs, self.attrs, wishes)).load(seed)


class Sample(NamedTuple):
    """A chain. ``start`` makes what its first steps take."""

    name: str
    start: Callable[[np.random.Generator], Mapping[str, Array]]
    steps: tuple[Step, ...]


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return rng.normal(0, scale, shape).astype(np.float32)


def _elementwise(rng: np.random.Generator) -> dict[str, Array]:
    return {"x": _normal(rng, 7, 130), "y": _normal(rng, 130)}


def _norm(rng: np.random.Generator) -> dict[str, Array]:
    return {"x": _normal(rng, 9, 257, scale=3.0), "scale": _normal(rng, 257), "bias": _normal(rng, 257)}


def _contraction(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "a": _normal(rng, 33, 65),
        "b": _normal(rng, 65, 48, scale=0.12),
        "experts": _normal(rng, 3, 48, 20, scale=0.15),
        "ends": np.array([10, 11, 33], np.int32),
        "image": _normal(rng, 1, 3, 14, 15),
        "filters": _normal(rng, 6, 3, 3, 3, scale=0.2),
    }


def _position(rng: np.random.Generator) -> dict[str, Array]:
    return {"x": _normal(rng, 10, 3, 32), "at": np.arange(5, 15, dtype=np.int32)}


def _attention(rng: np.random.Generator) -> dict[str, Array]:
    return {
        **{name: _normal(rng, 2, _HEADS, 11, _DIM) for name in ("q", "k", "v")},
        "query": _normal(rng, 2, _HEADS, _DIM),
        **{name: _normal(rng, 5, 4, 2, _DIM) for name in ("keys", "values")},
        "table": np.array([[3, 1, 4], [2, 0, 0]], np.int32),
        "lengths": np.array([9, 3], np.int32),
    }


def _routing(rng: np.random.Generator) -> dict[str, Array]:
    return {"gating": _normal(rng, 21, _EXPERTS, scale=2.0)}


def _layer(rng: np.random.Generator) -> dict[str, Array]:
    def weights(rows: int, columns: int) -> Array:
        return _normal(rng, rows, columns, scale=rows**-0.5)

    return {
        "x": _normal(rng, _TOKENS, _HIDDEN),
        "norm1": 1 + _normal(rng, _HIDDEN, scale=0.1),
        "norm2": 1 + _normal(rng, _HIDDEN, scale=0.1),
        "qkv": weights(_HIDDEN, 3 * _HIDDEN),
        "out": weights(_HIDDEN, _HIDDEN),
        "gate_up": weights(_HIDDEN, 2 * _INNER),
        "down": weights(_INNER, _HIDDEN),
        "at": np.arange(_TOKENS, dtype=np.int32),
    }


_BY_TOKEN = (_TOKENS, _HEADS, _DIM)
_ONE_HEAD = (1, _TOKENS, _HIDDEN)
"""Attention with one head of all columns: heads first and tokens first are the same then, and nothing is transposed."""
_EPS = {"epsilon": EPSILON}


def _part(name: str, which: int, shape: tuple[int, ...]) -> dict[str, Mapping[str, tuple[int, ...]]]:
    """One third of the projection."""
    return {"shapes": {name: shape}, "columns": {name: (which * _HIDDEN, (which + 1) * _HIDDEN)}}


def _rope(which: int, made: str) -> Step:
    place = _part("projected", which, _BY_TOKEN)
    attrs = {"style": "neox", "base": "10000.0"}
    return Step(
        "rope",
        {"X": "projected", "positions": "at"},
        {"Y": made},
        attrs,
        place["shapes"],
        {"projected": (which * _HIDDEN, (which + 1) * _HIDDEN)},
    )


_LAYER = (
    Step("rmsnorm", {"X": "x", "scale": "norm1"}, {"Y": "h"}, _EPS),
    Step("matmul", {"A": "h", "B": "qkv"}, {"Y": "projected"}),
    _rope(0, "q"),
    _rope(1, "k"),
    Step(
        "copy",
        {"X": "projected"},
        {"Y": "v"},
        shapes={"projected": (_TOKENS, _HIDDEN)},
        columns={"projected": (2 * _HIDDEN, 3 * _HIDDEN)},
    ),
    Step(
        "attention_prefill",
        {"Q": "q", "K": "k", "V": "v"},
        {"O": "mixed"},
        {"causal": "lower_right"},
        {"q": _ONE_HEAD, "k": _ONE_HEAD, "v": _ONE_HEAD},
    ),
    Step("matmul", {"A": "mixed", "B": "out"}, {"Y": "attended"}, shapes={"mixed": (_TOKENS, _HIDDEN)}),
    Step("add", {"A": "x", "B": "attended"}, {"C": "x1"}),
    Step("rmsnorm", {"X": "x1", "scale": "norm2"}, {"Y": "h2"}, _EPS),
    Step("matmul", {"A": "h2", "B": "gate_up"}, {"Y": "both"}),
    Step("silu_and_mul", {"X": "both"}, {"Y": "gated"}),
    Step("matmul", {"A": "gated", "B": "down"}, {"Y": "fed"}),
    Step("add", {"A": "x1", "B": "fed"}, {"C": "x2"}),
    Step("softmax", {"X": "x2"}, {"Y": "shares"}),
)

SAMPLES: tuple[Sample, ...] = (
    Sample(
        "elementwise",
        _elementwise,
        (
            Step("copy", {"X": "x"}, {"Y": "x1"}),
            Step("add", {"A": "x1", "B": "y"}, {"C": "x2"}),
            Step("relu", {"X": "x2"}, {"Y": "x3"}),
            Step("add", {"A": "x3", "B": "x"}, {"C": "x4"}, {"alpha": "0.3"}),
            Step("silu_and_mul", {"X": "x4"}, {"Y": "x5"}),
        ),
    ),
    Sample(
        "norm",
        _norm,
        (
            Step("layernorm", {"X": "x", "scale": "scale", "B": "bias"}, {"Y": "x1"}, _EPS),
            Step("softmax", {"X": "x1"}, {"Y": "x2"}),
            Step("softmax", {"X": "x1"}, {"Y": "x3"}, {"axis": "0"}),
            Step(
                "rmsnorm",
                {"X": "x1", "scale": "scale", "residual": "x"},
                {"Y": "x4", "residual_out": "x5"},
                {**_EPS, "variant": "fused_add"},
            ),
        ),
    ),
    Sample(
        "contraction",
        _contraction,
        (
            Step("matmul", {"A": "a", "B": "b"}, {"Y": "ab"}),
            Step("grouped_gemm", {"A": "ab", "B": "experts", "offs": "ends"}, {"Y": "grouped"}),
            Step("conv2d", {"X": "image", "W": "filters"}, {"Y": "seen"}, {"pads": "1,1,1,1", "strides": "2,1"}),
        ),
    ),
    Sample(
        "position",
        _position,
        (
            Step("rope", {"X": "x", "positions": "at"}, {"Y": "x1"}, {"style": "neox"}),
            Step("rope", {"X": "x1", "positions": "at"}, {"Y": "x2"}, {"style": "interleaved", "rotary_dim": "16"}),
        ),
    ),
    Sample(
        "attention",
        _attention,
        (
            Step("attention_prefill", {"Q": "q", "K": "k", "V": "v"}, {"O": "o"}, {"causal": "upper_left"}),
            Step(
                "attention_decode",
                {"Q": "query", "k_cache": "keys", "v_cache": "values", "block_table": "table", "seq_lens": "lengths"},
                {"O": "decoded"},
                {"block_size": "4"},
            ),
        ),
    ),
    Sample(
        "routing",
        _routing,
        (
            Step("topk_softmax", {"gating": "gating"}, {"ids": "ids"}, {"k": "2", "renormalize": "true"}),
            Step("moe_align", {"topk_ids": "ids"}, {}, {"num_experts": str(_EXPERTS), "block_size": "4"}),
        ),
    ),
    Sample("transformer layer", _layer, _LAYER),
)
