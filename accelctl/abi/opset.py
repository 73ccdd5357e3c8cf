"""The operators that a chip may know: their numbers, operands and attributes.

One table for everybody: the service checks requests by it, instructions carry attributes in its order, executors read
them by its names. What an op computes, with all corner cases, is written in docs/ops.md; the decisions where stacks
disagree are attributes here (``causal``, ``style``) or have no default (``epsilon``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from accelctl.abi.tensors import FLOATS, INTS
from accelctl.errors import UsageError

Value = int | float | bool | str | tuple[int, ...]
Attrs = Mapping[str, Value]
ANY = FLOATS | INTS
REQUIRED = None
"""Default of an attribute that has none: stacks disagree, so the caller says it."""


class Operand(NamedTuple):
    """One tensor of an op; ``dtypes`` are the element types that it may have."""

    name: str
    dtypes: frozenset[str] = FLOATS
    optional: bool = False


class Attr(NamedTuple):
    """One attribute. ``kind``: int, float, bool, ints (1,2,3) or word (one of ``words``)."""

    name: str
    kind: str
    default: Value | None = REQUIRED
    words: tuple[str, ...] = ()


class Op(NamedTuple):
    """One operator. ``family`` names its translator."""

    name: str
    code: int
    family: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attrs: tuple[Attr, ...] = ()

    def parse(self, given: Mapping[str, str]) -> dict[str, Value]:
        """All attributes, typed, in the table's order. UsageError naming the attribute."""
        known = {attr.name: attr for attr in self.attrs}
        for name in given:
            if name not in known:
                there = ", ".join(known) or "none"
                raise UsageError(f"attrs[{name!r}]: {self.name} has no such attribute (it has: {there})")
        return {name: _value(self.name, attr, given.get(name)) for name, attr in known.items()}


def whole(value: Value) -> int:
    """An attribute that is an int by the table."""
    assert isinstance(value, int)
    return value


def real(value: Value) -> float:
    """An attribute that is a float by the table."""
    assert isinstance(value, float)
    return value


def _value(op: str, attr: Attr, text: str | None) -> Value:
    if text is None:
        if attr.default is REQUIRED:
            raise UsageError(f"attrs[{attr.name!r}]: {op} needs it, stacks disagree on a default")
        return attr.default
    try:
        return _PARSERS[attr.kind](text, attr)
    except ValueError:
        wanted = " or ".join(attr.words) if attr.words else _KINDS[attr.kind]
        raise UsageError(f"attrs[{attr.name!r}]: {text[:40]!r} is not {wanted}") from None


_KINDS = {
    "int": "a whole number of at most 64 bits",
    "float": "a finite number",
    "bool": "true or false",
    "ints": "whole numbers, as 1,2,3",
    "word": "a known word",
}
_MOST_INTS = 16


def _int(text: str, attr: Attr) -> int:
    value = int(text) if text.isascii() and len(text) <= 20 and "_" not in text else _wrong()
    return value if -(1 << 63) <= value < 1 << 63 else _wrong()


def _float(text: str, attr: Attr) -> float:
    value = float(text) if text.isascii() and "_" not in text else math.nan
    return value if math.isfinite(value) else _wrong()


def _bool(text: str, attr: Attr) -> bool:
    return text == "true" if text in ("true", "false") else _wrong()


def _ints(text: str, attr: Attr) -> tuple[int, ...]:
    words = text.split(",") if text else []
    return tuple(_int(word, attr) for word in words) if len(words) <= _MOST_INTS else _wrong()


def _word(text: str, attr: Attr) -> str:
    return text if text in attr.words else _wrong()


def _wrong() -> NoReturn:
    raise ValueError


_PARSERS: dict[str, Callable[[str, Attr], Value]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "ints": _ints,
    "word": _word,
}


