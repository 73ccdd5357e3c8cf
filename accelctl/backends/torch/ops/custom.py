"""Products as custom ops of PyTorch, so that a framework can put them into its graphs: ``torch.ops.accelctl.matmul``,
and beside it the special ``torch.ops.accelctl.matvec`` for one column.

Name and schema are those that a capability record says (abi.framework). Both are functional: they write nothing but a
new result, and its shape follows from the operands' shapes, which is all that a trace without data is told. No gradient
is registered: what these kernels prove is inference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from accelctl.abi.framework import NAMESPACE, schema_of
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import FLOATS
from accelctl.backends.torch.ops import contraction
from accelctl.backends.torch.ops.numeric import TYPES, Array, f32
from accelctl.errors import NoDeviceError, UsageError

_NAMES = {dtype: name for name, dtype in TYPES.items()}
_OP = OPS["matmul"]
Kernel = Callable[[dict[str, bool], Array, Array, Array], None]


@cache
def register(kernel: str = "matmul") -> Any:
    """The op, which is registered once in a process. UsageError for a kernel that there is not, NoDeviceError where
    PyTorch is older than its own custom ops."""
    if kernel not in _KERNELS:
        raise UsageError(f"torch has no custom op {kernel!r} (there are: {', '.join(_KERNELS)})")
    if not hasattr(torch.library, "custom_op"):
        raise NoDeviceError(f"PyTorch {torch.__version__} has no torch.library.custom_op", "pip install 'torch>=2.4'")
    name = f"{NAMESPACE}::{kernel}"
    schema = schema_of(_OP, kernel).removeprefix(name)
    made = torch.library.custom_op(name, _real(kernel), mutates_args=(), schema=schema)
    made.register_fake(_fake(kernel))
    return made


def _real(kernel: str) -> Callable[..., Array]:
    def run(A: Array, B: Array, *, tf32: bool = False) -> Array:  # noqa: N803 - the op's own names
        out = _result(kernel, A, B)
        if out.numel():
            _KERNELS[kernel]({"tf32": tf32}, out, A, B)
        return out

    return run


def _fake(kernel: str) -> Callable[..., Array]:
    def shape(A: Array, B: Array, *, tf32: bool = False) -> Array:  # noqa: N803 - as above
        return _result(kernel, A, B)

    return shape


def _result(kernel: str, a: Array, b: Array) -> Array:
    """Memory for the result. Lengths may be symbols here: what is asked of them becomes a guard of the trace."""
    torch._check(a.ndim > 0 and b.ndim > 0, lambda: f"{kernel}: a scalar is no operand of a matrix product")
    torch._check_type(a.dtype == b.dtype and a.dtype in _NAMES, lambda: f"{kernel}: {a.dtype} by {b.dtype}")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[-1]
    torch._check(a.shape[-1] == inner, lambda: f"{kernel}: {a.shape[-1]} columns by {inner} rows")
    if kernel == "matvec":
        torch._check(b.ndim == 1 or b.shape[-1] == 1, lambda: "matvec: N == 1 is what it is for")
        torch._check(a.ndim < 3 and b.ndim < 3, lambda: "matvec: batch == 1 is what it is for")
        torch._check_type(a.dtype.is_floating_point, lambda: f"matvec: element type is {' or '.join(sorted(FLOATS))}")
    shape = [
        *torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]),
        *a.shape[-2:-1],
        *(b.shape[-1:] if b.ndim > 1 else ()),
    ]
    return a.new_empty(shape, dtype=a.dtype if a.dtype.is_floating_point else torch.int32)


def _matvec(attrs: dict[str, bool], out: Array, a: Array, b: Array) -> None:
    """One pass over the rows of A; one rounding."""
    rows = a.reshape(out.numel(), a.shape[-1])
    out.copy_(torch.mv(f32(rows), f32(b).reshape(-1)).reshape(out.shape))


_KERNELS: dict[str, Kernel] = {"matmul": contraction.matmul, "matvec": _matvec}
