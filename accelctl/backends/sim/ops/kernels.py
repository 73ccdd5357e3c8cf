"""The kernels of the simulated chip.

It lacks some on purpose, as chips do, so that the service's lowering has something to do and every test of it is real:

conv2d         only channels first: nhwc needs copies around it
layernorm      no bf16: fp32 does it, with copies
rope           only dense operands
topk_softmax   fp32 only: half scores are copied first
moe_align      only dense operands

One is special: matvec, for products with one column. It sums in one pass over the vector, without the tiles that a
general product needs.

What a kernel lacks, and what no kernel here could compute (sim.ops.shapes), the driver refuses; it never computes
something else instead. The service asks the same table, so that it translates nothing that is refused later.
"""

from __future__ import annotations

from math import prod

from accelctl.abi.call import Call, matmul_dims
from accelctl.abi.condition import MOST, Conditions
from accelctl.abi.launch import MOST_GRID, Launch
from accelctl.abi.ops import Template, elementwise_launch, tiled_launch
from accelctl.abi.opset import ANY
from accelctl.abi.tensors import FLOATS, INTS
from accelctl.backends.sim.ops.shapes import check
from accelctl.errors import UsageError

_TILE = (16, 16)
_ROW = 256
"""Threads that share one row of a reduction."""


def _elements(call: Call) -> Launch:
    return elementwise_launch(call.tensors[-1].elements)


def _matmul(call: Call) -> Launch:
    a, b, y = call.tensors
    rows, _, columns = matmul_dims(a.shape, b.shape)
    return tiled_launch(rows, columns, prod(y.shape) // max(1, rows * columns), _TILE)


def _conv2d(call: Call) -> Launch:
    *batch, channels, height, width = call.tensors[-1].shape
    return tiled_launch(channels, height * width, prod(batch), _TILE)


def _grouped(call: Call) -> Launch:
    rows, columns = call.tensors[-1].shape
    return tiled_launch(rows, columns, call.tensors[1].shape[0], _TILE)


def _blocks(x: int, y: int = 1, z: int = 1, threads: int = _ROW) -> Launch:
    """As many blocks as asked for; what exceeds the grid is strided over."""
    x, y, z = (min(max(1, wanted), most) for wanted, most in zip((x, y, z), MOST_GRID, strict=True))
    return Launch((x, y, z), (threads, 1, 1))


def _rows(call: Call) -> Launch:
    """One block a row of the last axis (of all normalised axes for layernorm)."""
    shape = call.tensors[0].shape
    axis = int(call.attrs.get("axis", -1))  # type: ignore[arg-type]  # an int by the table
    kept = shape[:axis] if call.op.name == "layernorm" else [*shape[:axis], *shape[axis:][1:]]
    return _blocks(prod(kept))


def _rope(call: Call) -> Launch:
    return elementwise_launch(call.tensors[0].elements // 2)


def _prefill(call: Call) -> Launch:
    *batch, heads, queries, _ = call.tensors[0].shape
    return _blocks(-(-queries // 16), heads, prod(batch), 128)


def _decode(call: Call) -> Launch:
    sequences, heads, _ = call.tensors[0].shape
    return _blocks(heads, sequences, 1, 128)


def _tokens(call: Call) -> Launch:
    """A warp a token, eight of them in a block."""
    tokens = call.tensors[0].shape[0]
    return Launch((min(max(1, -(-tokens // 8)), MOST_GRID[0]), 1, 1), (32, 8, 1))


def _one(call: Call) -> Launch:
    """One block: experts are counted in its shared memory."""
    return Launch(block=(1024, 1, 1))


def _fits(call: Call) -> str:
    try:
        check(call)
    except UsageError as error:
        return error.message
    return ""


def _nchw(call: Call) -> str:
    return _fits(call) if call.attrs["layout"] == "nchw" else "its images are channels first (nchw)"


def _matvec(call: Call) -> Launch:
    """A row a warp, eight of them in a block."""
    rows, _, _ = matmul_dims(call.tensors[0].shape, call.tensors[1].shape)
    return Launch((min(max(1, -(-rows // 8)), MOST_GRID[0]), 1, 1), (32, 8, 1))


MATVEC = Conditions(
    dtypes=FLOATS,
    results=FLOATS,
    dims={"N": (1, 1), "batch": (1, 1), "K": (1, MOST)},
    dense=True,
    needs={"threads": _ROW},
)
_HALF = FLOATS - {"fp32"}

TEMPLATES: tuple[Template, ...] = (
    Template(0x0F0, "copy", "copy", ANY, _elements, refuses=_fits, tile=(_ROW,)),
    Template(0x010, "matmul_f", "matmul", FLOATS, _matmul, refuses=_fits, tile=_TILE),
    Template(0x011, "matmul_i", "matmul", INTS, _matmul, refuses=_fits, tile=_TILE),
    Template(
        0x012,
        "matvec",
        "matmul",
        FLOATS,
        _matvec,
        strided=False,
        refuses=_fits,
        tile=(8,),
        conditions=MATVEC,
        fallback="matmul_f",
    ),
    Template(0x020, "conv2d_nchw", "conv2d", FLOATS, _conv2d, refuses=_nchw, tile=_TILE),
    Template(0x030, "layernorm", "layernorm", frozenset({"fp32", "fp16"}), _rows, refuses=_fits, tile=(1, _ROW)),
    Template(0x040, "relu", "relu", ANY, _elements, refuses=_fits, tile=(_ROW,)),
    Template(0x050, "add", "add", ANY, _elements, refuses=_fits, tile=(_ROW,)),
    Template(0x060, "softmax", "softmax", FLOATS, _rows, refuses=_fits, tile=(1, _ROW)),
    Template(0x070, "rmsnorm", "rmsnorm", FLOATS, _rows, refuses=_fits, tile=(1, _ROW)),
    Template(0x080, "rope_dense", "rope", FLOATS, _rope, strided=False, refuses=_fits, tile=(2 * _ROW,)),
    Template(0x090, "silu_and_mul", "silu_and_mul", FLOATS, _elements, refuses=_fits, tile=(_ROW,)),
    Template(0x0A0, "attention_f32", "attention_prefill", frozenset({"fp32"}), _prefill, refuses=_fits, tile=(16,)),
    Template(0x0A1, "attention_half", "attention_prefill", _HALF, _prefill, refuses=_fits, tile=(16,)),
    Template(0x0B0, "paged_attention", "attention_decode", FLOATS, _decode, refuses=_fits, tile=(1,)),
    Template(0x0C0, "grouped_gemm", "grouped_gemm", FLOATS, _grouped, refuses=_fits, tile=_TILE),
    Template(0x0D0, "topk_f32", "topk_softmax", frozenset({"fp32"}), _tokens, refuses=_fits, tile=(8,)),
    Template(0x0E0, "moe_align", "moe_align", frozenset({"int32"}), _one, strided=False, refuses=_fits),
)
"""In the order in which the service tries them; a special one only where it is proven."""

BY_ID: dict[int, Template] = {template.kernel_id: template for template in TEMPLATES}


def why_not(template: Template, call: Call) -> str:
    """Why this kernel cannot take that call; empty where it can."""
    dtype = call.tensors[0].dtype.name
    if dtype not in template.dtypes:
        return f"{template.name} does not take {dtype}"
    if not template.strided and not all(tensor.dense for tensor in call.tensors):
        return f"{template.name} takes dense tensors only"
    failed = template.conditions.failed(call) if template.conditions is not None else ""
    if failed:
        return f"{template.name} takes calls only where {failed}"
    return template.refuses(call) if template.refuses else ""
