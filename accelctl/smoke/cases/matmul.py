"""Cases of matmul: shapes of PyTorch, ONNX and CUTLASS tests, edges of tiles, views, sums that a narrow accumulator
loses, integers."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import FLOATS, HALVES, INTS, Book, made
from accelctl.smoke.cases.record import Arg, Case, Made, Make, Maker, Wish, dense, strided
from accelctl.smoke.numbers import NUMPY

_PYTORCH = (
    ((20,), (20,)),
    ((5, 10), (10,)),
    ((10,), (10, 5)),
    ((5, 0), (0, 10)),
    ((5, 5, 10), (10, 5)),
    ((5, 5, 0), (0, 5)),
    ((0, 0), (5, 0, 0)),
    ((5, 5, 10, 10), (5, 5, 10, 5)),
    ((5, 5, 5), (1, 5, 5)),
)
_ONNX = (
    ((3, 4), (4, 3)),
    ((2, 3, 4), (2, 4, 3)),
    ((1, 2, 3, 4), (1, 2, 4, 3)),
    ((3, 1, 3, 4), (1, 2, 4, 2)),
    ((3,), (3, 3, 1)),
    ((3, 1, 4, 2), (2,)),
    ((3,), (3,)),
)


def _plain(a: tuple[int, ...], b: tuple[int, ...]) -> Make:
    return lambda m: made(A=m.normal(*a), B=m.normal(*b))


def cases() -> list[Case]:
    """All of them."""
    book = Book("matmul")
    for a, b in (*_PYTORCH, *_ONNX):
        name = "x".join(map(str, a)) + "-by-" + "x".join(map(str, b))
        book.add(name, _plain(a, b), corner="shape of PyTorch's or ONNX's tests")
    _edges(book)
    _views(book)
    _sums(book)
    _values(book)
    _integers(book)
    _refused(book)
    return list({case.id: case for case in book.cases}.values())


def _edges(book: Book) -> None:
    for rows in (1, 7, 16, 17, 63, 64, 65, 127, 128, 129):
        book.add(f"m{rows}", _plain((rows, 33), (33, 13)), corner="rows at the edge of a tile, a prime of columns")
    for length in (1, 15, 16, 31, 33, 4095, 4096, 4097):
        book.add(f"k{length}", _plain((7, length), (length, 11)), corner="length of the sum at the edge of a tile")
    for length in (256, 264, 512, 520):
        book.add(f"tiles-k{length}", _plain((136, length), (length, 72)), corner="whole tiles and 8 more")
    book.add("no-rows", _plain((0, 4), (4, 3)), corner="M = 0 gives nothing")
    book.add("no-columns", _plain((3, 4), (4, 0)), corner="N = 0 gives nothing")
    book.add("no-batch", _plain((0, 3, 4), (4, 3)), corner="batch 0 gives nothing")
    book.add("no-sum", _plain((2, 0), (0, 2)), corner="K = 0 gives zeros")


def _views(book: Book) -> None:
    book.add("rows-apart", lambda m: made(A=strided(m.normal(17, 33), gap=5), B=m.normal(33, 13)), corner="strided A")
    book.add(
        "transposed-b",
        lambda m: made(A=m.normal(17, 33), B=strided(m.normal(33, 13), (1, 0))),
        corner="a linear layer's weight [N,K], used transposed",
    )
    book.add("transposed-a", lambda m: made(A=strided(m.normal(17, 33), (1, 0)), B=m.normal(33, 13)))
    book.add(
        "heads-transposed",
        lambda m: made(A=strided(m.normal(2, 3, 5, 8), (0, 2, 1, 3)), B=strided(m.normal(2, 3, 8, 7), (0, 3, 1, 2))),
        corner="two batch axes with strides of their own",
    )
    book.add("offset", lambda m: made(A=dense(m.normal(5, 7), 3), B=dense(m.normal(7, 3), 1)), corner="offset pointer")
    book.add("result-apart", _result_apart, corner="strided result: the gaps are not written")
    book.add("ops-05a", _ops_05a, corner="OPS-05: transposed view of the same data")
    book.add("ops-05b", _ops_05b, corner="OPS-05: heads out of the middle, batch strides")
    book.add("ops-05c", _ops_05c, corner="OPS-05: the stride of an axis of length 1 means nothing")


def _result_apart(m: Maker) -> Made:
    return made(A=m.normal(5, 7), B=m.normal(7, 3))._replace(outputs={"Y": Wish(strides=(8, 2))})


def _ops_05a(m: Maker) -> Made:
    data = m.values(range(6))
    a = Arg(data, (2, 3), (3, 1))
    return Made({"A": a, "B": Arg(data, (3, 2), (1, 3))}, want={"Y": np.array([[5, 14], [14, 50]])}, exact=True)


def _ops_05b(m: Maker) -> Made:
    x = Arg(m.values(range(8)), (2, 2, 2, 1), (4, 1, 2, 1))
    want = np.array([0, 2, 1, 3, 4, 6, 5, 7]).reshape(2, 2, 2, 1)
    return Made({"A": x, "B": m.values([[1]])}, want={"Y": want}, exact=True)


def _ops_05c(m: Maker) -> Made:
    row, column = Arg(m.values([1, 2, 3]), (1, 3), (999, 1)), Arg(m.values([4, 5, 6]), (3, 1), (1, 7))
    return Made({"A": row, "B": column}, want={"Y": np.array([[32]])}, exact=True)


def _sums(book: Book) -> None:
    book.add("k8192", _plain((4, 8192), (8192, 32)), corner="sums in fp16 or bf16 show here")
    book.add("small-integers", _exact(17, 96, 13), corner="integers in [-4,4]: every order gives the same")
    book.add("small-integers-k4096", _exact(5, 4096, 7), corner="the same over a long sum")
    book.add("fp32-result", _fp32_result, HALVES, "half operands, result in fp32: no rounding at the end")
    ones = {"bf16": "a", "fp16": "c"}
    for dtype, length in (("bf16", 512), ("fp16", 4096)):
        book.add(f"ops-03{ones[dtype]}", _ones(length), (dtype,), f"OPS-03: {length} ones are {length}")
    book.add("ops-03d", _overflow(""), ("fp16",), "OPS-03: 131072 is inf in fp16, not NaN and not 65504")
    book.add("ops-03d-fp32", _overflow("fp32"), ("fp16",), "OPS-03: 131072 fits into an fp32 result")


def _exact(rows: int, length: int, columns: int) -> Make:
    return lambda m: Made({"A": m.ints(-4, 4, rows, length), "B": m.ints(-4, 4, length, columns)}, exact=True)


def _fp32_result(m: Maker) -> Made:
    return made(A=m.normal(9, 130), B=m.normal(130, 11))._replace(outputs={"Y": Wish("fp32")})


def _ones(length: int) -> Make:
    return lambda m: Made(
        {"A": m.full(1, 1, length), "B": m.full(1, length, 1)}, want={"Y": np.array([[length]])}, exact=True
    )


def _overflow(dtype: str) -> Make:
    wish = {"Y": Wish(dtype)} if dtype else {}
    want = {"Y": np.array([[131072.0]])}
    return lambda m: Made({"A": m.full(32, 1, 128), "B": m.full(32, 128, 1)}, {}, wish, want=want, exact=True)


def _values(book: Book) -> None:
    book.add("zero-times-inf", _zero_times_inf, corner="0*inf is NaN and is not skipped")
    book.add("tf32-asked", lambda m: made({"tf32": "true"}, A=m.normal(17, 64), B=m.normal(64, 13)), ("fp32",))
    book.add("ops-08-8", _ops_08(False), ("fp32",), "OPS-08: a kernel kept for dense operands", sequence="ops-08")
    book.add("ops-08-9", _ops_08(True), ("fp32",), "OPS-08: the same shapes, B transposed", sequence="ops-08")


def _zero_times_inf(m: Maker) -> Made:
    a, b = m.full(0, 2, 3), m.normal(3, 4)
    b[1, 2], b[0, 1] = np.inf, np.nan
    a[1] = m.values([1, 2, 3])
    return made(A=a, B=b)


def _ops_08(transposed: bool) -> Make:
    """The same bytes as B, read row by row or column by column."""
    steps = (1, 4) if transposed else (4, 1)
    return lambda m: made(A=m.values(np.arange(12).reshape(3, 4)), B=Arg(m.values(range(16)), (4, 4), steps))


def _integers(book: Book) -> None:
    book.add("full-range", _plain((7, 33), (33, 5)), INTS, "int8 and uint8 sum in int32; int32 wraps")
    book.add("extremes", _extremes, INTS, "the lowest number squared, 300 times")
    book.add("transposed-b", lambda m: made(A=m.normal(6, 17), B=strided(m.normal(17, 5), (1, 0))), INTS)
    book.add("no-sum", _plain((2, 0), (0, 2)), INTS, "K = 0 gives zeros")


def _extremes(m: Maker) -> Made:
    limits = np.iinfo(NUMPY[m.dtype])
    return made(A=m.full(limits.min, 2, 300), B=m.full(limits.min or limits.max, 300, 2))


def _refused(book: Book) -> None:
    book.refuse("mixed", "element types differ", lambda m: made(A=m.normal(2, 3), B=m.normal(3, 2, dtype="fp16")))
    book.refuse("mixed-halves", "element types differ", _mixed_halves, ("fp16",))
    book.refuse("mixed-integers", "element types differ", _mixed_integers, ("int8",))
    book.refuse("lengths", "3 columns, 4 rows", _plain((2, 3), (4, 2)), FLOATS)
    book.refuse("batches", "batches of 2 and 3", _plain((2, 2, 3), (3, 3, 2)))
    book.refuse("scalar", "a scalar has no matrix product", _plain((), (3, 2)))
    book.refuse("attribute", "no such attribute", lambda m: made({"transA": "1"}, A=m.normal(2, 2), B=m.normal(2, 2)))
    book.refuse("missing", "B is missing", lambda m: made(A=m.normal(2, 2)))


def _mixed_halves(m: Maker) -> Made:
    return made(A=m.normal(2, 3), B=m.normal(3, 2, dtype="bf16"))


def _mixed_integers(m: Maker) -> Made:
    return made(A=m.ints(0, 9, 2, 3), B=m.ints(0, 9, 3, 2, dtype="uint8"))
