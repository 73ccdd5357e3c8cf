"""Cases of copy: between layouts, between element types, into a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accelctl.smoke.cases.book import FLOATS, INTS, Book
from accelctl.smoke.cases.record import Arg, Case, Made, Make, Maker, Wish, dense, repeated, strided
from accelctl.smoke.numbers import Array

Shape = tuple[int, ...]
ALL = (*FLOATS, *INTS)


def _to(x: Arg | Array, shape: Shape = (), dtype: str = "", strides: Shape = ()) -> Made:
    wide = shape or x.shape
    return Made({"X": x}, outputs={"Y": Wish(dtype, strides, shape=wide)})


def cases() -> list[Case]:
    """All of them."""
    book = Book("copy")
    for target in ALL:
        book.add(f"to-{target}", _converted(target), ALL, "every element type to every other")
    book.add("scalar", lambda m: _to(m.normal()), ALL, "no dimensions")
    book.add("empty", lambda m: _to(m.normal(3, 0, 2)), ALL, "nothing to move")
    book.add("from-transposed", lambda m: _to(strided(m.normal(7, 5), (1, 0))), ALL, "transposed to dense")
    book.add("to-transposed", lambda m: _to(m.normal(7, 5), strides=(1, 7)), ALL, "dense to transposed")
    book.add("nchw-to-nhwc", lambda m: _to(m.normal(2, 3, 4, 5), strides=(60, 1, 15, 3)), ALL, "channels last")
    book.add("to-rows-apart", lambda m: _to(m.normal(6, 5), strides=(8, 1)), ALL, "the gaps are not written")
    book.add("offset", lambda m: _to(dense(m.normal(33), 1)), ALL, "the pointer is one element off")
    book.add("broadcast", lambda m: _to(m.normal(4, 1), (3, 4, 5)), ALL, "X is repeated")
    book.add("from-repeated", lambda m: _to(repeated(m.normal(5), (4, 5))), ALL, "strides of 0")
    book.add("rank-6", lambda m: _to(strided(m.normal(2, 3, 1, 2, 3, 2), (5, 3, 1, 0, 2, 4))), ALL, "six axes")
    book.add("cache-write", _cache_write, FLOATS, "tokens into slots of a cache: rows apart in both")
    book.add("long-row", lambda m: _to(m.normal((1 << 20) + 1), dtype="fp32"), FLOATS, "more than a grid's first pass")
    _rounding(book)
    book.refuse("narrower", "Y is narrower than X", lambda m: _to(m.normal(3, 4), (1, 4)))
    book.refuse("lengths", "3 into 4", lambda m: _to(m.normal(3), (4,)), ALL, ("(3,)", "(4,)"))
    return book.cases


def _converted(target: str) -> Make:
    """Numbers that every type has nearly, negative and fractional ones among them."""

    def make(m: Maker) -> Made:
        if m.dtype in INTS:
            return _to(m.normal(3, 11), dtype=target)
        return _to(m.normal(3, 11, scale=90), dtype=target)

    return make


def _cache_write(m: Maker) -> Made:
    """[tokens, heads, dim] cut out of a fused [tokens, 3*heads, dim], to every other slot."""
    return _to(strided(m.normal(4, 2, 8), gap=8), strides=(32, 8, 1))


def _rounding(book: Book) -> None:
    inf = np.inf
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -(1 + 2.0**-8)]
    book.add("bf16-ties", lambda m: _to(m.values(ties), dtype="bf16"), ("fp32",), "halfway: to the even one")
    ties16 = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 65520, 2.0**-25, 3 * 2.0**-25, 2.0**-24, -65520]
    book.add(
        "fp16-ties", lambda m: _to(m.values(ties16), dtype="fp16"), ("fp32",), "halfway, beyond the end, subnormal"
    )
    book.add("fp16-ends", lambda m: _to(m.values([1e30, -1e30, inf, -inf, np.nan]), dtype="fp16"), ("fp32", "bf16"))
    saturating = [300, -300, 127.9, -128.9, 0.9, -0.9, 1e10, -1e10, inf, -inf, 2.5]
    for target in INTS:
        for source in ("fp32", "bf16"):
            corner = "truncated, and saturated at the ends"
            book.add(f"saturated-{target}", _saturated(saturating, target), (source,), corner)
    ends = [2**31 - 1, -(2**31), 300, -300, 128, 255, 256]
    for target in ("int8", "uint8", "fp16"):
        book.add(f"ends-{target}", _saturated(ends, target), ("int32",), "range ends")
    book.add(
        "negative-uint8", lambda m: _to(m.values([-1, -128, 127]), dtype="uint8"), ("int8",), "no negative numbers"
    )


def _saturated(values: Sequence[float], target: str) -> Make:
    return lambda m: _to(m.values(values), dtype=target)
