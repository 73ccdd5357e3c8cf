"""Stage 1: is what the request describes possible at all? No address is looked at here; memory.place does that."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi.opset import BY_CODE as OPS
from accelctl.abi.opset import OPS as BY_NAME
from accelctl.abi.opset import Op, Operand, Value
from accelctl.abi.tensors import BY_CODE as DTYPES
from accelctl.abi.tensors import MOST_DIMS, DType, Shape, Tensor, is_dense, show, span
from accelctl.errors import UsageError
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.translators.common import Ask, Described, dense_facts

Names = list[tuple[int, int]]
"""tensor_id and device_addr of each description."""


class Taken(NamedTuple):
    """A request's descriptions, and where each of them is said to lie."""

    inputs: list[pb.TensorDesc]
    outputs: list[pb.TensorDesc]
    input_names: Names
    output_names: Names


_MOST_ATTRS = 64
_LONGEST_ATTR = 256
"""Characters of a value. The text of a request is part of what its plan is found by, so it is kept with it."""
INPUTS = tuple(f"inputs[{index}]" for index in range(16))
OUTPUTS = tuple(f"outputs[{index}]" for index in range(16))
"""Names of fields. Made once: they are needed for every request, and said for few."""


def take_names(request: pb.OpRequest) -> Taken:
    """Where inputs and outputs are said to lie; taken out of the request, which then says only what is computed."""
    inputs, outputs = list(request.inputs), list(request.outputs)
    return Taken(inputs, outputs, _names(inputs), _names(outputs))


def key_of(request: pb.OpRequest, taken: Taken) -> Hashable:
    """What the plan of a request without its places is found by: its bytes, and, for ops whose caller may leave outputs
    out, which of them have a place: that alone makes one wanted."""
    raw = request.SerializeToString(deterministic=True)
    if request.op_type in _WITH_OPTIONAL_OUTPUTS:
        return raw, tuple([name != (0, 0) for name in taken.output_names])
    return raw


_WITH_OPTIONAL_OUTPUTS = frozenset(code for code, op in OPS.items() if any(operand.optional for operand in op.outputs))


def _names(tensors: list[pb.TensorDesc]) -> Names:
    found = []
    for one in tensors:
        number, address = one.tensor_id, one.device_addr
        if number:
            one.tensor_id = 0
        if address:
            one.device_addr = 0
        found.append((number, address))
    return found


def ask_of(request: pb.OpRequest, taken: Taken) -> Ask:
    """The op, typed. Refusal naming the field."""
    op = OPS.get(request.op_type)
    if op is None:
        kind = "not_supported" if request.op_type else "invalid_argument"
        raise Refusal("op_type", f"{request.op_type}: unknown", kind)
    return Ask(op, _operands(op, taken), _outputs(op, taken), attributes(op, request))


def attributes(op: Op, request: pb.OpRequest) -> Mapping[str, Value]:
    """All attributes. Refusal naming the one that is wrong."""
    if not request.attrs:
        return _defaults(op.name)
    if len(request.attrs) > _MOST_ATTRS:
        raise Refusal("attrs", f"{len(request.attrs)} attributes: no op has so many")
    for name, value in request.attrs.items():
        if len(value) > _LONGEST_ATTR:
            raise Refusal(f"attrs[{name[:60]!r}]", f"{len(value)} characters: at most {_LONGEST_ATTR} are possible")
    return _parsed(op, request.attrs)


@lru_cache
def _defaults(name: str) -> Mapping[str, Value]:
    return _parsed(BY_NAME[name], {})


def _parsed(op: Op, given: Mapping[str, str]) -> Mapping[str, Value]:
    try:
        return op.parse(given)
    except UsageError as error:
        field, _, text = error.message.partition("]: ")
        raise Refusal(f"{field[:60]}]", text) from None


def _operands(op: Op, taken: Taken) -> tuple[Tensor | None, ...]:
    given, names = taken.inputs, taken.input_names
    if len(given) > len(op.inputs):
        raise Refusal("inputs", f"{len(given)} given, {op.name} has {len(op.inputs)}")
    found: list[Tensor | None] = []
    for index, operand in enumerate(op.inputs):
        one = given[index] if index < len(given) else None
        if one is None or (not one.data_type and _empty(one, names[index])):
            if not operand.optional:
                raise Refusal(INPUTS[index], f"{op.name} needs its operand {operand.name}")
            found.append(None)
        else:
            found.append(tensor_of(one, operand, INPUTS[index]))
    return tuple(found)


