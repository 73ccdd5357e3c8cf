"""Instructions that the runtime makes itself: copies, fills, and whatever op it is told.

A chip has one kernel for certain, ``copy`` (``CERTAIN``). With a stride of 0 it fills, and over
whole words it is quicker.
"""

from __future__ import annotations

from accelctl.abi import blob, call
from accelctl.abi.call import Call
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Ops, Template
from accelctl.abi.opset import OPS
from accelctl.abi.runtime.failure import NoKernel
from accelctl.abi.tensors import INT32, UINT8, DType, tensor

CERTAIN = "copy"
WORD = 4
"""Bytes of the element type for whole words."""


def choose(ops: Ops, made: Call) -> Template:
    """The first kernel that takes a call; a special one (with a fallback) is dispatch's to choose. not_supported."""
    why = f"no kernel of {made.op.name} takes {made.tensors[0].dtype.name}"
    for template in ops.templates():
        if template.op != made.op.name or made.tensors[0].dtype.name not in template.dtypes:
            continue
        if getattr(template, "fallback", "") or (not template.strided and not all(one.dense for one in made.tensors)):
            continue
        reason = template.refuses(made) if template.refuses else ""
        if not reason:
            return template
        why = f"{template.name}: {reason}"
    raise NoKernel(made.op.name, why)


def instruction(template: Template, made: Call, launch: Launch | None = None) -> bytes:
    """The blob; without a launch, the one that the kernel needs."""
    word = (launch or template.launch(made)).encode()
    return blob.encode(template.kernel_id, word, [one.address for one in made.tensors], call.encode(made))


def _moved(ops: Ops, to: int, source: int, count: int, dtype: DType, step: int) -> bytes:
    """``step`` 1: copies; 0: repeats one element."""
    x, y = tensor((count,), dtype, source, (step,)), tensor((count,), dtype, to)
    made = Call(OPS[CERTAIN], (x,), (y,), {})
    return instruction(choose(ops, made), made)


def copies(ops: Ops, to: int, source: int, size: int) -> list[bytes]:
    """So many bytes from one device address to another."""
    words = size // WORD if to % WORD == 0 and source % WORD == 0 else 0
    found = [_moved(ops, to, source, words, INT32, 1)] if words else []
    done = words * WORD
    return found + ([_moved(ops, to + done, source + done, size - done, UINT8, 1)] if size > done else [])


def fills(ops: Ops, to: int, value: int, size: int, table: int) -> list[bytes]:
    """So many bytes of one value; ``table``: where a device keeps every byte, four times each."""
    entry = table + WORD * value
    words = size // WORD if to % WORD == 0 else 0
    found = [_moved(ops, to, entry, words, INT32, 0)] if words else []
    done = words * WORD
    return found + ([_moved(ops, to + done, entry, size - done, UINT8, 0)] if size > done else [])
