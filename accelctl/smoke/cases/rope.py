"""Cases of rope: both styles, partial rotation, far positions, padded tensors."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, strided

STYLES = ("neox", "interleaved")


def _plain(
    x: tuple[int, ...], style: str, rotary: int = 0, most: int = 8191, base: str = "10000.0", first: int = 0
) -> Make:
    """Random positions from ``first`` to ``most``."""
    attrs = {"style": style, "base": base, "rotary_dim": str(rotary)}
    return lambda m: made(attrs, X=m.normal(*x), positions=m.ints(first, most, *x[:-2], dtype="int32"))


def cases() -> list[Case]:
    """All of them."""
    book = Book("rope")
    for style in STYLES:
        for head in (64, 80, 120, 256):
            book.add(f"{style}-{head}", _plain((11, 17, head), style), corner="vLLM's heads, positions up to 8191")
            book.add(f"{style}-{head}-32", _plain((11, 3, head), style, 32), corner="32 numbers turn, the rest passes")
        for rotary in (32, 64, 96, 128):
            book.add(f"{style}-part-{rotary}-of-128", _plain((4, 4, 128), style, rotary), corner="partial rotation")
        book.add(f"{style}-batch", _plain((5, 11, 17, 64), style), corner="[batch, tokens, heads, dim]")
        book.add(f"{style}-base-500000", _plain((7, 2, 64), style, base="500000.0"), corner="another base")
        book.add(f"{style}-far", _plain((6, 2, 64), style, first=4000), corner="beyond 2048 an angle in half is wrong")
        for most in (100_000, 2**31 - 1):
            far = _plain((6, 2, 64), style, most=most, first=most // 2)
            book.add(f"{style}-up-to-{most}", far, ("fp32",), "an angle in fp32 is wrong by 1e-3 at 100000")
        book.add(f"{style}-identity", _zero(style), corner="position 0 changes nothing")
        book.add(f"{style}-padded", _padded(style), corner="sliced out of a wider tensor")
        book.add(f"{style}-heads-first", _heads_first(style), corner="heads outside tokens in memory")
        for offset in (15, 99):
            book.add(f"{style}-offset-{offset}", _counting(style, offset), corner="positions that count on")
        book.add(f"{style}-in-place", _in_place(style), corner="Y is X")
    book.add("no-tokens", _plain((0, 2, 8), "neox"), corner="nothing to turn")
    book.add("one-pair", _plain((5, 1, 2), "neox", most=9), corner="one pair")
    _refused(book)
    return book.cases


def _zero(style: str) -> Make:
    def make(m: Maker) -> Made:
        x = m.normal(3, 2, 16)
        return Made({"X": x, "positions": m.full(0, 3, dtype="int32")}, {"style": style}, want={"Y": x.astype(float)})

    return make


def _padded(style: str) -> Make:
    def make(m: Maker) -> Made:
        x, positions = strided(m.normal(9, 3, 64), gap=16), m.ints(0, 99, 9, dtype="int32")
        return Made({"X": x, "positions": positions}, {"style": style}, {"Y": Wish(strides=(240, 80, 1))})

    return make


def _heads_first(style: str) -> Make:
    def make(m: Maker) -> Made:
        x = strided(m.normal(2, 9, 3, 16), (0, 2, 1, 3))
        return made({"style": style}, X=x, positions=m.ints(0, 99, 2, 9, dtype="int32"))

    return make


def _counting(style: str, offset: int) -> Make:
    positions = np.arange(offset, offset + 19, dtype=np.int32)
    return lambda m: made({"style": style}, X=m.normal(19, 2, 64), positions=positions)


def _in_place(style: str) -> Make:
    def make(m: Maker) -> Made:
        inputs = {"X": m.normal(5, 2, 32), "positions": m.ints(0, 99, 5, dtype="int32")}
        return Made(inputs, {"style": style}, {"Y": Wish(alias="X")})

    return make


def _refused(book: Book) -> None:
    book.refuse("odd", "3 numbers cannot be paired", _plain((2, 1, 8), "neox", 3))
    book.refuse("odd-head", "7 numbers cannot be paired", _plain((2, 1, 7), "interleaved"))
    book.refuse("too-many", "10 of 8 numbers", _plain((2, 1, 8), "neox", 10))
    book.refuse("negative", "-2 numbers", _plain((2, 1, 8), "neox", -2))
    book.refuse("no-style", "style has no default", _without_style)
    book.refuse("style", "no such style", _plain((2, 1, 8), "gptj"))
    book.refuse("positions", "three positions for two tokens", _wrong_positions)


def _without_style(m: Maker) -> Made:
    return made(X=m.normal(2, 1, 8), positions=m.ints(0, 9, 2, dtype="int32"))


def _wrong_positions(m: Maker) -> Made:
    return made({"style": "neox"}, X=m.normal(2, 1, 8), positions=m.ints(0, 9, 3, dtype="int32"))
