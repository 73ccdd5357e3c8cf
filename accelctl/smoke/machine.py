"""The small transformer's machine (smoke.decode) on a session of the service.

Ops are submitted one after the other and never waited for: the queue keeps their order. Only ``get`` waits, for the
last fence. Memory goes back when the loop is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import DTYPES, dense_strides
from accelctl.smoke.numbers import NUMPY, Array, name_of
from accelctl.smoke.through import WAIT_S, described
from accelctl.umd.client import ClientSession, ServiceError


class Placed(NamedTuple):
    """A tensor in the session's memory: its description, and what of that Python code asks for."""

    desc: Any
    shape: tuple[int, ...]
    dtype: str


class ServiceMachine:
    """See smoke.decode.Machine."""

    def __init__(self, session: ClientSession, kernels: Callable[[Any], list[tuple[str, str]]]) -> None:
        """kernels: name and op of each instruction of an answer."""
        self._session, self._kernels = session, kernels
        self._blocks: dict[int, Any] = {}
        self._fence = 0
        self.kernels: Counter[tuple[str, str]] = Counter()
        """The same by kernel: name and op."""

    def close(self) -> None:
        """Wait for what is in flight, and give all memory back."""
        self._settle()
        while self._blocks:
            self._session.free(self._blocks.popitem()[1])

    def _settle(self) -> None:
        if self._fence and not self._session.wait(self._fence, WAIT_S):
            raise ServiceError(f"the queue did not come to fence {self._fence} in {WAIT_S:g} s", kind="timeout")

    def _new(self, shape: Sequence[int], dtype: str) -> Placed:
        size = DTYPES[dtype].itemsize * int(np.prod(shape, dtype=np.int64))
        block = self._session.alloc_bytes(max(1, size))
        self._blocks[block.tensor_id] = block
        return Placed(described(block, tuple(shape), dtype, dense_strides(shape)), tuple(shape), dtype)

    def put(self, array: Array) -> Placed:
        """See Machine."""
        placed = self._new(array.shape, name_of(array))
        if array.size:
            self._session.write(placed.desc, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return placed

    def empty(self, shape: Sequence[int], dtype: str) -> Placed:
        """See Machine."""
        return self._new(shape, dtype)

    def view(self, tensor: Placed, shape: Sequence[int], strides: Sequence[int], offset: int) -> Placed:
        """See Machine."""
        block = self._blocks[tensor.desc.tensor_id]
        desc = described(block, tuple(shape), tensor.dtype, tuple(strides), offset)
        return Placed(desc, tuple(shape), tensor.dtype)

    def run(
        self, op: str, inputs: Mapping[str, Placed], attrs: Mapping[str, str], outputs: Mapping[str, Placed]
    ) -> Mapping[str, Placed]:
        """See Machine."""
        table = OPS[op]
        given = [inputs[one.name].desc if one.name in inputs else None for one in table.inputs]
        wanted = [outputs[one.name].desc if one.name in outputs else None for one in table.outputs]
        response = self._session.translate(self._session.request(op, given, wanted, attrs, submit=True))
        self._fence = max(self._fence, response.fence)
        self.kernels.update(self._kernels(response))
        found = dict(outputs)
        for operand, desc in zip(table.outputs, response.outputs, strict=False):
            if operand.name not in outputs and desc.tensor_id:
                self._blocks[desc.tensor_id] = desc
                dtype = next(name for name, one in DTYPES.items() if one.code == desc.data_type)
                found[operand.name] = Placed(desc, tuple(desc.shape), dtype)
        return found

    def get(self, tensor: Placed) -> Array:
        """See Machine. For dense tensors at the start of their memory: what put, empty and run make."""
        self._settle()
        size = NUMPY[tensor.dtype].itemsize * int(np.prod(tensor.shape, dtype=np.int64))
        raw = self._session.read(tensor.desc, size=size)
        return np.frombuffer(raw, NUMPY[tensor.dtype]).reshape(tensor.shape)
