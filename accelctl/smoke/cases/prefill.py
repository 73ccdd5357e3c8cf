"""Cases of attention_prefill: alignment of the causal mask, grouped heads, rows that see nothing, soft cap, windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from accelctl.smoke.cases.book import FLOATS, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, repeated, strided
from accelctl.smoke.numbers import Array

Attrs = Mapping[str, str]
_LSE = {"lse": Wish()}
_CAUSAL = ("none", "upper_left", "lower_right")


def _qkv(heads: tuple[int, int], rows: int, columns: int, dim: int, attrs: Attrs, batch: int = 0, out: int = 0) -> Make:
    """Query and key heads, L, S, E; values have ``out`` numbers, or E."""
    front = (batch,) if batch else ()

    def make(m: Maker) -> Made:
        q = m.normal(*front, heads[0], rows, dim)
        k, v = m.normal(*front, heads[1], columns, dim), m.normal(*front, heads[1], columns, out or dim)
        return Made({"Q": q, "K": k, "V": v}, attrs, _LSE)

    return make


def cases() -> list[Case]:
    """All of them."""
    book = Book("attention_prefill")
    for causal in _CAUSAL:
        attrs = {"causal": causal}
        book.add(f"3d-{causal}", _qkv((4, 4), 3, 6, 8, attrs), corner="PyTorch's sizes, L 3, S 6")
        book.add(f"4d-{causal}", _qkv((4, 4), 3, 6, 8, attrs, 2), corner="with a batch axis")
        book.add(f"grouped-{causal}", _qkv((8, 2), 5, 7, 16, attrs, 2), corner="head h uses h // (Hq/Hkv)")
        book.add(f"square-{causal}", _qkv((2, 2), 9, 9, 16, attrs), corner="L = S: both alignments agree")
        book.add(f"more-rows-{causal}", _qkv((2, 1), 7, 4, 8, attrs), corner="L > S: lower right hides whole rows")
        for window in (1, 2, 5):
            windowed = {**attrs, "window": str(window)}
            book.add(f"window-{window}-{causal}", _qkv((4, 2), 6, 9, 8, windowed), corner="i-w < j <= i")
    _masks(book)
    _values(book)
    _layouts(book)
    _serving(book)
    _refused(book)
    return book.cases


def _serving(book: Book) -> None:
    lower = {"causal": "lower_right"}
    for dim in (40, 72, 80, 128, 256):
        for heads in ((4, 4), (8, 2)):
            name = f"5x18-heads-{heads[0]}-{heads[1]}-dim-{dim}"
            book.add(name, _qkv(heads, 5, 18, dim, lower), corner="vLLM's sizes")
    book.add("1x1328", _qkv((4, 4), 1, 1328, 128, lower), corner="vLLM's sizes: one query over a long context")
    for name, more, dtypes in (
        ("", {}, FLOATS),
        ("-window-256", {"window": "256"}, ("fp32",)),
        ("-softcap-50", {"softcap": "50.0"}, ("fp32",)),
        ("-both", {"window": "256", "softcap": "50.0"}, FLOATS),
    ):
        book.add(f"129x463{name}", _qkv((8, 2), 129, 463, 128, {**lower, **more}), dtypes, "vLLM's sizes")
    for dim in (64, 256):
        book.add(f"37x501-dim-{dim}", _qkv((4, 1), 37, 501, dim, lower), corner="FlashInfer's sizes")
    book.add("1024x4932", _qkv((4, 1), 1024, 4932, 128, lower), ("fp16",), "FlashInfer's size", long=True)


def _masks(book: Book) -> None:
    for name, shape in (
        ("2d", (3, 6)),
        ("3d", (4, 3, 6)),
        ("4d", (2, 4, 3, 6)),
        ("4d-one", (2, 1, 3, 6)),
        ("row", (1, 6)),
    ):
        book.add(f"mask-{name}", _masked(shape, "uint8"), corner="uint8: 1 takes part")
        book.add(f"bias-{name}", _masked(shape, ""), corner="floating: added to the scores")
    book.add("mask-and-causal", _mask_causal, corner="both hide keys")
    book.add("masked-row", _masked_row("uint8"), corner="a row that sees nothing gives 0, and lse -inf")
    book.add("masked-row-float", _masked_row(""), corner="the same with -inf added")
    book.add("masked-all", _masked_all, corner="nothing is seen at all")
    book.add("mask-repeated", _mask_repeated, corner="a mask with strides of 0")
    book.add("bias-softcap", _bias_softcap, corner="the cap comes before the mask, and does not lift -inf")


def _inputs(m: Maker, batch: int = 2) -> dict[str, Array]:
    front = (batch,) if batch else ()
    return {name: m.normal(*front, 4, length, 8) for name, length in (("Q", 3), ("K", 6), ("V", 6))}


def _masked(shape: tuple[int, ...], dtype: str) -> Make:
    def make(m: Maker) -> Made:
        mask = m.ints(0, 1, *shape, dtype="uint8") if dtype else m.normal(*shape)
        mask[..., 0] = 1
        return Made({**_inputs(m), "mask": mask}, outputs=_LSE)

    return make


def _mask_causal(m: Maker) -> Made:
    mask = m.ints(0, 1, 3, 6, dtype="uint8")
    return Made({**_inputs(m, 0), "mask": mask}, {"causal": "lower_right"}, _LSE)


def _masked_row(dtype: str) -> Make:
    def make(m: Maker) -> Made:
        mask = m.full(1, 3, 6, dtype="uint8") if dtype else m.full(0, 3, 6)
        mask[1] = 0 if dtype else -np.inf
        return Made({**_inputs(m, 0), "mask": mask}, outputs=_LSE)

    return make


def _masked_all(m: Maker) -> Made:
    return Made({**_inputs(m), "mask": m.full(0, 3, 6, dtype="uint8")}, outputs=_LSE)


def _mask_repeated(m: Maker) -> Made:
    mask = m.ints(0, 1, 1, 6, dtype="uint8")
    mask[0, 2] = 1
    return Made({**_inputs(m, 0), "mask": repeated(mask, (3, 6))}, outputs=_LSE)


def _bias_softcap(m: Maker) -> Made:
    mask = m.normal(3, 6)
    mask[:, 3], mask[2] = -np.inf, -np.inf
    return Made({**_inputs(m, 0), "mask": mask}, {"softcap": "2.0"}, _LSE)


def _values(book: Book) -> None:
    book.add("softcap-2", _qkv((4, 2), 5, 7, 8, {"softcap": "2.0", "causal": "lower_right"}), corner="a narrow cap")
    book.add("scale", _qkv((2, 2), 5, 7, 16, {"scale": "0.7"}), corner="a scale of its own")
    book.add("wide-values", _qkv((4, 2), 5, 7, 8, {"causal": "lower_right"}, out=24), corner="values wider than keys")
    book.add("narrow-values", _qkv((4, 2), 5, 7, 16, {}, 2, 4), corner="values narrower than keys")
    book.add("no-keys", _qkv((2, 1), 3, 0, 8, {}), corner="S = 0 gives 0, and lse -inf")
    book.add("no-queries", _qkv((2, 1), 0, 5, 8, {}), corner="L = 0 gives nothing")
    book.add("large-scores", _large, corner="scores above 65504: they are kept in fp32")
    book.add("negative-scores", _negative, corner="hidden keys with high scores never count")
    for name, attrs in (("upper-left", {"causal": "upper_left"}), ("window", {"causal": "lower_right", "window": "2"})):
        book.add(f"hidden-nan-{name}", _hidden_nan(attrs), corner="what a hidden key holds, NaN and inf, takes no part")
    book.add("hidden-nan-mask", _hidden_nan_mask, corner="nor does what a mask hides")


def _large(m: Maker) -> Made:
    """Scores of 64*128*128/8 = 131072 for one key, and 131071 and less for others: exact in fp32."""
    q, k = m.full(128, 1, 2, 64), m.full(128, 1, 4, 64)
    k[0, 1:, 0] = m.values([127, 126, 64])
    return Made({"Q": q, "K": k, "V": m.normal(1, 4, 8)}, outputs=_LSE)


def _negative(m: Maker) -> Made:
    """Seen keys score -4096 and -4100, hidden ones +4096."""
    q, k = m.full(16, 2, 3, 16), m.full(-64, 2, 6, 16)
    k[:, 3:] = 64
    k[:, 1, 0] = -65
    mask = m.values([[1, 1, 1, 0, 0, 0]], dtype="uint8")
    return Made({"Q": q, "K": k, "V": m.normal(2, 6, 8), "mask": mask}, outputs=_LSE)


def _hidden_nan(attrs: Attrs) -> Make:
    """Keys and values of tokens that no query sees, and of some that only late ones see."""

    def make(m: Maker) -> Made:
        inputs = _inputs(m, 0)
        inputs["K"][:, 0], inputs["V"][:, 0] = np.nan, np.nan
        inputs["V"][:, 1], inputs["V"][:, 4], inputs["K"][:, 5] = np.inf, -np.inf, np.nan
        if "window" not in attrs:
            inputs["K"][:, 0], inputs["V"][:, 0] = 1, 1
        return Made(inputs, attrs, _LSE)

    return make


def _hidden_nan_mask(m: Maker) -> Made:
    inputs = _inputs(m)
    inputs["V"][:, :, 2], inputs["V"][:, 1, 4] = np.nan, np.inf
    return Made(
        {**inputs, "mask": m.values([[1, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1, 0, 0, 1]], dtype="uint8")},
        outputs=_LSE,
    )


def _layouts(book: Book) -> None:
    book.add("tokens-first", _tokens_first, corner="[tokens, heads, dim] in memory, as projections leave it")
    book.add("fused", _fused, corner="Q, K, V cut out of one projection")


def _tokens_first(m: Maker) -> Made:
    q, k, v = (strided(m.normal(heads, rows, 8), (1, 0, 2)) for heads, rows in ((4, 5), (2, 7), (2, 7)))
    wish = {**_LSE, "O": Wish(strides=(8, 32, 1))}
    return Made({"Q": q, "K": k, "V": v}, {"causal": "lower_right"}, wish)


def _fused(m: Maker) -> Made:
    q, k, v = (strided(m.normal(2, 6, 8), (1, 0, 2), gap=16) for _ in "qkv")
    return Made({"Q": q, "K": k, "V": v}, {"causal": "upper_left"}, _LSE)


def _refused(book: Book) -> None:
    book.refuse("heads", "four query heads over three", _qkv((4, 3), 3, 6, 8, {}), FLOATS)
    book.refuse("fewer-heads", "two query heads over four", _qkv((2, 4), 3, 6, 8, {}))
    book.refuse("causal", "no such alignment", _qkv((2, 2), 3, 6, 8, {"causal": "true"}))
    book.refuse("window", "a negative window", _qkv((2, 2), 3, 6, 8, {"window": "-1"}))
    book.refuse("dim", "keys have 9 numbers, queries 8", _shapes((2, 3, 8), (2, 6, 9), (2, 6, 8)))
    book.refuse("lengths", "6 keys, 5 values", _shapes((2, 3, 8), (2, 6, 8), (2, 5, 8)))
    book.refuse("rank", "Q has two dimensions", _shapes((3, 8), (6, 8), (6, 8)))
    book.refuse("batch", "two sequences and three", _shapes((2, 2, 3, 8), (3, 2, 6, 8), (3, 2, 6, 8)))
    book.refuse("mask", "a mask for 5 keys of 6", _wrong_mask)
    book.refuse("mixed", "element types differ", _mixed, ("fp16",))


def _shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> Make:
    return lambda m: made(Q=m.normal(*q), K=m.normal(*k), V=m.normal(*v))


def _wrong_mask(m: Maker) -> Made:
    return Made({**_inputs(m), "mask": m.full(1, 3, 5, dtype="uint8")})


def _mixed(m: Maker) -> Made:
    return made(Q=m.normal(2, 3, 8), K=m.normal(2, 6, 8, dtype="bf16"), V=m.normal(2, 6, 8))
