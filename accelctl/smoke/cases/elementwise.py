"""Cases of relu, add and silu_and_mul."""

from __future__ import annotations

import numpy as np

from accelctl.smoke.cases.book import FLOATS, HALVES, INTS, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, dense, repeated, strided
from accelctl.smoke.numbers import NUMPY, Array

Shape = tuple[int, ...]
ALL = (*FLOATS, *INTS)
_LENGTHS = (0, 1, 31, 32, 33, 1023, (1 << 20) + 1)


def relu_cases() -> list[Case]:
    """All of relu."""
    book = Book("relu")
    for length in _LENGTHS:
        book.add(f"n{length}", _x((length,)), ALL if length < 2000 else FLOATS, "lengths around the width of a group")
    book.add("scalar", _x(()), ALL, "no dimensions")
    book.add("offset", lambda m: made(X=dense(m.normal(37), 1)), ALL, "the pointer is one element off")
    book.add("strided", lambda m: made(X=strided(m.normal(5, 7), gap=2)), ALL, "rows with gaps")
    book.add("transposed", lambda m: made(X=strided(m.normal(3, 4, 5), (2, 0, 1))), ALL, "axes in another order")
    book.add("special", _special, corner="NaN stays NaN, inf stays, -0.0 is a zero")
    book.add("extremes", _relu_extremes, INTS, "the ends of the range")
    book.add("in-place", lambda m: Made({"X": m.normal(40)}, outputs={"Y": Wish(alias="X")}), corner="Y is X")
    book.add("ops-08-6", _x((8,)), ("fp32",), "OPS-08: kept for fp32", sequence="ops-08")
    book.add("ops-08-7", _x((8,)), ("fp16",), "OPS-08: the same shape in fp16", sequence="ops-08")
    book.refuse("attribute", "no such attribute", lambda m: made({"inplace": "true"}, X=m.normal(3)))
    return book.cases


def _x(shape: Shape) -> Make:
    return lambda m: made(X=m.normal(*shape))


def _special(m: Maker) -> Made:
    return made(X=m.values([-1, 0, -0.0, 2.5, np.inf, -np.inf, np.nan, 1e-7, -1e-7]))


def _relu_extremes(m: Maker) -> Made:
    limits = np.iinfo(NUMPY[m.dtype])
    return made(X=m.values([limits.min, max(limits.min, -1), 0, 1, limits.max]))


def add_cases() -> list[Case]:
    """All of add."""
    book = Book("add")
    for name, a, b in (
        ("3d", (3, 4, 5), (3, 4, 5)),
        ("last-axis", (3, 4, 5), (5,)),
        ("scalar-right", (3, 4), ()),
        ("scalar-left", (), (3, 4)),
        ("scalars", (), ()),
        ("one", (3, 4), (1,)),
        ("left-is-narrow", (4,), (3, 4)),
        ("both-ways", (5, 1, 3), (1, 4, 1)),
        ("empty", (0, 3), (0, 3)),
        ("empty-broadcast", (0, 3), (1, 3)),
        ("empty-middle", (2, 0, 3), (1, 3)),
    ):
        book.add(name, _ab(a, b), ALL, "PyTorch's and ONNX's shapes")
    _add_views(book)
    _add_values(book)
    _promotion(book)
    _ops_06(book)
    for number, a, b in ((1, (512,), (512,)), (2, (4096,), (4096,)), (3, (96,), (96,))):
        book.add(f"ops-08-{number}", _ab(a, b), ("fp32",), "OPS-08: another length", sequence="ops-08")
    book.add("ops-08-4", _ab((10, 1), (1, 10)), ("fp32",), "OPS-08: broadcast to (10,10)", sequence="ops-08")
    book.add("ops-08-5", _ab((10, 10), (10, 10)), ("fp32",), "OPS-08: the same result shape", sequence="ops-08")
    _add_refused(book)
    return book.cases


def _ab(a: Shape, b: Shape, alpha: str = "") -> Make:
    attrs = {"alpha": alpha} if alpha else {}
    return lambda m: made(attrs, A=m.normal(*a), B=m.normal(*b))


def _add_views(book: Book) -> None:
    book.add("repeated", _repeated, ALL, "strides of 0")
    book.add("transposed", lambda m: made(A=strided(m.normal(6, 5), (1, 0)), B=m.normal(6, 5)), ALL, "A transposed")
    book.add("offset", lambda m: made(A=dense(m.normal(33), 1), B=dense(m.normal(33), 3)), ALL, "offset pointers")
    book.add("in-place", _add_in_place, ALL, "C is A")
    book.add("result-apart", _add_apart, ALL, "a strided result: the gaps are not written")


def _repeated(m: Maker) -> Made:
    return made(A=repeated(m.normal(4, 1), (4, 6)), B=repeated(m.normal(6), (4, 6)))


def _add_in_place(m: Maker) -> Made:
    return Made({"A": m.normal(40), "B": m.normal(40)}, outputs={"C": Wish(alias="A")})


def _add_apart(m: Maker) -> Made:
    return Made({"A": m.normal(3, 5), "B": m.normal(5)}, outputs={"C": Wish(strides=(16, 2))})


def _add_values(book: Book) -> None:
    book.add("alpha-2", _ab((40,), (40,), "2.0"), ALL, "A + 2*B; integers wrap")
    book.add("alpha-minus-1", _ab((40,), (40,), "-1.0"), ALL, "a difference")
    book.add("alpha-0.3125", _ab((40,), (40,), "0.3125"), corner="a factor that is no power of two")
    book.add("wrap", _wrap, INTS, "beyond the range integers wrap")
    book.add("inf-and-nan", _infinite, corner="inf - inf is NaN")
    book.add("overflow", _overflow, corner="beyond the largest number: inf")
    book.add("cancel", _cancel, corner="one rounding: what cancels is exact")
    book.add("subnormal", _subnormal, corner="subnormal numbers are kept (a device that flushes them is known to)")


