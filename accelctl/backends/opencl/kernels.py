"""The kernels: which calls each takes, on which grid, and with which arguments.

They compute in fp32 and on dense operands; ``copy`` takes every element type and every stride, so the service puts
copies around what comes in halves or as a view. Sources are in source/, built once for a device.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import copysign, prod, tau
from typing import Any, NamedTuple

from accelctl.abi.blob import Instruction
from accelctl.abi.call import Call, matmul_dims
from accelctl.abi.condition import MOST, Conditions
from accelctl.abi.launch import Launch
from accelctl.abi.ops import Template, elementwise_launch
from accelctl.abi.opset import ANY
from accelctl.abi.tensors import INTS, Tensor, broadcast, broadcast_strides, dense_strides
from accelctl.backends.opencl.platform import module
from accelctl.backends.opencl.programs import ACC, IN_FLOATS, kernel
from accelctl.errors import UsageError

THREADS = 64
Operands = Sequence[tuple[Any, int]]
"""cl_mem and first element of each operand that is there."""
_F32 = frozenset({"fp32"})


def _work(count: Callable[[Call], int]) -> Callable[[Call], Launch]:
    return lambda call: elementwise_launch(count(call), THREADS)


def _results(call: Call) -> int:
    return _out(call).elements


def _out(call: Call) -> Tensor:
    found = call.outputs[0]
    assert found is not None
    return found


def _in(call: Call, index: int = 0) -> Tensor:
    found = call.inputs[index]
    assert found is not None
    return found


def _one_type(call: Call) -> str:
    types = {one.dtype.name for one in call.tensors}
    return "" if len(types) == 1 else "it takes operands of one type"


def _conv(call: Call) -> str:
    if call.attrs["layout"] != "nchw" or len(_in(call).shape) != 4:
        return "its images are batches with channels first (nchw)"
    return _one_type(call)


def _routes(call: Call) -> str:
    bias = call.inputs[1]
    return "" if bias is None or bias.dtype.name == "fp32" else "it takes operands of one type"


def _floats(call: Call) -> str:
    wrong = [one for one in call.tensors if one.dtype.floating and one.dtype.name != "fp32"]
    return "it computes with fp32" if wrong else ""


_FP32_MOST = (2 - 2.0**-23) * 2.0**127
_FP32_LEAST = 2.0**-126


def _reals(call: Call) -> str:
    """Kernels get attributes in fp32; only the base of rope stays on the host."""
    for attr in call.op.attrs if _in(call).dtype.floating else ():
        if attr.kind == "float" and abs(float(str(call.attrs[attr.name]))) > _FP32_MOST:
            return f"attrs[{attr.name!r}]: {call.attrs[attr.name]} is beyond fp32"
    return ""


def _computed(call: Call) -> str:
    return _floats(call) or _reals(call)


def _alike(call: Call) -> str:
    return _one_type(call) or _reals(call)


def _matvec_rows(call: Call) -> int:
    return matmul_dims(_in(call).shape, _in(call, 1).shape)[0]


MATVEC = Conditions(
    dtypes=_F32,
    results=_F32,
    dims={"N": (1, 1), "batch": (1, 1), "K": (1, MOST)},
    dense=True,
    needs={"threads": THREADS},
)
_MOST_TURNED = 1 << 16


def _rope_fits(call: Call) -> str:
    turned = int(str(call.attrs["rotary_dim"])) or _in(call).shape[-1]
    return f"it turns at most {_MOST_TURNED} numbers of a head" if turned > _MOST_TURNED else _floats(call)


def _rows(call: Call) -> int:
    shape = _in(call).shape
    axis = int(str(call.attrs.get("axis", -1))) % max(1, len(shape))
    if call.op.name == "softmax":
        return prod(shape[:axis]) * prod(shape[axis + 1 :])
    return prod(shape[:axis])


def _pairs(call: Call) -> int:
    return _in(call).elements // 2


def _queries(call: Call) -> int:
    return prod(_in(call).shape[:-1]) if call.op.name == "attention_prefill" else prod(_in(call).shape[:2])


TEMPLATES: tuple[Template, ...] = (
    Template(1, "copy", "copy", ANY, _work(_results)),
    Template(2, "relu", "relu", _F32 | INTS, _work(_results), strided=False),
    Template(3, "add", "add", _F32 | INTS, _work(_results), strided=False, refuses=_alike),
    Template(4, "silu_and_mul", "silu_and_mul", _F32, _work(_results), strided=False, refuses=_one_type),
    Template(5, "rope", "rope", _F32, _work(_pairs), strided=False, refuses=_rope_fits),
    Template(6, "matmul", "matmul", _F32 | INTS, _work(_results), strided=False, refuses=_floats),
    Template(
        16,
        "matvec",
        "matmul",
        _F32,
        _work(_matvec_rows),
        strided=False,
        conditions=MATVEC,
        fallback="matmul",
    ),
    Template(7, "conv2d", "conv2d", _F32, _work(_results), strided=False, refuses=_conv),
    Template(8, "grouped_gemm", "grouped_gemm", _F32, _work(_results), strided=False, refuses=_floats),
    Template(9, "layernorm", "layernorm", _F32, _work(_rows), strided=False, refuses=_alike),
    Template(10, "rmsnorm", "rmsnorm", _F32, _work(_rows), strided=False, refuses=_alike),
    Template(11, "softmax", "softmax", _F32, _work(_rows), strided=False, refuses=_one_type),
    Template(12, "attention_prefill", "attention_prefill", _F32, _work(_queries), strided=False, refuses=_computed),
    Template(13, "attention_decode", "attention_decode", _F32, _work(_queries), strided=False, refuses=_computed),
    Template(14, "topk_softmax", "topk_softmax", _F32, _work(_rows), strided=False, refuses=_routes),
    Template(15, "moe_align", "moe_align", frozenset({"int32"}), _work(lambda call: 1), strided=False),
)
"""In the order in which the service tries them; a special one only where it is proven."""


_LAUNCH = threading.Lock()
"""A kernel object keeps the arguments that were set last, and all sessions of a device share it."""


CHECKED = frozenset({"attention_decode", "grouped_gemm"})
"""Kernels that look at numbers in memory before they use them as places, and say in a word of memory what is wrong."""
FAULTS = {
    1: "seq_lens: a sequence is longer than its row of block_table",
    2: "block_table: a block that the cache does not have",
    3: "offs: they fall, or end behind the rows of A",
}
"""What the word says."""


class Arguments:
    """Arguments of one launch, in order. Buffers made for it live until it is done: OpenCL holds them itself."""

    def __init__(self, session: Any, call: Call, operands: Operands) -> None:
        self._session = session
        self.values: list[Any] = []
        left = iter(operands)
        self._places = {
            name.name: next(left)
            for name, one in zip((*call.op.inputs, *call.op.outputs), (*call.inputs, *call.outputs), strict=True)
            if one is not None
        }
        self._any = operands[0][0]

    def operand(self, name: str) -> Arguments:
        """Where an operand lies."""
        buffer, at = self._places[name]
        self.values += [buffer, struct.pack("<q", at)]
        return self

    def optional(self, name: str) -> Arguments:
        """Where it lies, and whether it is there."""
        there = name in self._places
        buffer, at = self._places.get(name, (self._any, 0))
        self.values += [buffer, struct.pack("<q", at), struct.pack("<i", there)]
        return self

    def longs(self, *numbers: int) -> Arguments:
        """64-bit numbers."""
        self.values += [struct.pack("<q", number) for number in numbers]
        return self

    def ints(self, *numbers: int) -> Arguments:
        """32-bit numbers."""
        self.values += [struct.pack("<i", number) for number in numbers]
        return self

    def reals(self, *numbers: object) -> Arguments:
        """fp32 numbers; one that is too small for fp32 does not become 0, which may mean something else."""
        for number in (float(str(number)) for number in numbers):
            tiny = 0 < abs(number) < _FP32_LEAST
            self.values.append(struct.pack("<f", copysign(_FP32_LEAST, number) if tiny else number))
        return self

    def table(self, *numbers: int) -> Arguments:
        """A small buffer of 64-bit numbers."""
        cl = module()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        self.values.append(cl.Buffer(self._session.context, flags, hostbuf=struct.pack(f"<{len(numbers)}q", *numbers)))
        return self

    def fault(self) -> Any:
        """A word of 0 of its own, as the last argument."""
        cl = module()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self.values.append(cl.Buffer(self._session.context, flags, hostbuf=bytes(4)))
        return self.values[-1]

    def raw(self, name: str) -> Arguments:
        """An operand's buffer alone."""
        self.values.append(self._places.get(name, (self._any, 0))[0])
        return self


