"""The arithmetic units: operands as views of the whole VRAM, which is mapped once, and one function for each op."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from accelctl.abi.call import Call
from accelctl.abi.tensors import Tensor
from accelctl.backends.sim.jobs import Placed
from accelctl.backends.sim.ops import attention, contraction, elementwise, norm, position, routing
from accelctl.backends.sim.ops.numeric import NUMPY, Array
from accelctl.backends.sim.ops.reader import MOST_BYTES, Plan, read
from accelctl.backends.sim.ops.shapes import conv_pads
from accelctl.backends.sim.tables import Object, fault
from accelctl.errors import UsageError
from accelctl.hal.devfile import PAGE, Mapped

_UNITS: dict[str, Callable[..., None]] = {
    "matmul": contraction.matmul,
    "matvec": contraction.matvec,
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
"""Special kernel, or op -> what computes it: (attributes, outputs, inputs), in the table's order, None for what is left
out. Each reads all it needs before it writes: an output may lie on an input."""

Find = Callable[[int, int], tuple[Object, int]]
"""(device address, bytes) -> the object there, and where in it. EFAULT."""


class Engine:
    """What computes in one device's memory. Not thread-safe: the driver locks."""

    def __init__(self, vram: Mapped) -> None:
        self._vram = vram
        self._bytes: Array | None = np.frombuffer(vram, np.uint8)

    def close(self) -> Mapped:
        """Forget the memory; no view of it is left, so that it can be unmapped."""
        self._bytes = None
        return self._vram

    def prepare(self, thing: Object, at: int, size: int, find: Find) -> Callable[[], Placed]:
        """The instruction of ``size`` bytes at ``at`` in an object, taken in. What comes back finds its operands: the
        objects that it uses, and what runs it later; EFAULT for one that ``find`` does not have. EINVAL for what is no
        instruction."""
        if size > MOST_BYTES:
            raise fault(errno.EINVAL, f"an instruction of {size} bytes")
        start = thing.start * PAGE + at
        try:
            plan, addresses = read(self._vram[start : start + size])
        except UsageError as error:
            raise fault(errno.EINVAL, error.message) from None
        return partial(self._place, plan, addresses, find)

    def _place(self, plan: Plan, addresses: Sequence[int], find: Find) -> Placed:
        things, places = [], []
        for operand, address in zip(plan.operands, addresses, strict=True):
            if not operand.span:
                places.append(0)
                continue
            try:
                used, offset = find(address, operand.span)
            except OSError as error:
                raise fault(error.errno or errno.EFAULT, f"{operand.name}: {error.strerror}") from None
            things.append(used)
            places.append(used.start * PAGE + offset)
        unit = _UNITS.get(plan.kernel) or _UNITS[plan.call.op.name]
        return tuple(things), partial(self._run, plan.call, unit, places)

    def _run(self, call: Call, unit: Callable[..., None], places: Sequence[int]) -> None:
        """Compute. ``places``: where in VRAM (bytes) each operand that is there begins. JobFault for numbers in memory
        that cannot be used; MemoryError where the host has no room for what is between."""
        left = list(places)
        inputs = [None if one is None else self._view(one, left.pop(0)) for one in call.inputs]
        outputs = [None if one is None else self._view(one, left.pop(0)) for one in call.outputs]
        more: dict[str, Any] = {"pads": conv_pads(call)} if call.op.name == "conv2d" else {}
        with np.errstate(all="ignore"):
            unit(call.attrs, *outputs, *inputs, **more)

    def _view(self, tensor: Tensor, at: int) -> Array:
        dtype = NUMPY[tensor.dtype.name]
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        # the stride of an axis of length 1 has no meaning, and may be more than numpy can hold
        lengths = zip(tensor.shape, tensor.strides, strict=True)
        strides = [stride * dtype.itemsize if length > 1 else 0 for length, stride in lengths]
        view: Array = np.ndarray(tensor.shape, dtype, self._bytes, at, strides)
        return view
