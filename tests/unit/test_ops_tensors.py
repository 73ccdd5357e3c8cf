"""Descriptions of tensors and attributes: sizes beyond 32 bits, views, broadcasting, and text that means something."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi import opset, tensors
from accelctl.abi.opset import OPS, Value, text_of
from accelctl.abi.tensors import DTYPES, FP16, FP32, INT8, Tensor, byte_size, span, tensor
from accelctl.errors import UsageError

# -- OPS-07: sizes beyond 32 bits --


@pytest.mark.parametrize(
    ("case", "shape", "dtype", "elements", "size"),
    [
        ("a", (65536, 32768), FP32, 2147483648, 8589934592),
        ("b", (40000, 40000), FP32, 1600000000, 6400000000),
        ("c", (65536, 32768), INT8, 2147483648, 2147483648),
        ("d", (65536, 16384), FP16, 1073741824, 2147483648),
    ],
)
def test_ops_07_sizes_do_not_wrap(
    case: str, shape: tuple[int, ...], dtype: tensors.DType, elements: int, size: int
) -> None:
    made = tensor(shape, dtype)
    assert (made.elements, made.nbytes) == (elements, size)
    assert byte_size(shape, dtype) == span(shape, made.strides, dtype) == size


def test_ops_07_e_a_view_spans_more_than_it_has() -> None:
    view = tensor((2, 3), FP32, strides=(1073741824, 1))
    assert (view.elements, view.nbytes, view.dense) == (6, 24, False)
    assert span(view.shape, view.strides, view.dtype) == 4294967308


def test_ops_07_f_more_than_64_bits_are_refused() -> None:
    shape = (65536, 65536, 65536, 65536, 16)
    said = r"shape \(65536,65536,65536,65536,16\) of fp32 needs more than 64 bits"
    with pytest.raises(UsageError, match=said):
        byte_size(shape, FP32)
    with pytest.raises(UsageError, match=said):
        span(shape, (0,) * 5, FP32)


@pytest.mark.parametrize(
    ("shape", "dtype", "refused"),
    [
        ((1 << 64,), INT8, True),
        (((1 << 64) - 1,), INT8, False),
        ((1 << 62,), FP32, True),
        (((1 << 62) - 1,), FP32, False),
        ((0, 1 << 40, 1 << 40), INT8, True),  # an empty dimension does not hide it
        ((0, 1 << 40), INT8, False),
    ],
)
def test_the_last_size_that_fits(shape: tuple[int, ...], dtype: tensors.DType, refused: bool) -> None:
    if refused:
        with pytest.raises(UsageError, match="more than 64 bits"):
            byte_size(shape, dtype)
    else:
        assert byte_size(shape, dtype) == math.prod(shape) * dtype.itemsize


@pytest.mark.parametrize(
    ("shape", "strides", "said"),
    [
        ((2, -3), (1, 1), r"shape \(2,-3\): a length is negative"),
        ((2, 3), (3, -1), r"strides \(3,-1\): a stride is negative"),
        ((2, 3), (1,), "1 strides for 2 dimensions"),
        ((2,), (1 << 64,), "spans more than 64 bits can say"),
        ((3, 2), ((1 << 61) - 1, 1 << 62), "spans more than 64 bits can say"),
    ],
)
def test_what_no_span_can_be(shape: tuple[int, ...], strides: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        span(shape, strides, FP32)


small = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(small, st.data())
def test_a_span_is_where_the_last_element_ends(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Against counting all of them."""
    strides = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    places = [0]
    for length, stride in zip(shape, strides, strict=True):
        places = [place + stride * step for place in places for step in range(length)]
    assert span(shape, strides, FP16) == (2 * (max(places) + 1) if places else 0)


