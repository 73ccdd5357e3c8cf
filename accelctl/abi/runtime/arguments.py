"""Kernel arguments: one typed description, and the forms in which stacks want it.

Alignment is natural: a value of n bytes (1, 2, 4, 8) starts at a multiple of n; bytes by value (a struct) say theirs,
which is a power of two. The whole block has the largest alignment of its parts. At most 4096 bytes are packed.

pointers   CUDA, HIP: an array of pointers to values, in declaration order
block      Ascend (aclrtLaunchKernel): one block of memory that holds all values
one each   OpenCL (clSetKernelArg), Level Zero (zeKernelSetArgumentValue): index, size and value, one call for each
ours       an instruction (abi.blob): addresses as parameters, everything else as attributes of the op
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from accelctl.abi.opset import Attr, Op, Value
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.pointer import Pointer

MOST_BYTES = 4096
"""Of all arguments of a launch, packed."""

SCALARS: dict[str, struct.Struct] = {
    "pointer": struct.Struct("<Q"),
    "size": struct.Struct("<Q"),
    "i8": struct.Struct("<b"),
    "i16": struct.Struct("<h"),
    "i32": struct.Struct("<i"),
    "i64": struct.Struct("<q"),
    "f32": struct.Struct("<f"),
    "f64": struct.Struct("<d"),
}
"""Type -> its little-endian form. ``bytes`` is the one that is not here."""


class Arg(NamedTuple):
    """One argument. ``align`` only matters for bytes."""

    type: str
    value: float | bytes | bytearray | Pointer
    align: int = 1

    @property
    def data(self) -> bytes:
        """Its bytes. invalid_argument for a value that its type does not hold."""
        value = self.value.address if isinstance(self.value, Pointer) else self.value
        if self.type == "bytes" and isinstance(value, (bytes, bytearray)) and _power(self.align):
            return bytes(value)
        codec = SCALARS.get(self.type)
        try:
            if codec is None or isinstance(value, (bytes, bytearray)):
                raise ValueError(f"no argument of type {self.type}")
            return codec.pack(value)
        except (struct.error, OverflowError, ValueError) as error:
            raise fail("invalid_argument", f"kernel argument {self.type} {value!r:.40}: {error}") from None

    @property
    def alignment(self) -> int:
        """Bytes."""
        return self.align if self.type == "bytes" else SCALARS[self.type].size


def _power(number: int) -> bool:
    return number > 0 and not number & number - 1


class Placed(NamedTuple):
    """Where an argument lies in the block."""

    offset: int
    data: bytes


def layout(args: Sequence[Arg]) -> tuple[list[Placed], int]:
    """Places in a block, and the bytes of the block. launch_config for more than 4096."""
    placed, at, widest = [], 0, 1
    for one in args:
        data = one.data
        at = -(-at // one.alignment) * one.alignment
        placed.append(Placed(at, data))
        at += len(data)
        widest = max(widest, one.alignment)
    if at > MOST_BYTES:
        raise fail("launch_config", f"{at} bytes of kernel arguments: {MOST_BYTES} are possible")
    return placed, min(MOST_BYTES, -(-at // widest) * widest)


class Pointers(NamedTuple):
    """Values somewhere in memory, and the array that says where: addresses relative to the values' first byte."""

    values: bytes
    array: tuple[int, ...]


def as_block(args: Sequence[Arg]) -> bytes:
    """One block; what lies between the values is zero."""
    placed, size = layout(args)
    block = bytearray(size)
    for one in placed:
        block[one.offset : one.offset + len(one.data)] = one.data
    return bytes(block)


def as_pointers(args: Sequence[Arg]) -> Pointers:
    """One pointer for each value. The driver reads as many bytes as the kernel's parameter has."""
    placed, _ = layout(args)
    return Pointers(as_block(args), tuple(one.offset for one in placed))


class SetArgument(NamedTuple):
    """One call of those stacks that have one for each argument."""

    place: int
    size: int
    value: bytes


def one_each(args: Sequence[Arg]) -> Iterator[SetArgument]:
    """Index, size, value, in order. Both stacks want 8 bytes for a pointer: an address here, a handle there."""
    layout(args)  # the same limit, whoever packs
    for index, one in enumerate(args):
        yield SetArgument(index, len(one.data), one.data)


class OpArguments(NamedTuple):
    """What an instruction is made of, its shapes apart."""

    addresses: tuple[int, ...]
    attrs: Mapping[str, Value]


_OF_ATTR = {
    "int": ("i64", "size", "i32"),
    "float": ("f64", "f32"),
    "bool": ("i8",),
    "word": ("i8",),
    "ints": ("bytes",),
}


def as_op(op: Op, operands: int, args: Sequence[Arg]) -> OpArguments:
    """Pointers first, one for each operand that is there, then the op's attributes in the table's order; those at the
    end may be left out. invalid_argument for another type or number."""
    layout(args)
    pointers, rest = args[:operands], args[operands:]
    if len(pointers) < operands or any(one.type != "pointer" for one in pointers):
        raise fail("invalid_argument", f"{op.name} takes {operands} pointers first")
    if len(rest) > len(op.attrs):
        raise fail("invalid_argument", f"{op.name} has {len(op.attrs)} attributes, {len(rest)} were given")
    attrs = {attr.name: _attr(op, attr, one) for attr, one in zip(op.attrs, rest, strict=False)}
    return OpArguments(tuple(int.from_bytes(one.data, "little") for one in pointers), attrs)


def _attr(op: Op, attr: Attr, arg: Arg) -> Value:
    if arg.type not in _OF_ATTR[attr.kind]:
        raise fail("invalid_argument", f"{op.name}: {attr.name} is no {arg.type}")
    data = arg.data
    if attr.kind == "ints":
        return tuple(one for (one,) in SCALARS["i64"].iter_unpack(data[: len(data) // 8 * 8]))
    (value,) = SCALARS[arg.type].unpack(data)
    if attr.kind == "word":
        if not 0 <= value < len(attr.words):
            raise fail("invalid_argument", f"{op.name}: word {value} of {attr.name}")
        return attr.words[int(value)]
    if attr.kind == "float" and not math.isfinite(value):
        raise fail("invalid_argument", f"{op.name}: {attr.name} is not finite")
    return bool(value) if attr.kind == "bool" else cast("float", value)


def pointer(where: Pointer) -> Arg:
    """A device address."""
    return Arg("pointer", where)
