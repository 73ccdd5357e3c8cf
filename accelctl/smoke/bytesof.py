"""The bytes that an instruction must have, put together again from the documented layout (docs/instructions.md).

Not the encoder's code: a mistake there would otherwise be compared with itself.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from accelctl.abi.opset import OPS

MAGIC = b"\x5a\x5a\x5a\x5a"


def body_of(op: str, operands: Sequence[Any], attrs: Mapping[str, str]) -> bytes:
    """The body: for each operand in the op's order a TensorDesc, or None where it is left out."""
    out = b""
    if op == "matmul":
        a, b = (tuple(one.shape) for one in operands[:2])
        dims = (a[-2] if len(a) > 1 else 1, a[-1], b[-1] if len(b) > 1 else 1)
        out += b"".join(number.to_bytes(4, "little") for number in (*dims, int(attrs.get("tf32") == "true")))
    out += bytes([1, len(operands)]) + OPS[op].code.to_bytes(2, "little")
    for one in operands:
        if one is None:
            out += bytes(4)
            continue
        shape = tuple(one.shape)
        strides = tuple(one.strides) or _dense(shape)
        out += bytes([one.data_type, len(shape), 0, 0])
        out += b"".join(number.to_bytes(8, "little") for number in (*shape, *strides))
    return out + b"".join(_attr(attr, attrs.get(attr.name)) for attr in OPS[op].attrs)


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    found = [1]
    for length in reversed(shape[1:]):
        found.insert(0, found[0] * (length or 1))
    return tuple(found[: len(shape)])


def _attr(attr: Any, text: str | None) -> bytes:
    value = attr.default if text is None else text
    if attr.kind == "word":
        return bytes([attr.words.index(value)])
    if attr.kind == "bool":
        return bytes([value in (True, "true")])
    if attr.kind == "float":
        return struct.pack("<d", float(value))
    if attr.kind == "int":
        return int(value).to_bytes(8, "little", signed=True)
    numbers = [int(one) for one in value.split(",") if one] if isinstance(value, str) else list(value)
    return bytes([len(numbers)]) + b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def blob_of(instruction: Any, addresses: Sequence[int], body: bytes) -> bytes:
    """The whole instruction. Kernel and launch are the chip's choice, so they are taken from beside the blob."""
    numbers = (instruction.kernel_id, len(body), len(addresses), instruction.launch_config, *addresses)
    return MAGIC + b"".join(number.to_bytes(8, "little") for number in numbers) + body


def difference(got: bytes, right: bytes) -> str:
    """Where two blobs part; empty where they are the same."""
    if got == right:
        return ""
    at = next(
        (i for i, (one, other) in enumerate(zip(got, right, strict=False)) if one != other), min(len(got), len(right))
    )
    return f"byte {at}: {got[at : at + 8].hex() or 'nothing'}, right is {right[at : at + 8].hex() or 'nothing'}"
