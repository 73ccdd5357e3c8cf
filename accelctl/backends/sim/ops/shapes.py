"""Which calls make sense: element types and shapes of operands, for every op. UsageError names what is wrong.

The service has checked all this already; a device that believed it would read and write past its operands when the
service is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import cast

from accelctl.abi.call import Call
from accelctl.abi.tensors import FLOATS, INTS, Shape, Tensor, broadcast, show
from accelctl.errors import UsageError

MOST_ELEMENTS = 1 << 28
"""Of one operand, repeated ones counted: 1 GiB as fp32, which is how it is computed."""

MOST_WORK = 1 << 38
"""Products of one instruction, some seconds of this CPU: what a real device's watchdog is for."""
MOST_EXPERTS = 1 << 12


def check(call: Call) -> None:
    """UsageError unless the call can be computed as it stands."""
    for operand, tensor in zip((*call.op.inputs, *call.op.outputs), (*call.inputs, *call.outputs), strict=True):
        if tensor is None:
            _need(operand.optional, "{}: it is missing", operand.name)
            continue
        _need(tensor.dtype.name in operand.dtypes, "{}: {} takes no {}", operand.name, call.op.name, tensor.dtype.name)
        _need(tensor.elements <= MOST_ELEMENTS, "{}: more than {} elements", operand.name, MOST_ELEMENTS)
    for operand, tensor in zip(call.op.outputs, call.outputs, strict=True):
        _need(tensor is None or _apart(tensor), "{}: elements lie on each other", operand.name)
    _RULES[call.op.name](call)


def _need(right: bool, wrong: str, *said: object) -> None:
    """``wrong``, if it is: put together then only, since this is asked for every call. Shapes are written as such."""
    if not right:
        raise UsageError(
            wrong.format(*(show(one) if isinstance(one, tuple) else one for one in said)) if said else wrong
        )


def _apart(tensor: Tensor) -> bool:
    """Whether no two elements share a place: each stride steps over all that the smaller ones reach."""
    if 0 in tensor.shape:
        return True
    reach = 0
    for stride, length in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if length > 1:
            if stride <= reach:
                return False
            reach += stride * (length - 1)
    return True


def _there(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Operands of which none can be left out."""
    return cast("tuple[Tensor, ...]", tensors)


def _is(name: str, tensor: Tensor | None, shape: Shape, *dtypes: str) -> None:
    """Shape, and one of these element types; an operand that is left out is right."""
    if tensor is not None:
        _need(tensor.shape == shape, "{}: shape {}, it must be {}", name, tensor.shape, shape)
        if tensor.dtype.name not in dtypes:
            raise UsageError(f"{name}: {tensor.dtype.name}, it must be {' or '.join(dtypes)}")


def _rank(name: str, tensor: Tensor, *ranks: int) -> None:
    words = " or ".join(map(str, ranks))
    _need(len(tensor.shape) in ranks, "{}: {} dimensions, it must have {}", name, len(tensor.shape), words)


def _bounded(work: int) -> None:
    _need(work <= MOST_WORK, "{} products are more than the {} that one instruction may ask for", work, MOST_WORK)


def _number(call: Call, name: str) -> int:
    return cast("int", call.attrs[name])


def _matmul(call: Call) -> None:
    (a, b), (y,) = _there(call.inputs), _there(call.outputs)
    _need(bool(a.shape) and bool(b.shape), "A, B: a scalar is no matrix")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    _need(a.shape[-1] == inner, "A {} and B {}: the inner lengths differ", a.shape, b.shape)
    shape = broadcast(a.shape[:-2], b.shape[:-2]) + a.shape[-2:-1] + (b.shape[-1:] if len(b.shape) > 1 else ())
    _need(a.dtype == b.dtype, "A is {}, B is {}", a.dtype.name, b.dtype.name)
    _is("Y", y, shape, *((a.dtype.name, "fp32") if a.dtype.floating else ("int32",)))
    _bounded(y.elements * inner)


def _pair(call: Call, name: str, count: int, least: int) -> tuple[int, ...]:
    found = cast("tuple[int, ...]", call.attrs[name])
    right = len(found) == count and min(found) >= least
    _need(right, f"attrs[{name!r}]: {count} numbers of at least {least}")
    return found


def conv_pads(call: Call) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows before and after the image, then columns. UsageError where they are said twice."""
    x, w = _there(call.inputs[:2])
    sizes = x.shape[-3:-1] if call.attrs["layout"] == "nhwc" else x.shape[-2:]
    top, left, bottom, right = _pair(call, "pads", 4, 0)
    how = call.attrs["auto_pad"]
    if how == "notset":
        return (top, bottom), (left, right)
    _need(not top + left + bottom + right, "attrs['pads']: with auto_pad nobody says them")
    if how == "valid":
        return (0, 0), (0, 0)
    found = []
    steps = zip(sizes, w.shape[2:], _pair(call, "strides", 2, 1), _pair(call, "dilations", 2, 1), strict=True)
    for size, kernel, stride, dilation in steps:
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size)
        less, more = total // 2, total - total // 2
        found.append((less, more) if how == "same_upper" else (more, less))
    return found[0], found[1]