def text_of(value: Value) -> str:
    """An attribute as the protocol carries it; the inverse of ``Op.parse``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


_I32 = frozenset({"int32"})
_EPS = Attr("epsilon", "float")
_AXIS = Attr("axis", "int", -1)
_X, _Y = Operand("X"), Operand("Y")
_SCALE, _BIAS = Operand("scale", optional=True), Operand("B", optional=True)
_ATTENTION = (
    Attr("scale", "float", 0.0),
    Attr("softcap", "float", 0.0),
    Attr("window", "int", 0),
)
"""scale 0: 1/sqrt(head_dim). softcap 0: off. window w > 0: key j is visible if i - w < j <= i."""
_CAUSAL = ("none", "upper_left", "lower_right")

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op(
            "matmul",
            1,
            "contraction",
            (Operand("A", FLOATS | {"int8", "uint8", "int32"}), Operand("B", FLOATS | {"int8", "uint8", "int32"})),
            (Operand("Y", FLOATS | {"int32"}),),
            (Attr("tf32", "bool", False),),
        ),
        Op(
            "conv2d",
            2,
            "contraction",
            (_X, Operand("W"), _BIAS),
            (_Y,),
            (
                Attr("strides", "ints", (1, 1)),
                Attr("pads", "ints", (0, 0, 0, 0)),
                Attr("dilations", "ints", (1, 1)),
                Attr("group", "int", 1),
                Attr("auto_pad", "word", "notset", ("notset", "same_upper", "same_lower", "valid")),
                Attr("layout", "word", "nchw", ("nchw", "nhwc")),
            ),
        ),
        Op("layernorm", 3, "norm", (_X, _SCALE, _BIAS), (_Y,), (_EPS, _AXIS)),
        Op("relu", 4, "elementwise", (Operand("X", ANY),), (Operand("Y", ANY),)),
        Op(
            "add",
            5,
            "elementwise",
            (Operand("A", ANY), Operand("B", ANY)),
            (Operand("C", ANY),),
            (Attr("alpha", "float", 1.0),),
        ),
        Op("softmax", 6, "norm", (_X,), (_Y,), (_AXIS,)),
        Op(
            "rmsnorm",
            7,
            "norm",
            (_X, _SCALE, Operand("residual", optional=True)),
            (_Y, Operand("residual_out", optional=True)),
            (_EPS, Attr("variant", "word", "plain", ("plain", "fused_add", "gemma"))),
        ),
        Op(
            "rope",
            8,
            "position",
            (_X, Operand("positions", _I32)),
            (_Y,),
            (
                Attr("base", "float", 10000.0),
                Attr("style", "word", REQUIRED, ("neox", "interleaved")),
                Attr("rotary_dim", "int", 0),
            ),
        ),
        Op("silu_and_mul", 9, "elementwise", (_X,), (_Y,)),
        Op(
            "attention_prefill",
            10,
            "attention",
            (Operand("Q"), Operand("K"), Operand("V"), Operand("mask", FLOATS | {"uint8"}, optional=True)),
            (Operand("O"), Operand("lse", frozenset({"fp32"}), optional=True)),
            (Attr("causal", "word", "none", _CAUSAL), *_ATTENTION),
        ),
        Op(
            "attention_decode",
            11,
            "attention",
            (
                Operand("Q"),
                Operand("k_cache"),
                Operand("v_cache"),
                Operand("block_table", _I32),
                Operand("seq_lens", _I32),
            ),
            (Operand("O"), Operand("lse", frozenset({"fp32"}), optional=True)),
            (Attr("block_size", "int"), *_ATTENTION),
        ),
        Op(
            "grouped_gemm",
            12,
            "contraction",
            (Operand("A"), Operand("B"), Operand("offs", _I32)),
            (_Y,),
        ),
        Op(
            "topk_softmax",
            13,
            "routing",
            (Operand("gating"), Operand("bias", optional=True)),
            (Operand("weights", frozenset({"fp32"})), Operand("ids", _I32)),
            (
                Attr("k", "int"),
                Attr("renormalize", "bool"),
                Attr("scoring", "word", "softmax", ("softmax", "sigmoid")),
            ),
        ),
        Op(
            "moe_align",
            14,
            "routing",
            (Operand("topk_ids", _I32), Operand("expert_map", _I32, optional=True)),
            (
                Operand("sorted_token_ids", _I32),
                Operand("expert_ids", _I32),
                Operand("num_tokens_post_pad", _I32),
            ),
            (Attr("num_experts", "int"), Attr("block_size", "int"), Attr("pad_sorted_ids", "bool", False)),
        ),
        Op("copy", 15, "elementwise", (Operand("X", ANY),), (Operand("Y", ANY),)),
    )
}
"""Name -> op. ``copy`` moves between layouts and element types (one rounding, to the nearest even; to an integer it
truncates and saturates): what lowering puts before and after a kernel, and how a KV cache is written."""

BY_CODE: dict[int, Op] = {op.code: op for op in OPS.values()}
"""Number in the protocol and in instructions -> op; 0 is none."""
