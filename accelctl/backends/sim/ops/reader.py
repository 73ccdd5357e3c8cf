"""Instructions as the simulated driver takes them: read strictly, and remembered.

What a blob means apart from its addresses is worked out once and kept by its bytes, as drivers keep what their command
parsers have passed. Nothing is believed: the kernel must exist, take these element types and layouts, shapes must fit
each other, and the launch must be the one that covers the work.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi import blob as blobs
from accelctl.abi import call as calls
from accelctl.abi.call import Call
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import span
from accelctl.backends.sim.ops import kernels
from accelctl.errors import UsageError

MOST_BYTES = blobs.HEADER.size + 8 * blobs.MOST_PARAMS + blobs.MOST_BODY
"""Of a blob."""
_REMEMBERED = 1024
"""Plans. The bytes of one that is right are some 10 KiB at most (call.decode), and wrong ones are not kept."""


class Operand(NamedTuple):
    """What is checked of an address."""

    name: str
    span: int
    """Bytes that are used from the address on; 0: none, and the address has no meaning."""
    align: int


class Plan(NamedTuple):
    """An instruction without its addresses. ``operands`` are those that are there, in the order of the addresses."""

    call: Call
    operands: tuple[Operand, ...]
    kernel: str


def read(blob: bytes) -> tuple[Plan, tuple[int, ...]]:
    """What to compute, and the device addresses of its operands. UsageError for everything that is not exactly an
    instruction of this chip."""
    if len(blob) < blobs.HEADER.size:
        blobs.decode(blob)
    head = blob[: blobs.HEADER.size]
    count = min(blobs.HEADER.unpack(head)[3], blobs.MOST_PARAMS)
    start = blobs.HEADER.size + 8 * count
    plan = _plan(head, len(blob), blob[start:])
    params = struct.unpack_from(f"<{count}Q", blob, blobs.HEADER.size)
    for operand, address in zip(plan.operands, params, strict=True):
        if address % operand.align and operand.span:
            raise UsageError(f"{operand.name}: address {address:#x} is no multiple of {operand.align}")
    return plan, params


@lru_cache(maxsize=_REMEMBERED)
def _plan(head: bytes, size: int, rest: bytes) -> Plan:
    """``rest``: the blob behind its addresses, which are taken as 0 here."""
    found = blobs.decode(head + bytes(max(0, size - len(head) - len(rest))) + rest)
    template = kernels.BY_ID.get(found.kernel_id)
    if template is None:
        raise UsageError(f"there is no kernel {found.kernel_id:#x}")
    call = calls.decode(OPS[template.op], found.body, found.params)
    reason = kernels.why_not(template, call)
    if reason:
        raise UsageError(f"kernel {found.kernel_id:#x}: {reason}")
    if template.launch(call) != found.launch:
        raise UsageError(f"kernel {template.name}: a launch of {found.launch}, it needs {template.launch(call)}")
    names = [operand.name for operand in (*call.op.inputs, *call.op.outputs)]
    return Plan(
        call,
        tuple(
            Operand(name, span(one.shape, one.strides, one.dtype), one.dtype.itemsize)
            for name, one in zip(names, (*call.inputs, *call.outputs), strict=True)
            if one is not None
        ),
        template.name,
    )
