"""Cases of topk_softmax and moe_align."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import FLOATS, HALVES, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, strided
from accelctl.smoke.numbers import Array


def _top(
    tokens: int, experts: int, k: int, renormalize: bool = False, scoring: str = "softmax", bias: bool = False
) -> Make:
    attrs = {"k": str(k), "renormalize": str(renormalize).lower(), "scoring": scoring}
    return lambda m: made(attrs, gating=m.normal(tokens, experts), bias=m.normal(experts) if bias else None)


def topk_cases() -> list[Case]:
    """All of topk_softmax."""
    book = Book("topk_softmax")
    for tokens, experts, k in ((1, 6, 3), (33, 16, 4), (56, 8, 3), (33, 6, 4)):
        for scoring in ("softmax", "sigmoid"):
            for renormalize in (False, True):
                name = f"{tokens}x{experts}-top{k}-{scoring}" + ("-renormalized" if renormalize else "")
                book.add(name, _top(tokens, experts, k, renormalize, scoring), corner="vLLM's sizes")
    book.add("256-experts", _top(17, 256, 8, True), corner="many experts")
    book.add("257-experts", _top(5, 257, 8), corner="one more than a power of two")
    for scoring in ("softmax", "sigmoid"):
        book.add(
            f"bias-{scoring}", _top(33, 16, 4, True, scoring, True), corner="chosen with the bias, weighed without"
        )
    book.add("k-0", _top(3, 4, 0), corner="k = 0 gives nothing")
    book.add("k-all", _top(3, 4, 4, True), corner="all experts, by score")
    book.add("no-tokens", _top(0, 4, 2), corner="no tokens")
    _top_values(book)
    book.refuse("k-above", "5 of 4 experts", _top(3, 4, 5), FLOATS)
    book.refuse("k-negative", "-1 of 4 experts", _top(3, 4, -1))
    book.refuse("bias", "three biases for four experts", _wrong_bias)
    book.refuse("no-k", "k has no default", lambda m: made({"renormalize": "true"}, gating=m.normal(3, 4)))
    book.refuse("no-renormalize", "renormalize has no default", lambda m: made({"k": "2"}, gating=m.normal(3, 4)))
    return book.cases


def _top_values(book: Book) -> None:
    rows = [[1, 1, 1, 1], [0, 2, 1, 2], [3, 0, 0, 0], [-1, -1, 5, -1]]
    for scoring in ("softmax", "sigmoid"):
        book.add(f"ties-{scoring}", _gating(rows, scoring), corner="equal scores: the lower index first")
        book.add(f"not-finite-{scoring}", _poisoned(scoring), corner="ids are distinct and weights finite")
    book.add("many-ties", _many_ties, corner="whole numbers: most scores are tied")
    book.add("renormalized-halves", _small_weights, HALVES, "weights are divided in fp32")
    book.add("strided", _apart, corner="rows with gaps")


def _gating(rows: object, scoring: str) -> Make:
    attrs = {"k": "2", "renormalize": "false", "scoring": scoring}
    return lambda m: made(attrs, gating=m.values(rows))


def _poisoned(scoring: str) -> Make:
    inf, nan = np.inf, np.nan
    rows = [[nan] * 4, [inf, 1, 2, 3], [1, nan, 2, 3], [-inf] * 4, [-inf, 1, 0, -inf], [inf] * 4, [0, 1, 2, 3]]
    attrs = {"k": "3", "renormalize": "true", "scoring": scoring}
    return lambda m: made(attrs, gating=m.values(rows))


def _many_ties(m: Maker) -> Made:
    return made({"k": "5", "renormalize": "true"}, gating=m.ints(-2, 2, 40, 16))


def _small_weights(m: Maker) -> Made:
    return made({"k": "8", "renormalize": "true"}, gating=m.normal(9, 64, scale=0.1))


def _apart(m: Maker) -> Made:
    return made({"k": "2", "renormalize": "false"}, gating=strided(m.normal(9, 6), gap=2))


def _wrong_bias(m: Maker) -> Made:
    return made({"k": "2", "renormalize": "true"}, gating=m.normal(3, 4), bias=m.normal(3))


def align_cases() -> list[Case]:
    """All of moe_align."""
    book = Book("moe_align")
    for tokens, experts, k, block in (
        (1, 32, 1, 32),
        (3, 32, 2, 32),
        (3, 160, 16, 128),
        (256, 32, 2, 32),
        (256, 160, 16, 32),
        (256, 256, 32, 128),
        (256, 257, 2, 128),
        (33, 8, 2, 5),
        (2256, 32, 2, 128),
        (0, 4, 2, 4),
    ):
        name = f"{tokens}x{k}-of-{experts}-by-{block}"
        book.add(name, _align(tokens, experts, k, block), ("int32",), "vLLM's sizes", repeat=True)
    book.add("4096x32-of-256-by-128", _align(4096, 256, 32, 128), ("int32",), "vLLM's size", long=True)
    _align_values(book)
    book.refuse("experts", "no experts", _align(3, 0, 0, 4), ("int32",))
    book.refuse("block", "blocks of 0", _align(3, 4, 2, 0), ("int32",))
    book.refuse("block-negative", "blocks of -4", _align(3, 4, 2, -4), ("int32",))
    book.refuse("map", "the map names three of four experts", _align(3, 4, 2, 4, mapped=[0, 1, -1]), ("int32",))
    book.refuse("rank", "topk_ids has one dimension", _flat, ("int32",))
    return book.cases


def _choose(m: Maker, tokens: int, experts: int, k: int) -> Array:
    """k distinct experts for each token."""
    rows = [m.rng.permutation(experts)[:k] for _ in range(tokens)]
    return np.array(rows, np.int32).reshape(tokens, k)


def _align(
    tokens: int, experts: int, k: int, block: int, mapped: list[int] | None = None, padded: bool = False
) -> Make:
    attrs = {"num_experts": str(experts), "block_size": str(block), "pad_sorted_ids": str(padded).lower()}
    names = None if mapped is None else np.array(mapped, np.int32)
    return lambda m: made(attrs, topk_ids=_choose(m, tokens, experts, k), expert_map=names)


def _align_values(book: Book) -> None:
    half = [0, 1, 2, 3, -1, -1, -1, -1]
    book.add("map", _align(33, 8, 2, 4, half), ("int32",), "half of the experts are here, -1 are not")
    book.add("map-later", _align(33, 8, 2, 4, half[::-1]), ("int32",), "expert 0 is not here")
    book.add("padded", _align(33, 8, 2, 16, padded=True), ("int32",), "the buffer is a multiple of the block")
    book.add("one-expert", _one_expert, ("int32",), "one expert takes all; the others take no block")
    book.add("strided", _strided_ids, ("int32",), "ids with gaps")
    book.add("unknown-experts", _unknown, ("int32",), "slots of an expert that there is not are left out")


def _one_expert(m: Maker) -> Made:
    return made({"num_experts": "6", "block_size": "4"}, topk_ids=m.full(3, 9, 1))


def _unknown(m: Maker) -> Made:
    ids = m.values([[0, 9], [-1, 2], [8, 2], [-(2**31), 2**31 - 1]], dtype="int32")
    return made({"num_experts": "8", "block_size": "2"}, topk_ids=ids)


def _strided_ids(m: Maker) -> Made:
    attrs = {"num_experts": "8", "block_size": "4"}
    return made(attrs, topk_ids=strided(_choose(m, 11, 8, 2), (1, 0), gap=3))


def _flat(m: Maker) -> Made:
    return made({"num_experts": "8", "block_size": "4"}, topk_ids=m.ints(0, 7, 6))