def _conv2d(call: Call) -> None:
    (x, w), (y,) = _there(call.inputs[:2]), _there(call.outputs)
    _rank("X", x, 3, 4)
    _rank("W", w, 4)
    last = call.attrs["layout"] == "nhwc"
    *batch, _, _, _ = x.shape
    channels, *sizes = (x.shape[-1], *x.shape[-3:-1]) if last else x.shape[-3:]
    group, (out, inner, *kernel) = _number(call, "group"), w.shape
    _need(
        group >= 1 and out % group == 0 and out > 0, "attrs['group']: {} does not divide {} channels of W", group, out
    )
    _need(
        channels > 0 and channels == inner * group, "X has {} channels, W takes {} in {} groups", channels, inner, group
    )
    pads, strides, dilations = conv_pads(call), _pair(call, "strides", 2, 1), _pair(call, "dilations", 2, 1)
    padded = [size + sum(pad) for size, pad in zip(sizes, pads, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    _need(min(kernel) > 0, "W: an empty kernel")
    _need(all(r <= size for r, size in zip(reach, padded, strict=True)), "W: larger than the padded image")
    _need(prod(batch) * channels * prod(padded) <= MOST_ELEMENTS, "attrs['pads']: the padded images are too large")
    found = [(size - r) // s + 1 for size, r, s in zip(padded, reach, strides, strict=True)]
    shape = (*batch, *found, out) if last else (*batch, out, *found)
    _is("W", w, w.shape, x.dtype.name)
    _is("B", call.input("B"), (out,), x.dtype.name)
    _is("Y", y, shape, x.dtype.name)
    _bounded(y.elements * inner * prod(kernel))


def axis_of(call: Call) -> int:
    """The attribute ``axis``, from the front. A scalar has the axis 0 of a vector of one."""
    x = cast("Tensor", call.inputs[0])
    rank, axis = max(1, len(x.shape)), _number(call, "axis")
    _need(-rank <= axis < rank, "attrs['axis']: X has {} dimensions, no axis {}", len(x.shape), axis)
    return axis % rank


def _layernorm(call: Call) -> None:
    x, y = cast("Tensor", call.inputs[0]), _there(call.outputs)[0]
    _need(bool(x.shape), "X: a scalar has nothing to normalise over")
    inner = x.shape[axis_of(call) :]
    _is("scale", call.input("scale"), inner, x.dtype.name)
    _is("B", call.input("B"), inner, x.dtype.name)
    _is("Y", y, x.shape, x.dtype.name)


def _softmax(call: Call) -> None:
    (x,), (y,) = _there(call.inputs), _there(call.outputs)
    axis_of(call)
    _is("Y", y, x.shape, x.dtype.name, "fp32")


def _rmsnorm(call: Call) -> None:
    x, (y, kept) = cast("Tensor", call.inputs[0]), call.outputs
    _need(bool(x.shape), "X: a scalar has nothing to normalise over")
    scale, residual, variant = call.input("scale"), call.input("residual"), call.attrs["variant"]
    fused = variant == "fused_add"
    _need(fused == (residual is not None), "residual: it goes with variant fused_add, and only with that")
    _need(fused or kept is None, "residual_out: it goes with variant fused_add only")
    _is("scale", scale, x.shape[-1:], x.dtype.name)
    for name, tensor in (("residual", residual), ("Y", y), ("residual_out", kept)):
        _is(name, tensor, x.shape, x.dtype.name)


def _same(call: Call) -> None:
    (x,), (y,) = _there(call.inputs), _there(call.outputs)
    _is("Y", y, x.shape, x.dtype.name)


def promoted(a: Tensor, b: Tensor) -> str:
    """Element type of a sum. UsageError for two kinds of integers."""
    one, other = a.dtype.name, b.dtype.name
    floats = sorted({one, other} & FLOATS)
    _need(bool(floats) or one == other, "A is {}, B is {}: integers of two kinds are not added", one, other)
    return one if one == other else floats[0] if len(floats) == 1 else "fp32"


def _add(call: Call) -> None:
    (a, b), (c,) = _there(call.inputs), _there(call.outputs)
    dtype, alpha = promoted(a, b), cast("float", call.attrs["alpha"])
    _need(dtype in FLOATS or alpha.is_integer(), f"attrs['alpha']: {alpha:g} is no whole number, and {dtype} is")
    _is("C", c, broadcast(a.shape, b.shape), dtype)


def _rope(call: Call) -> None:
    (x, positions), (y,) = _there(call.inputs), _there(call.outputs)
    _need(len(x.shape) >= 2, "X: it must be tokens, heads, dim")
    rotated = _number(call, "rotary_dim") or x.shape[-1]
    _need(0 <= rotated <= x.shape[-1] and rotated % 2 == 0, "attrs['rotary_dim']: {} of {}", rotated, x.shape[-1])
    _need(cast("float", call.attrs["base"]) > 0, "attrs['base']: it must be above 0")
    _is("positions", positions, x.shape[:-2], "int32")
    _is("Y", y, x.shape, x.dtype.name)


def _silu_and_mul(call: Call) -> None:
    (x,), (y,) = _there(call.inputs), _there(call.outputs)
    _need(bool(x.shape) and x.shape[-1] % 2 == 0, "X: its last axis is not two halves")
    _is("Y", y, (*x.shape[:-1], x.shape[-1] // 2), x.dtype.name)


def _attending(call: Call, heads: int, kv_heads: int, dim: int) -> None:
    _need(kv_heads > 0 and heads % kv_heads == 0, "Q has {} heads, no multiple of {}", heads, kv_heads)
    _need(dim > 0, "Q: heads of no length")
    _need(cast("float", call.attrs["softcap"]) >= 0, "attrs['softcap']: it is not below 0")
    _need(_number(call, "window") >= 0, "attrs['window']: it is not below 0")


def _prefill(call: Call) -> None:
    q, k, v = _there(call.inputs[:3])
    for name, tensor in (("Q", q), ("K", k), ("V", v)):
        _rank(name, tensor, 3, 4)
        _need(tensor.dtype == q.dtype, "{}: {}, Q is {}", name, tensor.dtype.name, q.dtype.name)
    *batch, heads, queries, dim = q.shape
    kv_heads, keys, wide = k.shape[-3], k.shape[-2], v.shape[-1]
    _attending(call, heads, kv_heads, dim)
    _need(k.shape == (*batch, kv_heads, keys, dim), "K: shape {} does not fit Q {}", k.shape, q.shape)
    _need(v.shape == (*batch, kv_heads, keys, wide), "V: shape {} does not fit K {}", v.shape, k.shape)
    mask = call.input("mask")
    if mask is not None:
        full = (prod(batch), heads, queries, keys)
        _need(broadcast(mask.shape, full) == full, "mask: {} is not repeated to {}", mask.shape, full)
        _need(mask.dtype.name in ("uint8", q.dtype.name), "mask: {}, it must be uint8 or as Q", mask.dtype.name)
    _need(heads // kv_heads * keys <= MOST_ELEMENTS, "K: more keys than one row of scores can have")
    _bounded(prod(batch) * heads * queries * keys * (dim + wide))
    _is("O", call.outputs[0], (*batch, heads, queries, wide), q.dtype.name)
    _is("lse", call.outputs[1], (*batch, heads, queries), "fp32")


def _decode(call: Call) -> None:
    q, k, v, table, lens = _there(call.inputs)
    for name, tensor, rank in (("Q", q, 3), ("k_cache", k, 4), ("v_cache", v, 4), ("block_table", table, 2)):
        _rank(name, tensor, rank)
    sequences, heads, dim = q.shape
    blocks, size, kv_heads, _ = k.shape
    _attending(call, heads, kv_heads, dim)
    _need(size == _number(call, "block_size") > 0, "attrs['block_size']: blocks of k_cache have {} tokens", size)
    _is("k_cache", k, (blocks, size, kv_heads, dim), q.dtype.name)
    _is("v_cache", v, (blocks, size, kv_heads, v.shape[3]), q.dtype.name)
    _is("block_table", table, (sequences, table.shape[1]), "int32")
    _is("seq_lens", lens, (sequences,), "int32")
    _is("O", call.outputs[0], (sequences, heads, v.shape[3]), q.dtype.name)
    _is("lse", call.outputs[1], (sequences, heads), "fp32")


def _grouped(call: Call) -> None:
    (a, b, offs), (y,) = _there(call.inputs), _there(call.outputs)
    _rank("A", a, 2)
    _rank("B", b, 3)
    groups, inner, columns = b.shape
    _is("A", a, (a.shape[0], inner), a.dtype.name)
    _is("B", b, b.shape, a.dtype.name)
    _is("offs", offs, (groups,), "int32")
    _is("Y", y, (a.shape[0], columns), a.dtype.name)
    _bounded(y.elements * inner)


def _topk(call: Call) -> None:
    gating, (weights, ids) = cast("Tensor", call.inputs[0]), _there(call.outputs)
    _rank("gating", gating, 2)
    tokens, experts = gating.shape
    k = _number(call, "k")
    _need(0 <= k <= experts, "attrs['k']: {} of {} experts", k, experts)
    _is("bias", call.input("bias"), (experts,), gating.dtype.name)
    _is("weights", weights, (tokens, k), "fp32")
    _is("ids", ids, (tokens, k), "int32")


def _align(call: Call) -> None:
    slots, outputs = cast("Tensor", call.inputs[0]), _there(call.outputs)
    _rank("topk_ids", slots, 2)
    experts, block = _number(call, "num_experts"), _number(call, "block_size")
    _need(0 < experts <= MOST_EXPERTS, "attrs['num_experts']: 1 to {} are possible", MOST_EXPERTS)
    _need(block > 0, "attrs['block_size']: it must be above 0")
    length = slots.elements + experts * (block - 1)
    blocks = -(-length // block)
    _is("expert_map", call.input("expert_map"), (experts,), "int32")
    _is("sorted_token_ids", outputs[0], (blocks * block if call.attrs["pad_sorted_ids"] else length,), "int32")
    _is("expert_ids", outputs[1], (blocks,), "int32")
    _is("num_tokens_post_pad", outputs[2], (1,), "int32")


def _copy(call: Call) -> None:
    (x,), (y,) = _there(call.inputs), _there(call.outputs)
    repeated = broadcast(x.shape, y.shape)
    _need(repeated == y.shape, "X {} is not repeated to {}", x.shape, y.shape)
    _is("Y", y, y.shape, *(FLOATS | INTS))


_RULES: dict[str, Callable[[Call], None]] = {
    "matmul": _matmul,
    "conv2d": _conv2d,
    "layernorm": _layernorm,
    "relu": _same,
    "add": _add,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "silu_and_mul": _silu_and_mul,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "grouped_gemm": _grouped,
    "topk_softmax": _topk,
    "moe_align": _align,
    "copy": _copy,
}