class Ready(NamedTuple):
    """A launch of which nothing is left to be refused. ``fault``: where a kernel that looks at numbers says what is
    wrong with them, of this launch alone, so that no other one is blamed."""

    kernel: Any
    values: list[Any]
    size: tuple[int, ...]
    block: tuple[int, ...]
    fault: Any


def ready(session: Any, template: Template, call: Call, operands: Operands, config: Instruction) -> Ready | None:
    """A call on the grid that its instruction says; None where there is nothing to do. UsageError for numbers that the
    kernel's arguments cannot hold."""
    if not any(one.elements for one in call.outputs if one is not None):
        return None
    try:
        source, options, arguments = _CALLS[template.name](call, Arguments(session, call, operands))
    except (OverflowError, struct.error) as error:
        raise UsageError(f"{template.name}: a number does not fit the kernel's arguments ({error})") from None
    fault = arguments.fault() if template.name in CHECKED else None
    grid, block = config.launch
    size = tuple(g * b for g, b in zip(grid, block, strict=True))
    return Ready(kernel(session.context, source, options, template.name), arguments.values, size, block, fault)


def launched(queue: Any, made: Ready) -> tuple[Any, bytearray]:
    """Enqueue it: the event after which it is done, and the word in which its fault will stand by then (zeros: none).
    The word is fetched right behind the kernel, before anything that is enqueued later."""
    cl, word = module(), bytearray(4)
    with _LAUNCH:
        made.kernel.set_args(*made.values)
        event = cl.enqueue_nd_range_kernel(queue, made.kernel, made.size, made.block)
    if made.fault is not None:
        event = cl.enqueue_copy(queue, word, made.fault, is_blocking=False, wait_for=[event])
    return event, word