def _wrap(m: Maker) -> Made:
    limits = np.iinfo(NUMPY[m.dtype])
    return made(A=m.values([limits.max, limits.min, limits.max]), B=m.values([1, limits.max, limits.max]))


def _infinite(m: Maker) -> Made:
    inf = np.inf
    return made(A=m.values([inf, inf, -inf, np.nan, 1]), B=m.values([-inf, 1, -inf, 1, np.nan]))


def _overflow(m: Maker) -> Made:
    most = {"fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.4028234663852886e38}[m.dtype]
    return made(A=m.values([most, most, -most]), B=m.values([most, 1, -most]))


def _cancel(m: Maker) -> Made:
    a = m.normal(64)
    return made(A=a, B=m.values(-a.astype(np.float64) * (1 + m.rng.choice([0, 2.0**-6, 2.0**-3], 64))))


def _subnormal(m: Maker) -> Made:
    least = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149}[m.dtype]
    return made(A=m.values(np.arange(8) * least), B=m.values(np.arange(8)[::-1] * least * 3))


def _promotion(book: Book) -> None:
    for one, other in (("int32", "fp16"), ("int32", "bf16"), ("int8", "fp32"), ("uint8", "fp16")):
        book.add(f"with-{other}", _promoted(other), (one,), f"{one} + {other} = {other}")
        book.add(f"with-{one}", _promoted(one), (other,), f"{other} + {one} = {other}")
    for one, other in (("bf16", "fp16"), ("fp16", "bf16"), ("fp16", "fp32"), ("fp32", "bf16")):
        book.add(f"with-{other}", _promoted(other), (one,), f"{one} + {other} = fp32")


def _promoted(other: str) -> Make:
    """Small whole numbers on the integer side, which every floating type has."""

    def side(m: Maker, dtype: str, shape: Shape) -> Array:
        low = 0 if dtype == "uint8" else -100
        return m.ints(low, 100, *shape, dtype=dtype) if dtype in INTS else m.normal(*shape, dtype=dtype)

    return lambda m: made(A=side(m, m.dtype, (4, 9)), B=side(m, other, (9,)))


def _ops_06(book: Book) -> None:
    b = np.array([10, 20]).reshape(1, 2, 1, 1)
    wide = np.repeat([10.0, 20.0], 4).reshape(1, 2, 2, 2)
    grid = np.arange(4) + 1 + np.array([[0], [10], [20]])
    for name, left, right, want in (
        ("a", np.zeros((1, 2, 2, 2)), b, wide),
        ("b", np.array([[0], [10], [20]]), np.array([[1, 2, 3, 4]]), grid),
        ("c", np.ones((2, 2)), np.ones((2, 1)), np.full((2, 2), 2)),
        ("e", np.array(1), np.zeros((0, 3)), np.zeros((0, 3))),
    ):
        book.add(f"ops-06{name}", _known(left, right, want), ALL, "OPS-06: broadcast from the right")
    said = ("(10,1)", "(3,1)")
    book.refuse("ops-06d", "(10,1) and (3,1) do not broadcast", _ab((10, 1), (3, 1)), ALL, said)


def _known(left: Array, right: Array, want: Array) -> Make:
    return lambda m: Made({"A": m.values(left), "B": m.values(right)}, want={"C": want})


def _add_refused(book: Book) -> None:
    book.refuse("float-alpha", "alpha 0.5 with integers", _ab((3,), (3,), "0.5"), INTS)
    for one, other in (("int8", "int32"), ("uint8", "int8")):
        book.refuse(f"with-{other}", "integers of two kinds", _promoted(other), (one,))
    book.refuse("mismatch", "lengths 3 and 4", _ab((2, 3), (2, 4)), HALVES, ("(2,3)", "(2,4)"))


def silu_cases() -> list[Case]:
    """All of silu_and_mul."""
    book = Book("silu_and_mul")
    for shape in ((7, 1024), (83, 1024), (7, 27648), (1, 1, 256), (2, 3, 22016), (1, 32768), (5, 2), (0, 8), (3, 0)):
        book.add("x".join(map(str, shape)), _x(shape), corner="vLLM's and FlashInfer's sizes")
    book.add("vector", _x((10,)), corner="one row")
    book.add("special", _silu_special, corner="silu(0) = 0, silu(inf) = inf, NaN stays, exp(-x) overflows")
    book.add("gate-first", _gate_first, corner="the gate is the first half")
    book.add("large-gate", lambda m: made(X=m.normal(5, 64, scale=20)), corner="where sigmoid is 0 or 1")
    book.add("rows-apart", _silu_apart, corner="rows with gaps")
    book.add("2048x27648", _x((2048, 27648)), ("bf16",), "vLLM's size", long=True)
    book.refuse("odd", "three numbers have no halves", _x((2, 3)))
    book.refuse("scalar", "a scalar has no halves", _x(()))
    return book.cases


def _silu_special(m: Maker) -> Made:
    gate = [0, -0.0, np.inf, -np.inf, np.nan, -88, -100, -200, -1000, 100, 1000, 1e-6]
    return made(X=m.values([*gate, *([2] * len(gate))]))


def _gate_first(m: Maker) -> Made:
    return Made({"X": m.values([[0, 0, 100, 3]])}, want={"Y": np.array([[0.0, 0.0]])})


def _silu_apart(m: Maker) -> Made:
    return Made({"X": strided(m.normal(6, 20), gap=4)}, outputs={"Y": Wish(strides=(16, 1))})
