"""Where the tensors of a client lie, as far as it was told: what reading and writing views of them takes."""

from __future__ import annotations

from collections.abc import Iterable

from accelctl.abi.opset import BY_CODE as OPS
from accelctl.abi.tensors import BY_CODE as DTYPES
from accelctl.abi.tensors import dense_strides, span
from accelctl.errors import UsageError
from accelctl.umd.proto import umd_pb2 as pb


class Places:
    """tensor_id -> where its memory begins. The protocol reads and writes bytes of a tensor's whole memory, and a view
    says only its own address."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}

    def made(self, outputs: Iterable[pb.TensorDesc]) -> None:
        """The service allocated these; one that is known already is a view of what it was then."""
        for one in outputs:
            self._starts.setdefault(one.tensor_id, one.device_addr)

    def freed(self, tensor_id: int) -> None:
        """No such tensor any more."""
        self._starts.pop(tensor_id, None)

    def within(self, tensor: pb.TensorDesc, offset: int, size: int) -> int:
        """Where in its memory that part of a tensor, or of a view of one, begins. UsageError for what is before it."""
        at = offset
        if tensor.device_addr:
            at += tensor.device_addr - self._starts.get(tensor.tensor_id, tensor.device_addr)
        if offset < 0 or at < 0 or size < 0:
            raise UsageError(f"{size} bytes from {offset} on are not inside the tensor")
        return at


def extent(tensor: pb.TensorDesc) -> int:
    """Bytes from a tensor's first element to its last; of one without a type, what it says itself. UsageError."""
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        return tensor.byte_size
    shape = tuple(tensor.shape)
    return span(shape, tuple(tensor.strides) or dense_strides(shape), dtype)


def all_placed(request: pb.OpRequest) -> bool:
    """The service allocates nothing for it: every result that the op cannot do without has its place."""
    op = OPS.get(request.op_type)
    needed = sum(not operand.optional for operand in op.outputs) if op is not None else 1
    return len(request.outputs) >= needed and all(one.tensor_id or one.device_addr for one in request.outputs)