@given(small)
def test_dense_strides_visit_every_place_once_in_order(shape: tuple[int, ...]) -> None:
    places = [0]
    for length, stride in zip(shape, tensors.dense_strides(shape), strict=True):
        places = [place + stride * step for place in places for step in range(length)]
    assert places == list(range(math.prod(shape)))
    assert tensor(shape, FP32).dense


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((1, 3), (999, 1), True),  # OPS-05 c: the stride of an axis of length 1 has no meaning
        ((3, 1), (1, 7), True),
        ((3, 2), (1, 3), False),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((2, 0), (5, 5), True),
        ((), (), True),
    ],
)
def test_what_is_dense(shape: tuple[int, ...], strides: tuple[int, ...], dense: bool) -> None:
    assert tensors.is_dense(shape, strides) is dense


# -- broadcasting (OPS-06) --


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((1, 2, 2, 2), (1, 2, 1, 1), (1, 2, 2, 2)),
        ((3, 1), (1, 4), (3, 4)),
        ((2, 2), (2, 1), (2, 2)),
        ((), (0, 3), (0, 3)),
        ((1,), (0,), (0,)),
        ((10, 1), (1, 10), (10, 10)),
        ((3,), (2, 1, 1), (2, 1, 3)),
    ],
)
def test_shapes_that_broadcast(one: tuple[int, ...], other: tuple[int, ...], both: tuple[int, ...]) -> None:
    assert tensors.broadcast(one, other) == tensors.broadcast(other, one) == both


def test_shapes_that_do_not_are_both_named() -> None:
    with pytest.raises(UsageError, match=r"shapes \(10,1\) and \(3,1\) do not broadcast"):
        tensors.broadcast((10, 1), (3, 1))
    for one, other in (((0,), (2,)), ((2, 3), (3, 2))):
        with pytest.raises(UsageError, match="do not broadcast"):
            tensors.broadcast(one, other)


def test_strides_of_what_is_repeated_are_zero() -> None:
    assert tensors.broadcast_strides((2, 1), (5, 7), (4, 2, 3)) == (0, 5, 0)
    assert tensors.broadcast_strides((), (), (2, 3)) == (0, 0)


def test_shapes_as_people_write_them() -> None:
    assert [tensors.show(shape) for shape in ((), (2,), (2, 3))] == ["()", "(2,)", "(2,3)"]


def test_element_types_have_the_numbers_of_the_protocol() -> None:
    assert {name: (dtype.code, dtype.itemsize) for name, dtype in DTYPES.items()} == {
        "fp32": (1, 4),
        "fp16": (2, 2),
        "bf16": (3, 2),
        "int8": (4, 1),
        "int32": (5, 4),
        "uint8": (6, 1),
    }
    assert {name for name, dtype in DTYPES.items() if dtype.floating} == tensors.FLOATS == DTYPES.keys() - tensors.INTS
    assert {name: DTYPES[name].epsilon for name in sorted(tensors.FLOATS)} == {
        "bf16": 0.0078125,
        "fp16": 0.0009765625,
        "fp32": 1.1920928955078125e-07,
    }


def test_a_tensor_knows_itself() -> None:
    made = Tensor((2, 3), FP16, (3, 1), 0x1000)
    assert tensor((2, 3), FP16, 0x1000) == made
    assert tensor((), FP32) == Tensor((), FP32, (), 0)
    assert (tensor((), FP32).elements, tensor((3, 0), FP32).elements) == (1, 0)


# -- ops and their attributes --


def test_operators_have_the_numbers_of_the_protocol() -> None:
    first = ["matmul", "conv2d", "layernorm", "relu", "add", "softmax"]
    assert [name for name, op in OPS.items() if op.code <= 6] == first
    assert [OPS[name].code for name in first] == [1, 2, 3, 4, 5, 6]
    assert sorted(op.code for op in OPS.values()) == list(range(1, 16))
    assert all(opset.BY_CODE[op.code] is op and name == op.name for name, op in OPS.items())


