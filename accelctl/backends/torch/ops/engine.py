"""Instructions carried out: operands as views of the session's memory, and one function for each op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accelctl.abi.call import Call
from accelctl.abi.tensors import Tensor
from accelctl.backends.torch.ops import attention, contraction, elementwise, norm, position, routing
from accelctl.backends.torch.ops.numeric import TYPES, Array

_UNITS: dict[str, Callable[..., None]] = {
    "matmul": contraction.matmul,
    "conv2d": contraction.conv2d,
    "layernorm": norm.layernorm,
    "relu": elementwise.relu,
    "add": elementwise.add,
    "softmax": norm.softmax,
    "rmsnorm": norm.rmsnorm,
    "rope": position.rope,
    "silu_and_mul": elementwise.silu_and_mul,
    "attention_prefill": attention.prefill,
    "attention_decode": attention.decode,
    "grouped_gemm": contraction.grouped_gemm,
    "topk_softmax": routing.topk_softmax,
    "moe_align": routing.moe_align,
    "copy": elementwise.copy,
}
"""Op -> what computes it: (attributes, outputs, inputs), in the table's order, None for what is left out. Each reads
all it needs before it writes: an output may lie on an input."""


def compute(call: Call, places: Sequence[tuple[Any, int]]) -> None:
    """``places``: memory (bytes) of each operand that is there, and where in it the operand begins; no memory for one
    without elements. Fault for numbers in memory that cannot be used; RuntimeError for what PyTorch does not do."""
    left = list(places)
    device = next((memory.device for memory, _ in places if memory is not None), None)
    if device is None:
        return  # nothing is read or written
    inputs = [None if one is None else _view(one, *left.pop(0), device) for one in call.inputs]
    outputs = [None if one is None else _view(one, *left.pop(0), device) for one in call.outputs]
    _UNITS[call.op.name](call.attrs, *outputs, *inputs)


def _view(tensor: Tensor, memory: Any, at: int, device: Any) -> Array:
    dtype = TYPES[tensor.dtype.name]
    if memory is None:
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    size = tensor.dtype.itemsize
    end = memory.numel() - (memory.numel() - at) % size
    # the stride of an axis of length 1 has no meaning, and may be more than PyTorch can hold
    strides = [step if length > 1 else 0 for length, step in zip(tensor.shape, tensor.strides, strict=True)]
    return memory[at:end].view(dtype).as_strided(tensor.shape, strides)
