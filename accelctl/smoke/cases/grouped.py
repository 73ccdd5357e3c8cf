"""Cases of grouped_gemm: sizes of PyTorch, FlashInfer and fused-MoE tests, empty groups, rows that belong to none."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import FLOATS, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Refusal, strided
from accelctl.smoke.numbers import Array


def _offs(*ends: int) -> Array:
    return np.array(ends, np.int32)


def _plain(ends: tuple[int, ...], length: int, columns: int, rows: int = -1) -> Make:
    total = max((*ends, 0)) if rows < 0 else rows
    return lambda m: made(A=m.normal(total, length), B=m.normal(len(ends), length, columns), offs=_offs(*ends))


def cases() -> list[Case]:
    """All of them."""
    book = Book("grouped_gemm")
    book.add("four-groups", _plain((16, 32, 48, 64), 64, 32), corner="PyTorch's tests")
    book.add("empty-group", _plain((16, 16, 48, 64), 64, 32), corner="equal offsets: the group writes nothing")
    book.add("empty-first", _plain((0, 0, 5), 8, 3), corner="the first groups are empty")
    book.add("empty-last", _plain((2, 5, 5, 5), 8, 3), corner="the last groups are empty")
    book.add("one-takes-all", _plain((0, 9, 9), 33, 7), corner="all rows in one group")
    book.add("no-rows", _plain((0, 0, 0), 8, 3), corner="T = 0")
    book.add("k-0", _plain((2, 4), 0, 3), corner="K = 0 gives zeros")
    book.add("weights-transposed", _transposed, corner="B is a transposed view of [G,N,K]")
    book.add("rows-apart", _apart, corner="rows of A with gaps")
    book.add("unused-rows", _unused, corner="NaN in rows of no group must not appear elsewhere")
    book.add("small-integers", _small_integers, corner="integers in [-4,4]: every order gives the same")
    book.add("77-groups", _segments(77, 3, 128, 128), corner="FlashInfer's sizes: many small groups")
    book.add("k511", _segments(8, 4, 511, 128), corner="a length that alignment does not divide")
    book.add("k1024", _segments(8, 28, 1024, 128), corner="fused-MoE sizes")
    book.add("64-experts", _segments(64, 3, 128, 256), corner="fused-MoE sizes")
    book.add("k8192", _plain((1, 4), 8192, 16), corner="sums in fp16 or bf16 show here")
    book.add("199-groups", _segments(199, 10, 1024, 1024), ("fp16",), "FlashInfer's sizes", long=True)
    _refused(book)
    return book.cases


def _transposed(m: Maker) -> Made:
    b = strided(m.normal(3, 24, 10), (0, 2, 1))
    return made(A=m.normal(12, 24), B=b, offs=_offs(5, 6, 12))


def _apart(m: Maker) -> Made:
    return made(A=strided(m.normal(12, 24), gap=8), B=m.normal(3, 24, 10), offs=_offs(5, 6, 12))


def _unused(m: Maker) -> Made:
    a = m.normal(9, 16)
    a[6:] = np.nan
    return made(A=a, B=m.normal(3, 16, 5), offs=_offs(1, 4, 6))


def _small_integers(m: Maker) -> Made:
    inputs = {"A": m.ints(-4, 4, 10, 48), "B": m.ints(-4, 4, 4, 48, 7), "offs": _offs(3, 3, 4, 10)}
    return Made(inputs, exact=True)


def _segments(groups: int, rows: int, length: int, columns: int) -> Make:
    """Groups of random sizes, ``rows`` on average."""

    def make(m: Maker) -> Made:
        ends = np.sort(m.rng.integers(0, groups * rows, groups, endpoint=True)).astype(np.int32)
        return made(A=m.normal(groups * rows, length), B=m.normal(groups, length, columns, scale=0.1), offs=ends)

    return make


def _refused(book: Book) -> None:
    for name, ends in (("decreasing", (4, 2, 6)), ("beyond", (2, 4, 9))):
        why = f"offsets {ends} of 6 rows: {'they decrease' if name == 'decreasing' else 'the last one is too large'}"
        book.add(f"refused-{name}", _wrong_offsets(ends, why), ("fp32",), why)
    book.refuse(
        "lengths", "A has 4 columns, B 5 rows", lambda m: made(A=m.normal(6, 4), B=m.normal(2, 5, 3), offs=_offs(2, 6))
    )
    book.refuse(
        "count", "two offsets for three groups", lambda m: made(A=m.normal(6, 4), B=m.normal(3, 4, 3), offs=_offs(2, 6))
    )
    book.refuse(
        "rank", "B has two dimensions", lambda m: made(A=m.normal(6, 4), B=m.normal(4, 3), offs=_offs(6)), FLOATS
    )
    book.refuse("mixed", "element types differ", _mixed, ("fp16",))


def _wrong_offsets(ends: tuple[int, ...], why: str) -> Make:
    def make(m: Maker) -> Made:
        inputs = {"A": m.normal(6, 4), "B": m.normal(3, 4, 3), "offs": _offs(*ends)}
        return Made(inputs, refusal=Refusal(why, data=True))

    return make


def _mixed(m: Maker) -> Made:
    return made(A=m.normal(6, 4), B=m.normal(2, 4, 3, dtype="bf16"), offs=_offs(2, 6))