RIGHT: dict[str, dict[str, Value]] = {
    "int": {"0": 0, "-1": -1, "9223372036854775807": (1 << 63) - 1, "-9223372036854775808": -(1 << 63)},
    "float": {"1e-05": 1e-5, "-2": -2.0, "0.1": 0.1, "1.7976931348623157e+308": 1.7976931348623157e308},
    "bool": {"true": True, "false": False},
    "ints": {"": (), "3": (3,), "1,0,-2": (1, 0, -2)},
}
WRONG = {
    "int": ["", "x", "1.0", "1e3", "0x10", "1_000", "9223372036854775808", "-9223372036854775809", "\u0663", "1" * 30],
    "float": ["", "x", "nan", "inf", "-inf", "1e999", "1_0.0", "\u0661.0", "1,0"],
    "bool": ["", "True", "1", "yes", "0"],
    "ints": ["1,", ",", "1;2", "a", "1,2.5", ",".join("1" * 17), "99999999999999999999"],
    "word": ["", "no_such_word", "NONE"],
}
EVERY_ATTR = [(op, attr) for op in OPS.values() for attr in op.attrs]


def given_for(op: opset.Op, **more: str) -> dict[str, str]:
    """The attributes that the op must have, with these."""
    needed = {
        attr.name: {"int": "2", "float": "1e-5", "bool": "true", "word": (*attr.words, "")[0], "ints": "1"}[attr.kind]
        for attr in op.attrs
        if attr.default is opset.REQUIRED
    }
    return needed | more


@pytest.mark.parametrize(("op", "attr"), EVERY_ATTR, ids=lambda one: one.name)
def test_every_attribute_reads_what_is_right_and_names_itself_otherwise(op: opset.Op, attr: opset.Attr) -> None:
    right = {word: word for word in attr.words} if attr.kind == "word" else RIGHT[attr.kind]
    for text, value in right.items():
        found = op.parse(given_for(op, **{attr.name: text}))
        assert list(found) == [one.name for one in op.attrs]
        assert (found[attr.name], type(found[attr.name])) == (value, type(value))
    for text in WRONG[attr.kind]:
        with pytest.raises(UsageError) as caught:
            op.parse(given_for(op, **{attr.name: text}))
        assert caught.value.message.startswith(f"attrs['{attr.name}']: {text[:40]!r} is not ")
        assert all(word in caught.value.message for word in attr.words)


@pytest.mark.parametrize(("op", "attr"), EVERY_ATTR, ids=lambda one: one.name)
def test_an_attribute_that_is_left_out(op: opset.Op, attr: opset.Attr) -> None:
    told = given_for(op)
    told.pop(attr.name, None)
    if attr.default is opset.REQUIRED:
        with pytest.raises(UsageError, match=rf"attrs\['{attr.name}'\]: {op.name} needs it"):
            op.parse(told)
    else:
        assert op.parse(told)[attr.name] == attr.default


def test_what_stacks_disagree_about_has_no_default() -> None:
    required = {(op.name, attr.name) for op, attr in EVERY_ATTR if attr.default is opset.REQUIRED}
    assert required == {
        ("layernorm", "epsilon"),
        ("rmsnorm", "epsilon"),
        ("rope", "style"),
        ("attention_decode", "block_size"),
        ("topk_softmax", "k"),
        ("topk_softmax", "renormalize"),
        ("moe_align", "num_experts"),
        ("moe_align", "block_size"),
    }


def test_an_attribute_that_there_is_not() -> None:
    with pytest.raises(UsageError, match=r"attrs\['eps'\]: layernorm has no such attribute \(it has: epsilon, axis\)"):
        OPS["layernorm"].parse({"eps": "1e-5"})
    with pytest.raises(UsageError, match=r"attrs\['x'\]: relu has no such attribute \(it has: none\)"):
        OPS["relu"].parse({"x": "1"})


values: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "ints": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=16).map(tuple),
}


@given(st.sampled_from(EVERY_ATTR), st.data())
def test_text_of_a_value_is_read_back_as_it(row: tuple[opset.Op, opset.Attr], data: st.DataObject) -> None:
    op, attr = row
    value = data.draw(st.sampled_from(attr.words) if attr.kind == "word" else values[attr.kind])
    assert op.parse(given_for(op, **{attr.name: text_of(value)}))[attr.name] == value
