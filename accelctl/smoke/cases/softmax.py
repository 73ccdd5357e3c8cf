"""Cases of softmax: axes, long rows, overflow without the maximum, rows of -inf."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import HALVES, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, strided


def _plain(x: tuple[int, ...], axis: int | None = None, spread: float = 1.0) -> Make:
    attrs = {} if axis is None else {"axis": str(axis)}
    return lambda m: made(attrs, X=m.normal(*x, scale=spread))


def cases() -> list[Case]:
    """All of them."""
    book = Book("softmax")
    for name, x, axis in (
        ("vector", (5,), 0),
        ("square-axis0", (5, 5), 0),
        ("square-axis1", (5, 5), 1),
        ("square-last", (5, 5), -1),
        ("cube-axis2", (5, 10, 5), 2),
        ("empty-axis", (5, 0, 0), -1),
        ("scalar", (), 0),
        ("onnx-axis0", (3, 4, 5), 0),
        ("onnx-axis1", (3, 4, 5), 1),
        ("onnx-axis-minus2", (3, 4, 5), -2),
    ):
        book.add(name, _plain(x, axis), corner="PyTorch's and ONNX's tests")
    book.add("default-axis", _plain((3, 4, 5)), corner="the last axis without the attribute")
    for length in (1, 2, 31, 32, 33, 1023, 1024, 1025, 32000, 128256):
        book.add(f"n{length}", _plain((2, length), -1, 2.0), corner="row lengths up to a vocabulary")
    _values(book)
    book.refuse("axis", "axis 2 of two dimensions", _plain((2, 3), 2))
    book.refuse("axis-negative", "axis -3 of two dimensions", _plain((2, 3), -3))
    book.refuse("axis-text", "axis is no number", lambda m: made({"axis": "last"}, X=m.normal(2, 3)))
    return book.cases


def _values(book: Book) -> None:
    inf = np.inf
    for name, rows, corner in (
        ("example", [[-1, 0, 1]], "ONNX's example"),
        ("large-number", [[0, 1, 2, 3], [10000, 10001, 10002, 10003]], "ONNX's large numbers"),
        ("all-masked", [[-inf, -inf], [0, 1]], "a row of -inf is NaN, its neighbour is not"),
        ("one-masked", [[1, -inf, 2]], "exactly 0 where x is -inf"),
        ("plus-inf", [[1, inf, 2], [1, 2, 3]], "+inf makes its row NaN"),
        ("nan", [[1, np.nan, 2], [1, 2, 3]], "NaN makes its row NaN"),
    ):
        book.add(name, _rows(rows), corner=corner)
    book.add("1e30", _rows([[1e30, 1e30, -1e30], [-1e30, -1e30, -1e30]]), ("fp32", "bf16"), "huge values")
    book.add("fp32-result", _fp32((3, 50)), HALVES, "half operand, result in fp32")
    book.add("70000-columns", _fp32((1, 70000), 0.0), ("fp16",), "a sum in fp16 overflows beyond 65504 columns")
    book.add("transposed", lambda m: made({"axis": "1"}, X=strided(m.normal(7, 9), (1, 0))), corner="strided")
    book.add("result-apart", _apart, corner="rows with gaps on both sides")
    want = {"Y": np.array([[0.66524096, 0.09003057, 0.24472847]])}
    book.add("ops-01", _known([[12, 10, 11]], want), ("fp16",), "OPS-01: exp(12) is above 65504")
    want = {"Y": np.array([[0.5, 0.5]])}
    book.add("ops-01-low", _known([[-60000, -60000]], want), ("fp16",), "OPS-01: exp underflows without the maximum")
    want = {"Y": np.full((1, 512), 0.001953125)}
    book.add("ops-03b", _known(np.zeros((1, 512)), want), ("bf16",), "OPS-03: a sum in bf16 stops at 256")


def _rows(rows: object) -> Make:
    return lambda m: made(X=m.values(rows))


def _known(rows: object, want: dict[str, np.ndarray]) -> Make:
    return lambda m: Made({"X": m.values(rows)}, want=want)


def _fp32(x: tuple[int, ...], spread: float = 1.0) -> Make:
    return lambda m: Made({"X": m.normal(*x, scale=spread)}, outputs={"Y": Wish("fp32")})


def _apart(m: Maker) -> Made:
    return Made({"X": strided(m.normal(4, 10), gap=3)}, outputs={"Y": Wish(strides=(16, 1))})
