"""Kernel arguments: one typed description, and the forms in which stacks want it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.opset import OPS
from accelctl.abi.runtime.arguments import (
    MOST_BYTES,
    SCALARS,
    Arg,
    as_block,
    as_op,
    as_pointers,
    layout,
    one_each,
    pointer,
)
from accelctl.abi.runtime.pointer import Pointer
from accelctl.errors import AccelError

_NATIVE = {"pointer": "Q", "size": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
"""Types as the C compiler of this machine lays them out ("@" in struct): the oracle of natural alignment."""


def _values(kind: str) -> st.SearchStrategy[Arg]:
    if kind in ("f32", "f64"):
        return st.floats(width=32 if kind == "f32" else 64, allow_nan=False).map(lambda value: Arg(kind, value))
    bits = 8 * SCALARS[kind].size
    low = 0 if kind in ("pointer", "size") else -(1 << bits - 1)
    return st.integers(low, low + (1 << bits) - 1).map(lambda value: Arg(kind, value))


SCALAR = st.sampled_from(sorted(SCALARS)).flatmap(_values)
BYTES = st.builds(
    lambda value, power: Arg("bytes", value, 1 << power), st.binary(min_size=1, max_size=64), st.integers(0, 4)
)
ARGS = st.lists(SCALAR | BYTES, max_size=20)


@given(st.lists(SCALAR, max_size=20))
def test_scalars_lie_where_a_compiler_puts_them(args: list[Arg]) -> None:
    native = struct.Struct("@" + "".join(_NATIVE[one.type] for one in args))
    block = as_block(args)
    assert native.unpack(block[: native.size]) == tuple(one.value for one in args)
    assert len(block) - native.size < 8


@given(ARGS)
def test_every_form_holds_the_same_values(args: list[Arg]) -> None:
    placed, size = layout(args)
    block, pointers, calls = as_block(args), as_pointers(args), list(one_each(args))
    assert len(block) == size
    for number, (one, place) in enumerate(zip(args, placed, strict=True)):
        data = one.data
        assert place.offset % one.alignment == 0
        assert block[place.offset : place.offset + len(data)] == data
        at = pointers.array[number]
        assert pointers.values[at : at + len(data)] == data
        assert calls[number] == (number, len(data), data)
    ends = [place.offset + len(place.data) for place in placed]
    assert all(end <= after.offset for end, after in zip(ends, placed[1:], strict=False))


@given(ARGS)
def test_gaps_are_zero(args: list[Arg]) -> None:
    placed, _ = layout(args)
    gaps = bytearray(as_block(args))
    for place in placed:
        gaps[place.offset : place.offset + len(place.data)] = bytes(len(place.data))
    assert not any(gaps)


@given(st.integers(1, 2 * MOST_BYTES))
def test_4096_bytes_and_no_more(size: int) -> None:
    args = [Arg("bytes", bytes(size))]
    if size <= MOST_BYTES:
        assert len(as_block(args)) == size
        layout(args)
        return
    for form in (as_block, as_pointers, lambda given: list(one_each(given))):
        with pytest.raises(AccelError, match="4096 are possible") as caught:
            form(args)
        assert caught.value.kind == "launch_config"


@pytest.mark.parametrize(
    "arg",
    [
        Arg("i8", 128),
        Arg("i32", 1 << 31),
        Arg("size", -1),
        Arg("f32", 1e300),
        Arg("i32", 1.5),
        Arg("nothing", 1),
        Arg("bytes", 5),
        Arg("bytes", b"1234", 3),
        Arg("i32", b"1234"),
    ],
    ids=str,
)
def test_what_a_type_does_not_hold_is_refused(arg: Arg) -> None:
    with pytest.raises(AccelError) as caught:
        as_block([arg])
    assert caught.value.kind == "invalid_argument"


def test_bytes_are_copied_when_they_are_packed() -> None:
    value = bytearray(b"before")
    block = as_block([Arg("bytes", value)])
    value[:] = b"after!"
    assert block == b"before"


def test_ours_are_addresses_and_attributes() -> None:
    places = [Pointer(4096 * n, 0, 0) for n in (1, 2, 3)]
    args = [
        *map(pointer, places),
        Arg("bytes", struct.pack("<2q", 2, 1), 8),
        Arg("bytes", struct.pack("<4q", *range(4))),
    ]
    found = as_op(OPS["conv2d"], 3, args)
    assert found.addresses == (4096, 8192, 12288)
    assert found.attrs == {"strides": (2, 1), "pads": (0, 1, 2, 3)}
    rope = as_op(OPS["rope"], 3, [*map(pointer, places), Arg("f64", 500.0), Arg("i8", 1), Arg("i64", 32)])
    assert rope.attrs == {"base": 500.0, "style": "interleaved", "rotary_dim": 32}
    assert as_op(OPS["matmul"], 3, [*map(pointer, places), Arg("i8", 1)]).attrs == {"tf32": True}


@pytest.mark.parametrize(
    ("op", "operands", "args"),
    [
        ("add", 3, [Arg("pointer", 1), Arg("pointer", 2)]),
        ("add", 2, [Arg("pointer", 1), Arg("i64", 2)]),
        ("add", 1, [Arg("pointer", 1), Arg("i32", 2)]),
        ("add", 1, [Arg("pointer", 1), Arg("f64", float("inf"))]),
        ("add", 1, [Arg("pointer", 1), Arg("f64", 1.0), Arg("f64", 1.0)]),
        ("rope", 1, [Arg("pointer", 1), Arg("f64", 1.0), Arg("i8", 7)]),
    ],
)
def test_what_is_no_call_of_an_op_is_refused(op: str, operands: int, args: list[Arg]) -> None:
    with pytest.raises(AccelError) as caught:
        as_op(OPS[op], operands, args)
    assert caught.value.kind == "invalid_argument"


@given(st.lists(SCALAR | BYTES, max_size=6), st.sampled_from(sorted(OPS)), st.integers(0, 5))
def test_arguments_of_any_kind_are_taken_or_refused(args: list[Arg], op: str, operands: int) -> None:
    refused = ""
    try:
        found = as_op(OPS[op], operands, args)
    except AccelError as error:
        refused = error.kind
    else:
        names: Any = [attr.name for attr in OPS[op].attrs]
        assert list(found.attrs) == names[: len(found.attrs)]
    assert refused in ("", "invalid_argument", "launch_config")
