"""What each op is to PyTorch: the function it stands for, its schema as a custom op, and the shapes of its results.

The schema follows from the op's own table (abi.opset), so that the two cannot part. Every op here is functional: it
writes its results and nothing else. Its launch follows from shapes and attributes alone, so a captured graph may
replay it.
"""

from __future__ import annotations

from accelctl.abi.capability import Semantics
from accelctl.abi.opset import OPS, Attr, Op, text_of

NAMESPACE = "accelctl"

_TORCH: dict[str, tuple[str, str]] = {
    "matmul": (
        "torch.matmul",
        "Y: batches of A and B broadcast, then M of A, N of B; of a vector neither row nor column is kept",
    ),
    "conv2d": (
        "torch.nn.functional.conv2d; also nhwc and automatic pads",
        "Y: N, O of W, and (length + pads - dilation * (taps - 1) - 1) // stride + 1 for rows and columns",
    ),
    "layernorm": ("torch.nn.functional.layer_norm over the dimensions from axis on", "Y: as X"),
    "relu": ("torch.relu", "Y: as X"),
    "add": ("torch.add, alpha included", "C: A and B broadcast; type by promotion"),
    "softmax": ("torch.softmax", "Y: as X"),
    "rmsnorm": ("torch.nn.functional.rms_norm; fused_add also sums the residual", "Y: as X; residual_out: as X"),
    "rope": ("rotary embedding of transformers, by style", "Y: as X"),
    "silu_and_mul": ("silu(first half) * second half, as vLLM's SiluAndMul", "Y: as X, the last length halved"),
    "attention_prefill": (
        "torch.nn.functional.scaled_dot_product_attention, with window, softcap and lse",
        "O: as Q with the last length of V; lse: as Q without its last length",
    ),
    "attention_decode": (
        "paged attention of one new token for each sequence",
        "O: as Q with the last length of v_cache; lse: as Q without its last length",
    ),
    "grouped_gemm": ("rows up to offs[g] times B[g]", "Y: rows of A, columns of B"),
    "topk_softmax": ("softmax (or sigmoid), then torch.topk", "weights and ids: rows of gating, k"),
    "moe_align": ("slots sorted by expert, padded to whole blocks", "from the number of slots, experts and block_size"),
    "copy": ("Tensor.copy_ of a new tensor: type and strides of the result", "Y: as asked for, X broadcast to it"),
}
_KINDS = {"int": "int", "float": "float", "bool": "bool", "ints": "int[]", "word": "str"}


def schema_of(op: Op, name: str = "") -> str:
    """As torch.library writes it. ``name``: of a kernel with a schema of its own."""
    operands = [f"Tensor{'?' if one.optional else ''} {one.name}" for one in op.inputs]
    attrs = [_attr(attr) for attr in op.attrs]
    results = ", ".join(f"Tensor{'?' if one.optional else ''}" for one in op.outputs)
    arguments = ", ".join([*operands, *(["*", *attrs] if attrs else [])])
    return f"{NAMESPACE}::{name or op.name}({arguments}) -> {results if len(op.outputs) == 1 else f'({results})'}"


def _attr(attr: Attr) -> str:
    kind = f"{_KINDS[attr.kind]} {attr.name}"
    if attr.default is None:
        return kind
    text = text_of(attr.default)
    shown = {"bool": text.title(), "ints": f"[{text}]", "word": f'"{text}"'}
    return f"{kind}={shown.get(attr.kind, text)}"


def semantics_of(op: str) -> dict[str, Semantics]:
    """By framework."""
    function, meta = _TORCH[op]
    return {"torch": Semantics(function, schema_of(OPS[op]), meta, (), graph_capture=True)}
