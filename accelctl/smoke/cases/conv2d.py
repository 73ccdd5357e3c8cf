"""Cases of conv2d: geometry, groups, dilation, layouts, both rules of "same", and what must be refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from accelctl.smoke.cases.book import FLOATS, Book, made
from accelctl.smoke.cases.record import Case, Made, Make, Maker, Wish, strided

Shape = tuple[int, ...]

_PYTORCH: tuple[tuple[str, Shape, Shape, Mapping[str, str], bool], ...] = (
    ("stride2-pad2", (1, 3, 4, 4), (3, 3, 3, 3), {"strides": "2,2", "pads": "2,2,2,2"}, True),
    (
        "grouped-dilated",
        (2, 4, 8, 8),
        (2, 2, 3, 3),
        {"strides": "3,2", "pads": "2,1,2,1", "group": "2", "dilations": "4,4"},
        True,
    ),
    (
        "dilated-2x3",
        (1, 4, 5, 5),
        (1, 4, 2, 3),
        {"strides": "2,2", "pads": "1,1,1,1", "dilations": "2,3"},
        True,
    ),
    ("valid", (1, 4, 5, 5), (1, 4, 2, 3), {"auto_pad": "valid"}, True),
    ("same-dilated", (1, 4, 5, 5), (1, 4, 2, 3), {"auto_pad": "same_upper", "dilations": "3,3"}, True),
    ("depthwise", (1, 4, 6, 6), (4, 1, 3, 3), {"group": "4"}, True),
    ("two-groups", (2, 4, 6, 5), (6, 2, 3, 2), {"group": "2"}, True),
    ("no-bias", (1, 4, 5, 5), (3, 4, 2, 3), {}, False),
)
_ONNX: tuple[tuple[str, Shape, Shape, Mapping[str, str], bool], ...] = (
    ("padded", (1, 1, 5, 5), (1, 1, 3, 3), {"pads": "1,1,1,1"}, False),
    ("unpadded", (1, 1, 5, 5), (1, 1, 3, 3), {}, False),
    ("strides-padded", (1, 1, 7, 5), (1, 1, 3, 3), {"strides": "2,2", "pads": "1,1,1,1"}, False),
    ("strides-unpadded", (1, 1, 7, 5), (1, 1, 3, 3), {"strides": "2,2"}, False),
    ("strides-asymmetric", (1, 1, 7, 5), (1, 1, 3, 3), {"strides": "2,2", "pads": "1,0,1,0"}, False),
    ("pads-at-one-end", (1, 2, 5, 6), (3, 2, 3, 3), {"pads": "2,0,0,1"}, True),
    ("autopad-same", (1, 1, 5, 5), (1, 1, 3, 3), {"strides": "2,2", "auto_pad": "same_lower"}, False),
)
_MORE: tuple[tuple[str, Shape, Shape, Mapping[str, str], bool], ...] = (
    ("pointwise", (2, 8, 5, 7), (6, 8, 1, 1), {}, True),
    ("depthwise-wide", (1, 32, 9, 9), (64, 1, 3, 3), {"group": "32", "pads": "1,1,1,1"}, True),
    ("large-dilation", (1, 3, 20, 20), (4, 3, 3, 3), {"dilations": "8,9"}, True),
    ("k576", (1, 64, 8, 8), (16, 64, 3, 3), {"pads": "1,1,1,1"}, True),
    ("k4608", (1, 512, 4, 4), (8, 512, 3, 3), {}, False),
    ("uneven-strides", (1, 2, 6, 6), (3, 2, 3, 3), {"strides": "2,3"}, True),
    ("uneven-dilations", (1, 2, 9, 9), (3, 2, 3, 3), {"strides": "4,4", "dilations": "1,2"}, True),
    ("one-pixel", (1, 3, 1, 1), (2, 3, 1, 1), {}, True),
    ("empty-batch", (0, 3, 5, 5), (2, 3, 3, 3), {}, True),
    ("same-lower-even", (1, 2, 6, 7), (3, 2, 4, 2), {"auto_pad": "same_lower"}, True),
    ("same-upper-even", (1, 2, 6, 7), (3, 2, 4, 2), {"auto_pad": "same_upper"}, True),
)
OPS_04 = ((4, 3, 2), (5, 3, 2), (6, 3, 2), (224, 7, 2), (4, 2, 1), (32, 4, 1), (3, 1, 3))
"""Input, kernel, stride, the same along both axes."""


def _conv(x: Shape, w: Shape, attrs: Mapping[str, str], bias: bool) -> Make:
    return lambda m: made(attrs, X=m.normal(*x), W=m.normal(*w), B=m.normal(w[0]) if bias else None)


def cases() -> list[Case]:
    """All of them."""
    book = Book("conv2d")
    for name, x, w, attrs, bias in _PYTORCH:
        book.add(name, _conv(x, w, attrs, bias), corner="PyTorch's tests")
        book.add(f"{name}-unbatched", _conv(x[1:], w, attrs, bias), corner="without the batch axis")
    for name, x, w, attrs, bias in (*_ONNX, *_MORE):
        book.add(name, _conv(x, w, attrs, bias))
    _layouts(book)
    _same(book)
    _refused(book)
    return book.cases


def _layouts(book: Book) -> None:
    book.add("channels-last", _channels_last, corner="NCHW whose memory is NHWC: strides, not another op")
    book.add("nhwc", _nhwc, corner="layout nhwc: X and Y change, W stays OIHW")
    book.add("nhwc-same", lambda m: _nhwc_with(m, {"auto_pad": "same_upper", "strides": "2,2", "layout": "nhwc"}))
    book.add("weights-apart", _weights_apart, corner="strided weights and a strided result")
    book.add("small-integers", _small_integers, corner="integers in [-4,4]: every order gives the same")
    book.add("not-flipped", _not_flipped, corner="cross-correlation: the kernel is not flipped")
    book.add("bias-by-channel", _bias_only, corner="the bias belongs to the channel, not to the last axis")


def _channels_last(m: Maker) -> Made:
    return made({"pads": "1,1,1,1"}, X=strided(m.normal(2, 3, 5, 6), (0, 2, 3, 1)), W=m.normal(4, 3, 3, 3))


def _nhwc(m: Maker) -> Made:
    return _nhwc_with(m, {"pads": "1,0,1,0", "layout": "nhwc"})


def _nhwc_with(m: Maker, attrs: Mapping[str, str]) -> Made:
    return made(attrs, X=m.normal(2, 5, 6, 3), W=m.normal(4, 3, 3, 3), B=m.normal(4))


def _weights_apart(m: Maker) -> Made:
    w = strided(m.normal(4, 3, 3, 3), (2, 3, 1, 0), gap=2)
    wish = {"Y": Wish(strides=(200, 48, 8, 1))}
    return made(X=m.normal(1, 3, 6, 6), W=w)._replace(outputs=wish)


def _small_integers(m: Maker) -> Made:
    inputs = {"X": m.ints(-4, 4, 2, 5, 7, 6), "W": m.ints(-4, 4, 3, 5, 3, 2), "B": m.ints(-4, 4, 3)}
    return Made(inputs, {"pads": "1,1,0,1"}, exact=True)


def _not_flipped(m: Maker) -> Made:
    inputs = {"X": m.values([[[[1, 2, 3]]]]), "W": m.values([[[[1, 0, 0]]]])}
    return Made(inputs, want={"Y": np.array([[[[1.0]]]])}, exact=True)


def _bias_only(m: Maker) -> Made:
    return Made({"X": m.full(0, 1, 1, 3, 2), "W": m.full(1, 2, 1, 1, 1), "B": m.values([10, 20])}, exact=True)


def _same(book: Book) -> None:
    for length, kernel, stride in OPS_04:
        for rule in ("same_upper", "same_lower"):
            name = f"ops-04-{length}-{kernel}-{stride}-{rule.replace('_', '-')}"
            book.add(name, _square(length, kernel, stride, rule), ("fp32",), "OPS-04: where the odd element goes")
    x = np.arange(1, 17).reshape(1, 1, 4, 4)
    book.add("ops-04-values", _valued(x, np.ones((1, 1, 3, 3)), [[54, 45], [72, 54]]), FLOATS, "OPS-04")
    weights = np.arange(9).reshape(1, 1, 3, 3)
    book.add("ops-04-kernel", _valued(np.ones((1, 1, 2, 2)), weights, [[8]]), FLOATS, "OPS-04")


def _square(length: int, kernel: int, stride: int, rule: str) -> Make:
    attrs = {"auto_pad": rule, "strides": f"{stride},{stride}"}
    return _conv((1, 1, length, length), (1, 1, kernel, kernel), attrs, False)


def _valued(x: object, w: object, want: object) -> Make:
    attrs = {"auto_pad": "same_upper", "strides": "2,2"}
    right = {"Y": np.asarray(want, float)[None, None]}
    return lambda m: Made({"X": m.values(x), "W": m.values(w)}, attrs, want=right, exact=True)


def _refused(book: Book) -> None:
    x, w = (1, 3, 4, 4), (3, 3, 3, 3)
    book.refuse("large-kernel", "the kernel is larger than the padded input", _conv((1, 3, 2, 2), w, {}, False))
    book.refuse("dilated-kernel", "the dilated kernel is larger", _conv(x, w, {"dilations": "2,2"}, False))
    book.refuse("groups", "3 groups do not divide 4 channels", _conv((1, 4, 4, 4), w, {"group": "3"}, False))
    book.refuse(
        "group-outputs", "2 groups do not divide 3 outputs", _conv((1, 4, 4, 4), (3, 2, 3, 3), {"group": "2"}, False)
    )
    for name, attrs in {
        "group-0": {"group": "0"},
        "group-negative": {"group": "-1"},
        "stride-0": {"strides": "0,1"},
        "stride-negative": {"strides": "-1,1"},
        "pad-negative": {"pads": "0,-1,0,0"},
        "dilation-negative": {"dilations": "1,-1"},
        "dilation-0": {"dilations": "0,1"},
        "pads-two": {"pads": "1,1"},
        "auto-pad": {"auto_pad": "same"},
    }.items():
        book.refuse(
            name, f"{', '.join(f'{k} {v}' for k, v in attrs.items())} makes no sense", _conv(x, w, attrs, False)
        )
    book.refuse("channels", "W has 2 channels, X 3", _conv(x, (3, 2, 3, 3), {}, False))
    book.refuse("no-channels", "no input channels", _conv((1, 0, 4, 4), (3, 0, 3, 3), {}, False))
    book.refuse("bias", "2 biases for 3 channels", _wrong_bias)
    book.refuse("mixed", "element types differ", lambda m: made(X=m.normal(*x), W=m.normal(*w, dtype="fp16")))
    book.refuse("rank", "X has two dimensions", _conv((4, 4), w, {}, False))


def _wrong_bias(m: Maker) -> Made:
    return made(X=m.normal(1, 3, 4, 4), W=m.normal(3, 3, 3, 3), B=m.normal(2))