def _empty(one: pb.TensorDesc, name: tuple[int, int]) -> bool:
    """Nothing at all is said: an operand that is left out."""
    return name == (0, 0) and not one.ByteSize()


def tensor_of(one: pb.TensorDesc, operand: Operand, field: str) -> Tensor:
    """A description, complete and possible. Refusal naming the field in it."""
    try:
        found = _tensor(one.SerializeToString())
    except Refusal as refusal:
        raise Refusal(f"{field}.{refusal.field}", refusal.message, refusal.kind) from None
    if found.dtype.name not in operand.dtypes:
        raise _not_taken(found.dtype, operand, field)
    return found


def _not_taken(dtype: DType, operand: Operand, field: str) -> Refusal:
    names = ", ".join(sorted(operand.dtypes))
    return Refusal(f"{field}.data_type", f"{dtype.name}: {operand.name} may be {names}", "not_supported")


@lru_cache(maxsize=4096)
def _tensor(raw: bytes) -> Tensor:
    """Few descriptions make up most of what is ever asked for. Refusal naming the field within it."""
    one = pb.TensorDesc.FromString(raw)
    dtype = DTYPES.get(one.data_type)
    if dtype is None:
        raise _unknown(one.data_type)
    shape = _shape(one)
    try:
        size, dense = dense_facts(shape, dtype)
    except UsageError as error:
        raise Refusal("shape", error.message) from None
    if one.byte_size and one.byte_size != size:
        raise Refusal("byte_size", f"{one.byte_size}: shape {show(shape)} of {dtype.name} has {size}")
    strides = _strides(one, shape) or dense
    try:
        span(shape, strides, dtype)
    except UsageError as error:
        raise Refusal("strides", error.message) from None
    return Tensor(shape, dtype, strides)


def _unknown(code: int) -> Refusal:
    return Refusal("data_type", f"{code}: unknown" if code else "it is not said")


def _shape(one: pb.TensorDesc) -> Shape:
    if len(one.shape) > MOST_DIMS:
        raise Refusal("shape", f"{len(one.shape)} dimensions: {MOST_DIMS} are possible", "not_supported")
    return tuple(one.shape)


def _strides(one: pb.TensorDesc, shape: Shape) -> Shape | None:
    """Those that are said; None for dense ones. One form for one thing, also where a stride has no meaning."""
    strides = tuple(one.strides)
    if strides and len(strides) != len(shape):
        raise Refusal("strides", f"{len(strides)} strides for {len(shape)} dimensions")
    return None if not strides or is_dense(shape, strides) else strides


def _outputs(op: Op, taken: Taken) -> tuple[Described | None, ...]:
    given, names = taken.outputs, taken.output_names
    if len(given) > len(op.outputs):
        raise Refusal("outputs", f"{len(given)} given, {op.name} has {len(op.outputs)}")
    found: list[Described | None] = []
    for index, operand in enumerate(op.outputs):
        one = given[index] if index < len(given) else None
        if one is None or (not one.data_type and _empty(one, names[index])):
            found.append(None)
        else:
            found.append(_output(one, operand, OUTPUTS[index]))
    return tuple(found)


def _output(one: pb.TensorDesc, operand: Operand, field: str) -> Described:
    try:
        found = _described(one.SerializeToString())
    except Refusal as refusal:
        raise Refusal(f"{field}.{refusal.field}", refusal.message, refusal.kind) from None
    if found.dtype is not None and found.dtype.name not in operand.dtypes:
        raise _not_taken(found.dtype, operand, field)
    return found


@lru_cache(maxsize=4096)
def _described(raw: bytes) -> Described:
    """What is said of an output. One without any lengths is a scalar or leaves the shape open."""
    one = pb.TensorDesc.FromString(raw)
    dtype = DTYPES.get(one.data_type)
    if dtype is None and one.data_type:
        raise _unknown(one.data_type)
    shape = _shape(one)
    if one.strides and not shape:
        raise Refusal("strides", "strides without a shape")
    strides = _strides(one, shape)
    if strides is not None:
        own_elements(shape, strides, "strides")
    return Described(shape or None, dtype, strides, one.byte_size)


def own_elements(shape: Shape, strides: Shape, field: str) -> None:
    """Every element of something written has a place of its own. Refusal. (Sorted by stride, each one must reach over
    all that is inside it; the rare layouts that interleave without meeting are refused as well.)"""
    reach = 0
    for stride, length in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            raise Refusal(field, f"{show(strides)} for {show(shape)}: elements that are written would share a place")
        reach += (length - 1) * stride
