"""Operators on a chip in tests: operands are written through the CPU's mapping, an instruction is submitted, and
results are read back. Nothing of the service is in between, and nothing of its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from accelctl.abi import blob, call
from accelctl.abi.call import Call
from accelctl.abi.lifecycle import Block, Session
from accelctl.abi.ops import Ops, Template
from accelctl.abi.opset import OPS
from accelctl.abi.queue import Ring
from accelctl.abi.tensors import DTYPES, Tensor, dense_strides, span

Array = NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
NUMPY = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": BF16,
    "int8": np.dtype(np.int8),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
NAMES = {dtype: name for name, dtype in NUMPY.items()}
EMPTY = 0xA5
"""What memory holds that nobody wrote to."""


class Out:
    """An output as it is asked for; without strides it is dense."""

    def __init__(self, shape: Sequence[int], dtype: str = "fp32", strides: Sequence[int] = ()) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.strides = tuple(strides) or dense_strides(self.shape)


def view(values: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """A view of flat values with strides in elements."""
    flat = np.asarray(values).astype(NUMPY[dtype]).reshape(-1)
    size = flat.dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, tuple(shape), [stride * size for stride in strides])


def array(values: Any, dtype: str = "fp32") -> Array:
    """Values rounded to an element type; "inf" and "nan" may be words."""
    return np.asarray(values, np.float64).astype(NUMPY[dtype])


class Machine:
    """A session of a chip, a ring, and one block that operands are put into, one behind the other."""

    def __init__(self, ops: Ops, session: Session, ring: Ring, block: Block) -> None:
        self.ops, self.session, self.ring, self.block = ops, session, ring, block
        self.at = 0

    def run(
        self, name: str, inputs: Mapping[str, Array | None], outputs: Mapping[str, Out], **attrs: str
    ) -> dict[str, Array]:
        """What the chip makes of it: the first kernel that takes the call. Outputs by name."""
        made = self.call(name, inputs, outputs, **attrs)
        assert self.ring.wait(self.ring.submit(self.instruction(made)), 60.0)
        there = zip(made.op.outputs, made.outputs, strict=True)
        return {operand.name: self.read(one) for operand, one in there if one is not None}

    def call(self, name: str, inputs: Mapping[str, Array | None], outputs: Mapping[str, Out], **attrs: str) -> Call:
        """The call, its operands in memory and its outputs filled with rubbish."""
        op, self.at = OPS[name], 0
        unknown = (inputs.keys() | outputs.keys()) - {operand.name for operand in (*op.inputs, *op.outputs)}
        assert not unknown, f"{name} has no {unknown}"
        given = [inputs.get(operand.name) for operand in op.inputs]
        wanted = [outputs.get(operand.name) for operand in op.outputs]
        return Call(
            op,
            tuple(None if one is None else self.put(one) for one in given),
            tuple(None if one is None else self.room(one) for one in wanted),
            op.parse(attrs),
        )

    def put(self, values: Array) -> Tensor:
        """An operand with the strides of the array."""
        strides = tuple(
            stride // values.itemsize if length > 1 else 1
            for stride, length in zip(values.strides, values.shape, strict=True)
        )
        placed = self.place(Tensor(values.shape, DTYPES[NAMES[values.dtype]], strides))
        if values.size:
            self.window(placed)[...] = values
        return placed

    def room(self, wanted: Out) -> Tensor:
        """An output's place."""
        return self.place(Tensor(wanted.shape, DTYPES[wanted.dtype], wanted.strides))

    def place(self, tensor: Tensor) -> Tensor:
        """The next free place, with a gap behind it that holds rubbish as well."""
        size = span(tensor.shape, tensor.strides, tensor.dtype)
        assert self.block.map is not None
        assert self.at + size + 256 <= self.block.size, "the block is full"
        self.block.map[self.at : self.at + size + 256] = bytes([EMPTY]) * (size + 256)
        placed = tensor._replace(address=self.block.address + self.at)
        self.at += (size + 255) // 256 * 256
        return placed

    def window(self, tensor: Tensor) -> Array:
        """The operand in the block's memory."""
        dtype = NUMPY[tensor.dtype.name]
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        found: Array = np.ndarray(tensor.shape, dtype, self.block.map, tensor.address - self.block.address, strides)
        return found

    def read(self, tensor: Tensor) -> Array:
        """A copy of it."""
        return self.window(tensor).copy() if tensor.elements else np.empty(tensor.shape, NUMPY[tensor.dtype.name])

    def template(self, made: Call) -> Template:
        """As the service chooses, the first that takes it; where all refuse, one that the device must refuse itself."""
        dense = all(one.dense for one in made.tensors)
        there = [one for one in self.ops.templates() if one.op == made.op.name and (one.strided or dense)]
        fits = [one for one in there if made.tensors[0].dtype.name in one.dtypes]
        takes = [one for one in fits if not (one.refuses and one.refuses(made))]
        found = takes or fits
        assert found, f"no kernel takes {made}"
        return found[0]

    def instruction(self, made: Call, kernel: Template | None = None) -> bytes:
        """The blob."""
        kernel = kernel or self.template(made)
        word = kernel.launch(made).encode()
        return blob.encode(kernel.kernel_id, word, [one.address for one in made.tensors], call.encode(made))


@contextmanager
def machine(ops: Ops, session: Session, size: int = 16 << 20, depth: int = 8) -> Iterator[Machine]:
    """With a ring and a block of the session's, which are given back."""
    (life,) = (life for life in session.lifecycles if life.name == ops.lifecycle())
    block, ring = Block(size), ops.open(session, depth)
    for stage in life.stages:
        stage.acquire(block)
    try:
        yield Machine(ops, session, ring, block)
    finally:
        ring.close()
        for stage in reversed(life.stages):
            if stage.release is not None:
                stage.release(block)