Said = tuple[str, str, Arguments]


def _copy(call: Call, to: Arguments) -> Said:
    x, y = _in(call), _out(call)
    read, write = (broadcast_strides(one.shape, one.strides, y.shape) for one in (x, y))
    to.operand("X").operand("Y").ints(x.dtype.code, y.dtype.code)
    return "elementwise", "", to.table(len(y.shape), *y.shape, *read, *write).longs(y.elements)


def _relu(call: Call, to: Arguments) -> Said:
    to.operand("X").operand("Y").ints(_in(call).dtype.code)
    return "elementwise", "", to.longs(_results(call))


def _add(call: Call, to: Arguments) -> Said:
    a, b, c = call.tensors
    one, other = (broadcast_strides(t.shape, t.strides, c.shape) for t in (a, b))
    to.operand("A").operand("B").operand("C").ints(a.dtype.code)
    to.table(len(c.shape), *c.shape, *one, *other).longs(c.elements)
    alpha = float(str(call.attrs["alpha"]))
    factor = 0 if a.dtype.floating else int(alpha)
    wrapped = _signed(factor, 32)  # what a product keeps of it in 32 bits
    return "elementwise", "", to.reals(alpha if a.dtype.floating else 0).ints(wrapped)


def _signed(number: int, bits: int) -> int:
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def _silu(call: Call, to: Arguments) -> Said:
    y = _out(call)
    to.operand("X").operand("Y").longs(y.elements, y.shape[-1])
    return "elementwise", "", to


