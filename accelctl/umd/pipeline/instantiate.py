"""Stage 5: the bytes of the instructions, but for the addresses; and those put in."""

from __future__ import annotations

import struct
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi import blob
from accelctl.abi.call import encode
from accelctl.abi.launch import Launch
from accelctl.abi.opset import Op
from accelctl.abi.tensors import DType, Shape, Tensor, span
from accelctl.errors import AccelError, UsageError
from accelctl.umd import wire
from accelctl.umd.pipeline.infer import Chosen, Graph
from accelctl.umd.refusal import Refusal, refusal_of
from accelctl.umd.translators.common import dense_facts


class Step(NamedTuple):
    """One instruction without its addresses. ``refs``: see lower.Node. ``wire_head`` and ``wire_tail``: the fields of a
    HardwareInstruction before and after the blob."""

    op: str
    refs: tuple[int, ...]
    head: bytes
    params: struct.Struct
    body: bytes
    wire_head: bytes
    wire_tail: bytes


class Slot(NamedTuple):
    """An operand that is there. ``described``: of an output its TensorDesc without tensor_id and device_addr."""

    tensor: Tensor
    span: int
    align: int
    described: bytes


class Plan(NamedTuple):
    """A translated request, for any addresses."""

    op: Op
    inputs: tuple[Slot | None, ...]
    outputs: tuple[Slot | None, ...]
    steps: tuple[Step, ...]
    scratch: int
    straight: bool
    """One instruction whose parameters are the operands, in order."""
    launches: tuple[tuple[str, int], ...]
    """Op of a kernel, and how many instructions of it: the op itself, and copies."""


def plan_of(op: Op, inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...], graph: Graph) -> Plan:
    """Bytes of everything. Refusal for what an instruction cannot hold."""
    steps = tuple([_step(one) for one in graph.steps])
    straight = len(steps) == 1 and steps[0].refs == _STRAIGHT[: len(steps[0].refs)]
    launches = tuple(Counter([step.op for step in steps]).items()) if len(steps) != 1 else ((op.name, 1),)
    slots = tuple([_slot(one) for one in inputs]), tuple([_result(one) for one in outputs])
    return Plan(op, *slots, steps, graph.scratch, straight, launches)


_STRAIGHT = tuple(range(blob.MOST_PARAMS))
_STRUCTS = [struct.Struct(f"<{count}Q") for count in range(blob.MOST_PARAMS + 1)]


def _slot(one: Tensor | None) -> Slot | None:
    """Of an input."""
    if one is None:
        return None
    size, strides = dense_facts(one.shape, one.dtype)
    if one.strides != strides and not one.dense:
        size = span(one.shape, one.strides, one.dtype)
    return Slot(one, size, one.dtype.itemsize, b"")


@lru_cache(maxsize=1024)
def _described(shape: Shape, dtype: DType) -> bytes:
    """A dense TensorDesc that lies nowhere yet."""
    size, _ = dense_facts(shape, dtype)
    return wire.packed(2, shape) + wire.number(3, dtype.code) + wire.number(4, size)


def _result(one: Tensor | None) -> Slot | None:
    """Of an output."""
    if one is None:
        return None
    size, strides = dense_facts(one.shape, one.dtype)
    described = _described(one.shape, one.dtype)
    if one.strides == strides or one.dense:
        return Slot(one, size, one.dtype.itemsize, described)
    reach = span(one.shape, one.strides, one.dtype)
    return Slot(one, reach, one.dtype.itemsize, described + wire.packed(6, one.strides))


@lru_cache(maxsize=1024)
def _word(launch: Launch) -> tuple[int, bytes]:
    """A launch in 64 bits, and the same as a field of a HardwareInstruction."""
    word = launch.encode()
    return word, wire.number(3, word)


def _step(chosen: Chosen) -> Step:
    node, template, launch = chosen
    count = len(node.refs)
    try:
        body = encode(node.call)
        word, field = _word(launch)
        empty = blob.encode(template.kernel_id, word, [0] * count, body)
    except UsageError as error:
        raise Refusal("inputs[0].shape", error.message, "not_supported") from None
    except AccelError as error:
        raise refusal_of(error, "op_type") from None
    return Step(
        node.call.op.name,
        node.refs,
        empty[: blob.HEADER.size],
        _STRUCTS[count],
        body,
        wire.number(1, template.kernel_id) + b"\x12" + wire.varint(len(empty)),
        field,
    )


def blobs_of(plan: Plan, addresses: list[int], scratch: int) -> tuple[list[bytes], bytes]:
    """The instructions with these addresses in them (scratch memory begins at ``scratch``), and the same as fields
    ``instructions`` of an OpResponse."""
    blobs, fields = [], []
    for step in plan.steps:
        found = addresses if plan.straight else [addresses[r] if r >= 0 else scratch - 1 - r for r in step.refs]
        made = step.head + step.params.pack(*found) + step.body
        params = b"".join([wire.address(one) for one in found])
        one = b"".join((step.wire_head, made, step.wire_tail, b"\x22", wire.varint(len(params)), params))
        blobs.append(made)
        fields.append(b"\x12" + wire.varint(len(one)) + one)
    return blobs, b"".join(fields)
