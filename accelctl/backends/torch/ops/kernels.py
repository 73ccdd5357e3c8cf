"""The table of kernels. PyTorch takes views and every element type, so nothing has to be copied around them.

PyTorch chooses its own grids; the launch here covers the elements of the first result, and an instruction must say just
that one. What is between operands and results is PyTorch's to allocate, and a tensor that is repeated by strides of 0
costs its client nothing: so every kernel has limits, or one request could take the machine's memory, or run for days.
"""

from __future__ import annotations

from math import prod
from typing import cast

from accelctl.abi.call import Call, matmul_dims
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Template, elementwise_launch
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import Tensor, broadcast

MOST_ELEMENTS = 1 << 30
"""Of one tensor, repeated ones counted: 4 GiB in fp32, as which it is computed."""
MOST_WORK = 1 << 43
"""Products of one instruction: a second of a GPU, minutes of a CPU."""
MOST_INNER = 1 << 20
"""Length of an int32 product: partial sums of halves stay exact in fp64."""
MOST_EXPERTS = 1 << 16


def _launch(call: Call) -> Launch:
    first = call.outputs[0]
    return elementwise_launch(first.elements if first is not None else 1)


def refusal(call: Call) -> str:
    """Why it is not computed; empty where it is."""
    if any(one.elements > MOST_ELEMENTS for one in call.tensors):
        return f"tensors of at most {MOST_ELEMENTS} elements are possible"
    return _OWN[call.op.name](call) if call.op.name in _OWN else ""


def _bounded(elements: int, work: int = 0) -> str:
    if elements > MOST_ELEMENTS:
        return f"it would need room for {elements} elements, at most {MOST_ELEMENTS} are possible"
    return f"{work} products are more than the {MOST_WORK} of one instruction" if work > MOST_WORK else ""


def _there(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return cast("tuple[Tensor, ...]", tensors)


def _matmul(call: Call) -> str:
    a, b = _there(call.inputs)
    if a.dtype != b.dtype:
        return "its operands have one type"
    m, k, n = matmul_dims(a.shape, b.shape)
    if a.dtype.name == "int32" and k > MOST_INNER:
        return f"it sums at most {MOST_INNER} products of int32"
    batch = prod(broadcast(a.shape[:-2], b.shape[:-2]))
    return _bounded(batch * k * max(m, n), batch * m * k * n)  # operands are repeated in memory


def _conv2d(call: Call) -> str:
    x, w = _there(call.inputs[:2])
    pads = cast("tuple[int, ...]", call.attrs["pads"])
    if len(pads) != 4 or len(w.shape) != 4 or len(x.shape) not in (3, 4):
        return "images have 3 or 4 dimensions, weights 4, and there are 4 pads"
    last = call.attrs["layout"] == "nhwc"
    *outer, rows, columns = (*x.shape[:-3], x.shape[-1], *x.shape[-3:-1]) if last else x.shape
    reach = [
        gap * taps for gap, taps in zip(cast("tuple[int, ...]", call.attrs["dilations"]), w.shape[2:], strict=False)
    ]
    more = [pads[0] + pads[2], pads[1] + pads[3]] if call.attrs["auto_pad"] == "notset" else reach
    out = _there(call.outputs)[0].elements
    return _bounded(prod(outer) * (rows + more[0]) * (columns + more[1]), out * prod(w.shape[1:]))


def _prefill(call: Call) -> str:
    q, k, v = _there(call.inputs[:3])
    if not 3 <= len(q.shape) == len(k.shape) == len(v.shape) <= 4:
        return "Q, K and V have 3 or 4 dimensions"
    row = prod(q.shape[:-2]) * k.shape[-2]
    return _bounded(row, row * q.shape[-2] * (q.shape[-1] + v.shape[-1]))


def _grouped(call: Call) -> str:
    a, b = _there(call.inputs[:2])
    return _bounded(0, a.elements * b.shape[-1]) if b.shape else "B is a batch of matrices"


def _align(call: Call) -> str:
    experts = cast("int", call.attrs["num_experts"])
    return "" if 0 < experts <= MOST_EXPERTS else f"1 to {MOST_EXPERTS} experts are possible"


_OWN = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "attention_prefill": _prefill,
    "grouped_gemm": _grouped,
    "moe_align": _align,
}

TEMPLATES: tuple[Template, ...] = tuple(
    Template(op.code, op.name, op.name, op.inputs[0].dtypes, _launch, refuses=refusal) for op in OPS.values()
)
"""One for each op."""
BY_ID: dict[int, Template] = {template.kernel_id: template for template in TEMPLATES}
