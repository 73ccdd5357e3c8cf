"""Cases of layernorm and rmsnorm: where eps stands, variance far from the mean, odd lengths, rows with gaps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from accelctl.smoke.cases.book import FLOATS, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, strided

Shape = tuple[int, ...]
_EPS = {"epsilon": "1e-05"}


def layernorm_cases() -> list[Case]:
    """All of layernorm."""
    book = Book("layernorm")
    _pytorch(book)
    for rank in (2, 3, 4):
        for axis in range(-rank, rank):
            name = f"rank{rank}-axis{axis}".replace("axis-", "axis-minus")
            book.add(name, _layer((2, 3, 4, 5)[4 - rank :], axis, True, True), corner="every axis, as ONNX tests")
    for length in (1, 2, 7, 255, 256, 257, 768, 1023, 4096, 5120, 8193):
        book.add(f"n{length}", _layer((3, length), -1, True, True), corner="row lengths around powers of two")
    _layer_values(book)
    book.add("1151x8192", _layer((1151, 8192), -1, True, True), ("fp16",), "Triton's size", long=True)
    _layer_refused(book)
    return book.cases


def _layer(x: Shape, axis: int, scale: bool, bias: bool, eps: str = "1e-05", spread: float = 1.0) -> Make:
    inner = x[axis:] if axis else x

    def make(m: Maker) -> Made:
        weights = m.normal(*inner) if scale else None
        biases = m.normal(*inner) if bias else None
        return made({"epsilon": eps, "axis": str(axis)}, X=m.normal(*x, scale=spread), scale=weights, B=biases)

    return make


def _pytorch(book: Book) -> None:
    kinds = {"": (True, True), "-no-bias": (True, False), "-no-scale": (False, True), "-bare": (False, False)}
    for suffix, (scale, bias) in kinds.items():
        book.add(
            f"eps-half{suffix}", _layer((1, 2, 3), 0, scale, bias, "0.5"), corner="PyTorch: all three axes, eps 0.5"
        )
        book.add(
            f"eps-negative{suffix}",
            _layer((2, 2, 3), 1, scale, bias, "-0.5", 3.0),
            corner="PyTorch accepts a negative eps",
        )
        book.add(f"one{suffix}", _layer((1,), 0, scale, bias), corner="N = 1 gives the bias")
        book.add(f"two{suffix}", _layer((1, 2), 1, scale, bias), corner="N = 2")
        book.add(f"no-rows{suffix}", _layer((0, 1), 1, scale, bias), corner="an empty batch gives nothing")
    book.add("no-columns", _layer((2, 0), 1, True, True), corner="an empty normalised axis gives nothing")


def _layer_values(book: Book) -> None:
    book.add("constant-row", _constant, corner="a constant row gives the bias")
    book.add("constant-rows", _constants, ("fp32",), "a mean that is rounded is not the number that all of a row are")
    book.add("mean-1000", _far, corner="mean 1000, deviation 1: a variance in one pass loses everything")
    book.add("small-variance", _layer((4, 96), -1, True, True, spread=1e-3), corner="eps is below the root")
    book.add("inf-and-nan", _not_finite, corner="inf or NaN in a row makes that row NaN, and no other")
    book.add("rows-apart", _layer_apart, corner="rows with gaps")
    book.add("transposed", _layer_transposed, corner="the normalised axis is the outer one in memory")
    for name, values, dtype in (
        ("a", [10000, 10001, 10002, 10003], "fp32"),
        ("b", [4096, 4097, 4098, 4099], "fp32"),
        ("c", [300, -300, 300, -300], "fp16"),
    ):
        book.add(f"ops-02{name}", _ops_02(values), (dtype,), "OPS-02: variance in one pass, or squares in fp16")


def _constant(m: Maker) -> Made:
    return made(_EPS, X=m.full(3, 2, 5), scale=m.normal(5), B=m.normal(5))


def _constants(m: Maker) -> Made:
    rows = np.array([[100.3], [4097.1], [-1000.7], [1e-3]])
    return made(_EPS, X=m.values(np.repeat(rows, 768, 1)), scale=m.normal(768))


def _far(m: Maker) -> Made:
    return made(_EPS, X=m.normal(4, 768, mean=1000), scale=m.normal(768), B=m.normal(768))


def _not_finite(m: Maker) -> Made:
    x = m.normal(4, 6)
    x[0, 2], x[1, 0], x[2, 5] = np.inf, -np.inf, np.nan
    return made(_EPS, X=x, scale=m.normal(6), B=m.normal(6))


def _layer_apart(m: Maker) -> Made:
    x = strided(m.normal(5, 33), gap=7)
    return Made({"X": x, "scale": m.normal(33)}, _EPS, {"Y": Wish(strides=(40, 1))})


def _layer_transposed(m: Maker) -> Made:
    return made(_EPS, X=strided(m.normal(6, 17), (1, 0)), scale=m.normal(17), B=m.normal(17))


def _ops_02(values: list[int]) -> Make:
    inner = 1 / np.sqrt(5)
    right = [1, -1, 1, -1] if values[0] == 300 else [-3 * inner, -inner, inner, 3 * inner]
    want = {"Y": np.array([right])}
    return lambda m: Made({"X": m.values([values]), "scale": m.full(1, 4), "B": m.full(0, 4)}, _EPS, want=want)


def _layer_refused(book: Book) -> None:
    book.refuse("no-eps", "epsilon has no default", lambda m: made(X=m.normal(2, 4)))
    book.refuse("axis", "axis 2 of two dimensions", lambda m: made({**_EPS, "axis": "2"}, X=m.normal(2, 4)))
    book.refuse("axis-negative", "axis -3 of two dimensions", lambda m: made({**_EPS, "axis": "-3"}, X=m.normal(2, 4)))
    book.refuse("scale", "the scale has another shape", lambda m: made(_EPS, X=m.normal(2, 4), scale=m.normal(2)))
    book.refuse(
        "scale-broadcast", "the scale does not broadcast", lambda m: made(_EPS, X=m.normal(2, 4), scale=m.normal(1))
    )
    book.refuse("bias", "the bias has another shape", lambda m: made(_EPS, X=m.normal(2, 4), B=m.normal(2, 4)))


def rmsnorm_cases() -> list[Case]:
    """All of rmsnorm."""
    book = Book("rmsnorm")
    for x in ((1, 2, 3), (2, 2, 3), (1,), (0, 1), (2, 0)):
        book.add("x".join(map(str, x)), _rms(x), corner="PyTorch's tests")
    book.add("to-1000", _rms((3, 64), spread=400.0), corner="values up to 1000")
    for hidden in (8, 768, 769, 5120, 5125, 8192):
        book.add(
            f"7x{hidden}", _rms((7, hidden), spread=0.5 / hidden), corner="vLLM's sizes: odd ones break wide loads"
        )
        book.add(f"7x{hidden}-residual", _fused((7, hidden)), corner="vLLM's sizes, with a residual")
    book.add("83x5125", _rms((83, 5125)), corner="vLLM's sizes")
    for hidden in (111, 500, 1024, 3072, 3584, 4096, 8192, 16384):
        book.add(f"1x{hidden}", _rms((1, hidden)), corner="FlashInfer's sizes")
    book.add("19x500", _rms((19, 500)), corner="FlashInfer's sizes")
    book.add("99x111", _rms((99, 111)), corner="FlashInfer's sizes")
    _rms_values(book)
    book.add("4096x8192", _rms((4096, 8192)), ("bf16",), "vLLM's size", long=True)
    book.add("989x16384", _rms((989, 16384)), ("fp16",), "FlashInfer's size", long=True)
    _rms_refused(book)
    return book.cases


def _rms(x: Shape, spread: float = 1.0, eps: str = "1e-06", scale: bool = True, variant: str = "plain") -> Make:
    attrs = {"epsilon": eps, "variant": variant}
    return lambda m: made(attrs, X=m.normal(*x, scale=spread), scale=m.normal(x[-1]) if scale else None)


def _fused(x: Shape, outputs: Mapping[str, Wish] | None = None) -> Make:
    attrs = {"epsilon": "1e-06", "variant": "fused_add"}
    asked = outputs or {"residual_out": Wish()}

    def make(m: Maker) -> Made:
        inputs = {"X": m.normal(*x), "residual": m.normal(*x), "scale": m.normal(x[-1])}
        return Made(inputs, attrs, asked)

    return make


def _rms_values(book: Book) -> None:
    book.add("zero-row", _zero_row, corner="a zero row gives 0")
    book.add("tiny-eps", _tiny_eps, ("fp32",), "an eps below fp32 is not 0: a zero row gives 0")
    book.add("60000", _large, ("fp16",), corner="squares of 60000 do not overflow")
    book.add("small", _rms((4, 96), spread=1e-3, eps="1e-05"), corner="eps is below the root")
    book.add("eps-1e-5", _rms((5, 40), eps="1e-05"), corner="the eps of other models")
    book.add("no-weights", _rms((5, 40), scale=False), corner="weights may be absent")
    book.add("gemma", _rms((5, 40), variant="gemma"), corner="gemma: the scale is 1 + w")
    book.add("in-place", _fused((5, 40), {"Y": Wish(alias="X"), "residual_out": Wish(alias="residual")}))
    book.add("residual-not-kept", _not_kept, corner="the sum is not asked for")
    book.add("rows-apart", _rms_apart, corner="the row stride is larger than the row")
    book.add("inf-and-nan", _rms_not_finite, corner="inf or NaN reach only their own row")


def _zero_row(m: Maker) -> Made:
    x = m.normal(3, 8)
    x[1] = 0
    return made({"epsilon": "1e-06"}, X=x, scale=m.normal(8))


def _tiny_eps(m: Maker) -> Made:
    return made({"epsilon": "1e-50"}, X=m.full(0, 2, 8), scale=m.normal(8))


def _large(m: Maker) -> Made:
    return made({"epsilon": "1e-06"}, X=m.values(np.where(m.normal(3, 32) > 0, 60000, -60000)), scale=m.normal(32))


def _not_kept(m: Maker) -> Made:
    return _fused((3, 16))(m)._replace(outputs={})


def _rms_apart(m: Maker) -> Made:
    x = strided(m.normal(7, 40), gap=24)
    return Made({"X": x, "scale": m.normal(40)}, {"epsilon": "1e-06"}, {"Y": Wish(strides=(64, 1))})


def _rms_not_finite(m: Maker) -> Made:
    x = m.normal(3, 6)
    x[0, 1], x[1, 2] = np.inf, np.nan
    return made({"epsilon": "1e-06"}, X=x, scale=m.normal(6))


def _rms_refused(book: Book) -> None:
    eps, fused = {"epsilon": "1e-06"}, {"epsilon": "1e-06", "variant": "fused_add"}
    book.refuse("no-eps", "epsilon has no default", lambda m: made(X=m.normal(2, 4), scale=m.normal(4)), FLOATS)
    book.refuse("scale", "the scale has another length", lambda m: made(eps, X=m.normal(2, 4), scale=m.normal(2)))
    book.refuse("no-residual", "fused_add needs a residual", lambda m: made(fused, X=m.normal(2, 4), scale=m.normal(4)))
    book.refuse(
        "residual", "the residual has another shape", lambda m: made(fused, X=m.normal(2, 4), residual=m.normal(4))
    )
    book.refuse("variant", "no such variant", lambda m: made({**eps, "variant": "t5"}, X=m.normal(2, 4)))
