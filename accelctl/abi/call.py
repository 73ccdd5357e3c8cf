"""One operator applied to tensors, and its bytes in an instruction.

The description of a call (little-endian), version 1:

    0   u8   version            1   u8   operands, inputs and outputs, absent ones included
    2   u16  op                 4   then per operand: u8 dtype (0: absent), u8 rank, u16 zero,
                                    rank x u64 lengths, rank x u64 strides in elements
    then every attribute of the op in the table's order, defaults included:
        int i64 | float f64 | bool u8 | word u8 (its index) | ints u8 count, count x i64

A matmul's description stands behind a head of 16 bytes: int32 M, K, N, and a flag: 1 where tensor cores may round
fp32 operands to tf32. Addresses are not part of it: a description is the same wherever the tensors lie, so it can be
kept and used again. Decoding accepts exactly what encoding makes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from accelctl.abi.opset import Attr, Attrs, Op, Operand, Value
from accelctl.abi.tensors import BY_CODE as DTYPES
from accelctl.abi.tensors import MOST_DIMS, Tensor, span
from accelctl.errors import UsageError

VERSION = 1
I32_MOST = (1 << 31) - 1
_START, _OPERAND, _HEAD = struct.Struct("<BBH"), struct.Struct("<BBH"), struct.Struct("<iiii")
_DESCRIBED = [struct.Struct(f"<BBH{2 * rank}Q") for rank in range(MOST_DIMS + 1)]
"""A whole operand, by its number of dimensions."""
_SCALARS = {"int": struct.Struct("<q"), "float": struct.Struct("<d"), "bool": struct.Struct("<?")}


class Call(NamedTuple):
    """What is computed: optional operands that are left out are None; ``attrs`` are complete and typed."""

    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attrs: Attrs

    @property
    def tensors(self) -> list[Tensor]:
        """Those that are there, inputs first. Their addresses are an instruction's parameters, in this order."""
        return [tensor for tensor in (*self.inputs, *self.outputs) if tensor is not None]

    def input(self, name: str) -> Tensor | None:
        """By the table's name."""
        return self.inputs[[operand.name for operand in self.op.inputs].index(name)]


def matmul_dims(a: Sequence[int], b: Sequence[int]) -> tuple[int, int, int]:
    """M, K, N of two operands' shapes: a vector on the left has M 1, one on the right N 1. UsageError for a scalar."""
    if not a or not b:
        raise UsageError("matmul: a scalar is no operand of a matrix product")
    return (a[-2] if len(a) > 1 else 1, a[-1], b[-1] if len(b) > 1 else 1)


def encode(call: Call) -> bytes:
    """The body of an instruction. UsageError for what its fields cannot hold."""
    operands = [*call.inputs, *call.outputs]
    parts = [_head(call), _START.pack(VERSION, len(operands), call.op.code)]
    try:
        parts += [_operand(one) for one in operands]
        parts += [_attr(attr, call.attrs[attr.name]) for attr in call.op.attrs]
    except struct.error as error:
        raise UsageError(f"{call.op.name}: a number does not fit its field in an instruction ({error})") from None
    return b"".join(parts)


def _head(call: Call) -> bytes:
    if call.op.name != "matmul":
        return b""
    a, b = call.inputs
    assert a is not None
    assert b is not None
    dims = matmul_dims(a.shape, b.shape)
    if max(dims) > I32_MOST:
        name = "MKN"[dims.index(max(dims))]
        raise UsageError(f"{name} = {max(dims)} does not fit the 32 bits that a matmul instruction has for it")
    return _HEAD.pack(*dims, int(bool(call.attrs["tf32"])))


def _operand(tensor: Tensor | None) -> bytes:
    if tensor is None:
        return _OPERAND.pack(0, 0, 0)
    rank = len(tensor.shape)
    if rank > MOST_DIMS:
        raise UsageError(f"{rank} dimensions: an instruction can describe {MOST_DIMS}")
    return _DESCRIBED[rank].pack(tensor.dtype.code, rank, 0, *tensor.shape, *tensor.strides)


def _attr(attr: Attr, value: Value) -> bytes:
    if isinstance(value, tuple):
        return struct.pack(f"<B{len(value)}q", len(value), *value)
    if attr.kind == "word":
        return bytes([attr.words.index(str(value))])
    return _SCALARS[attr.kind].pack(value)


def decode(op: Op, body: bytes, addresses: Sequence[int]) -> Call:
    """The call of a body of that op (an instruction's kernel says which); one address for each operand that is there.
    UsageError for everything that encode does not make."""
    reader = _Reader(bytes(body), _HEAD.size if op.name == "matmul" else 0)
    version, count, code = reader.take(_START)
    if version != VERSION or code != op.code or count != len(op.inputs) + len(op.outputs):
        raise UsageError(f"instruction body: not version {VERSION} of {op.name}")
    left = list(addresses)
    operands = [_tensor(reader, operand, left) for operand in (*op.inputs, *op.outputs)]
    attrs = {attr.name: _value(reader, attr) for attr in op.attrs}
    if left:
        raise UsageError(f"instruction body: {len(left)} addresses more than {op.name} has operands here")
    call = Call(op, tuple(operands[: len(op.inputs)]), tuple(operands[len(op.inputs) :]), attrs)
    if encode(call) != reader.body:
        raise UsageError("instruction body: not in the one form that it can have")
    return call


class _Reader:
    """Where a body has been read to."""

    def __init__(self, body: bytes, at: int) -> None:
        self.body, self.at = body, at

    def take(self, codec: struct.Struct) -> tuple[Any, ...]:
        """The next fields."""
        if self.at + codec.size > len(self.body):
            raise UsageError(f"instruction body: it ends after {len(self.body)} bytes, in the middle of something")
        found = codec.unpack_from(self.body, self.at)
        self.at += codec.size
        return found


def _tensor(reader: _Reader, operand: Operand, addresses: list[int]) -> Tensor | None:
    code, rank, _ = reader.take(_OPERAND)
    if code == 0 and operand.optional:
        return None
    if code not in DTYPES or rank > MOST_DIMS or not addresses:
        raise UsageError(f"instruction body: {operand.name} is not described")
    numbers = reader.take(struct.Struct(f"<{2 * rank}Q"))
    dtype = DTYPES[code]
    span(numbers[:rank], numbers[rank:], dtype)
    return Tensor(numbers[:rank], dtype, numbers[rank:], addresses.pop(0))


def _value(reader: _Reader, attr: Attr) -> Value:
    if attr.kind == "ints":
        (count,) = reader.take(struct.Struct("<B"))
        return cast("tuple[int, ...]", reader.take(struct.Struct(f"<{count}q")))
    (value,) = reader.take(struct.Struct({"int": "<q", "float": "<d", "bool": "<?", "word": "<B"}[attr.kind]))
    if attr.kind == "float" and not math.isfinite(value):
        raise UsageError(f"instruction body: {attr.name} is not finite")
    if attr.kind == "word":
        if value >= len(attr.words):
            raise UsageError(f"instruction body: word {value} of {attr.name}")
        return attr.words[int(value)]
    return cast("Value", value)