def _rope(call: Call, to: Arguments) -> Said:
    x = _in(call)
    heads, dim = x.shape[-2:]
    turned = int(str(call.attrs["rotary_dim"])) or dim
    to.operand("X").operand("positions").operand("Y").longs(prod(x.shape[:-2]), heads, dim, turned)
    to.table(*_turns(float(str(call.attrs["base"])), turned))
    return "elementwise", "", to.ints(call.attrs["style"] == "interleaved")


@lru_cache(maxsize=16)
def _turns(base: float, turned: int) -> tuple[int, ...]:
    """How far one position turns each pair, in turns of 2^64: times a position, what overflows are whole turns, so that
    the angle is as exact at position 2^31 as at 1. In fp32 it is wrong by 1e-3 at 100,000."""
    fractions = (base ** (-2.0 * pair / turned) / tau % 1.0 for pair in range(turned // 2))
    return tuple(_signed(int(fraction * 2.0**64), 64) for fraction in fractions) or (0,)


def _matmul(call: Call, to: Arguments) -> Said:
    a, b = _in(call), _in(call, 1)
    m, k, n = matmul_dims(a.shape, b.shape)
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    steps = [
        broadcast_strides(t.shape[:-2], dense_strides(t.shape)[:-2] if len(t.shape) > 2 else (), batch) for t in (a, b)
    ]
    to.operand("A").operand("B").operand("Y").table(len(batch), *batch, *steps[0], *steps[1])
    kind = ACC.get(a.dtype.name)
    options = IN_FLOATS if kind is None else f"-DT={kind} -DACC=int"
    return "contraction", options, to.longs(m, k, n, prod(batch))


def _vector(call: Call, to: Arguments) -> Said:
    m, k, _ = matmul_dims(_in(call).shape, _in(call, 1).shape)
    return "matvec", "", to.operand("A").operand("B").operand("Y").longs(m, k)


def _conv2d(call: Call, to: Arguments) -> Said:
    x, w, y = _in(call), _in(call, 1), _out(call)
    strides, dilations = _two(call, "strides"), _two(call, "dilations")
    pads = _pads(call, x.shape[2:], w.shape[2:], y.shape[2:], strides, dilations)
    to.operand("X").operand("W").optional("B").operand("Y").longs(*x.shape, y.shape[1], *w.shape[2:], *y.shape[2:])
    to.longs(*strides, *pads, *dilations, int(str(call.attrs["group"])))
    return "contraction", IN_FLOATS, to


def _two(call: Call, name: str) -> tuple[int, int]:
    value = call.attrs[name]
    if not isinstance(value, tuple) or len(value) != 2:
        raise UsageError(f"conv2d: {name} are two numbers")
    return value[0], value[1]


def _pads(
    call: Call,
    image: Sequence[int],
    kernel: Sequence[int],
    out: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Pixels before the first row and column."""
    rule = call.attrs["auto_pad"]
    if rule in ("notset", "valid"):
        pads = call.attrs["pads"]
        return list(pads[:2]) if rule == "notset" and isinstance(pads, tuple) else [0, 0]
    found = []
    for size, taps, length, step, gap in zip(image, kernel, out, strides, dilations, strict=True):
        total = max(0, (length - 1) * step + (taps - 1) * gap + 1 - size)
        found.append(total // 2 if rule == "same_upper" else total - total // 2)
    return found


def _grouped(call: Call, to: Arguments) -> Said:
    a, b = _in(call), _in(call, 1)
    to.operand("A").operand("B").operand("offs").operand("Y").longs(*a.shape, b.shape[2], b.shape[0])
    return "contraction", IN_FLOATS, to


def _layernorm(call: Call, to: Arguments) -> Said:
    x, rows = _in(call), _rows(call)
    to.operand("X").optional("scale").optional("B").operand("Y").longs(rows, x.elements // max(rows, 1))
    return "rows", "", to.reals(call.attrs["epsilon"])


def _rmsnorm(call: Call, to: Arguments) -> Said:
    x = _in(call)
    to.operand("X").optional("scale").optional("residual").operand("Y").optional("residual_out")
    to.longs(_rows(call), x.shape[-1]).reals(call.attrs["epsilon"], float(call.attrs["variant"] == "gemma"))
    return "rows", "", to


def _softmax(call: Call, to: Arguments) -> Said:
    shape = _in(call).shape or (1,)
    axis = int(str(call.attrs["axis"])) % len(shape)
    inner = prod(shape[axis + 1 :])
    to.operand("X").operand("Y").longs(prod(shape[:axis]) * inner, shape[axis], inner)
    return "rows", "", to


_CAUSAL = {"none": 0, "upper_left": 1, "lower_right": 2}


def _scale(call: Call) -> float:
    return float(str(call.attrs["scale"])) or max(1, _in(call).shape[-1]) ** -0.5


def _prefill(call: Call, to: Arguments) -> Said:
    q, k, v, mask = _in(call), _in(call, 1), _in(call, 2), call.inputs[3]
    *batch, heads, rows, dim = q.shape
    scores = (prod(batch), heads, rows, k.shape[-2])
    steps = (0, 0, 0, 0) if mask is None else broadcast_strides(mask.shape, mask.strides, (1,) * 0 + scores)
    to.operand("Q").operand("K").operand("V").raw("mask").raw("mask")
    place = to._places.get("mask", (None, 0))[1]
    to.longs(place).ints(0 if mask is None else 1 if mask.dtype.floating else 2).table(*steps)
    to.operand("O").optional("lse").longs(prod(batch), heads, k.shape[-3], rows, k.shape[-2], dim, v.shape[-1])
    to.reals(_scale(call), call.attrs["softcap"]).ints(_CAUSAL[str(call.attrs["causal"])])
    return "attention", "", to.longs(int(str(call.attrs["window"])))


def _decode(call: Call, to: Arguments) -> Said:
    q, k, v, table = _in(call), _in(call, 1), _in(call, 2), _in(call, 3)
    to.operand("Q").operand("k_cache").operand("v_cache").operand("block_table").operand("seq_lens")
    to.operand("O").optional("lse").longs(*q.shape[:2], k.shape[2], q.shape[2], v.shape[3], table.shape[1], k.shape[1])
    to.longs(k.shape[0])
    to.reals(_scale(call), call.attrs["softcap"]).longs(int(str(call.attrs["window"])))
    return "attention", "", to


def _topk(call: Call, to: Arguments) -> Said:
    gating = _in(call)
    to.operand("gating").optional("bias").operand("weights").operand("ids").longs(*gating.shape)
    to.longs(int(str(call.attrs["k"]))).ints(bool(call.attrs["renormalize"]), call.attrs["scoring"] == "sigmoid")
    return "routing", "", to


def _align(call: Call, to: Arguments) -> Said:
    order, owners = call.outputs[0], call.outputs[1]
    assert order is not None
    assert owners is not None
    to.operand("topk_ids").optional("expert_map").operand("sorted_token_ids").operand("expert_ids")
    to.operand("num_tokens_post_pad").longs(_in(call).elements, int(str(call.attrs["num_experts"])))
    return "routing", "", to.longs(int(str(call.attrs["block_size"])), order.elements, owners.elements)


_CALLS: dict[str, Callable[[Call, Arguments], Said]] = {
    "copy": _copy,
    "relu": _relu,
    "add": _add,
    "silu_and_mul": _silu,
    "rope": _rope,
    "matmul": _matmul,
    "matvec": _vector,
    "conv2d": _conv2d,
    "grouped_gemm": _grouped,
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "softmax": _softmax,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "topk_softmax": _topk,
    "moe_align": _align,
}
"""Kernel -> its source, what it is built with, and its arguments."""
