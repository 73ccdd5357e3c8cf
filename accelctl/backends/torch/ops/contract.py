"""The Ops and Queue contracts on PyTorch: a table of kernels, and rings over the session's line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from accelctl.abi import blob
from accelctl.abi.call import Call, decode
from accelctl.abi.lifecycle import Session, Target
from accelctl.abi.ops import Device, Template
from accelctl.abi.opset import OPS as OPSET
from accelctl.abi.queue import Ring, Timeline
from accelctl.abi.tensors import Tensor, span
from accelctl.backends.torch.memory import LIFECYCLE, TorchSession
from accelctl.backends.torch.ops import platform
from accelctl.backends.torch.ops.kernels import BY_ID, TEMPLATES, refusal
from accelctl.errors import UsageError

if TYPE_CHECKING:
    from accelctl.abi.runtime.collectives import Group

MOST_DEPTH = 1024
_NOP = b"nop"


class TorchRing:
    """One ring of a session; all rings of a session share its line."""

    def __init__(self, session: TorchSession, depth: int, read: Callable[[bytes], Callable[[], None]]) -> None:
        self._session, self._line, self._read = session, Timeline(depth), read
        session.rings.append(self)

    @property
    def depth(self) -> int:
        """See Ring."""
        return self._line.depth

    @property
    def state(self) -> str:
        """See Ring."""
        return self._line.state

    def submit(self, work: bytes) -> int:
        """See Ring."""
        return self._session.line.put(self._line, self._read(work))

    def passed(self) -> int:
        """See Ring."""
        return self._line.passed()

    def wait(self, point: int, timeout_s: float) -> bool:
        """See Ring."""
        return self._line.wait(point, timeout_s)

    def close(self) -> None:
        """See Ring."""
        self._line.close()
        self._session.line.forget(self._line)
        if self in self._session.rings:
            self._session.rings.remove(self)


def _instruction(session: TorchSession, work: bytes) -> Callable[[], None]:
    """What an instruction (abi.blob) makes the device do. UsageError for one that is none, or names memory that the
    session does not have."""
    from accelctl.backends.torch.ops.engine import compute

    call = _call(work)
    return partial(compute, call, [_operand(session, one) for one in call.tensors])


def _call(work: bytes) -> Call:
    found = blob.decode(work)
    template = BY_ID.get(found.kernel_id)
    if template is None:
        raise UsageError(f"torch has no kernel {found.kernel_id}")
    call = decode(OPSET[template.op], found.body, found.params)
    reason = _why_not(template, call)
    if reason:
        raise UsageError(f"{template.name}: {reason}")
    if template.launch(call) != found.launch:
        raise UsageError(f"{template.name}: a launch of {found.launch}, it needs {template.launch(call)}")
    return call


def _why_not(template: Template, call: Call) -> str:
    for operand, one in zip((*call.op.inputs, *call.op.outputs), (*call.inputs, *call.outputs), strict=True):
        if one is None and not operand.optional:
            return f"{operand.name} is missing"
        if one is not None and one.dtype.name not in operand.dtypes:
            return f"{operand.name} cannot be {one.dtype.name}"
    return refusal(call)


def _operand(session: TorchSession, tensor: Tensor) -> tuple[Any, int]:
    """The memory of an operand, and where in it (bytes) it starts."""
    size = span(tensor.shape, tensor.strides, tensor.dtype)
    if not size:
        return None, 0
    found = session.find(tensor.address, size)
    if found is None:
        raise UsageError(f"the device cannot reach {size} bytes at {tensor.address:#x}")
    if tensor.address % tensor.dtype.itemsize:
        raise UsageError(f"{tensor.address:#x} is not aligned to {tensor.dtype.itemsize} bytes")
    return found


def _ring(session: Session, depth: int, read: Callable[[TorchSession, bytes], Callable[[], None]]) -> Ring:
    if not isinstance(session, TorchSession):
        raise UsageError("a ring of torch needs a session of torch")
    if not 1 <= depth <= MOST_DEPTH:
        raise UsageError(f"a ring of depth {depth}: 1 to {MOST_DEPTH} can be")
    return TorchRing(session, depth, partial(read, session))


class TorchOps:
    """The Ops contract."""

    def devices(self) -> tuple[Device, ...]:
        """``torch:cuda:0``, ..., and ``torch:cpu``. NoDeviceError where PyTorch is not here."""
        driver = platform.version()
        return tuple(
            Device(Target(place.id, "torch", driver, ""), place.title, accelerator=place.name != "cpu")
            for place in platform.devices()
        )

    def templates(self) -> tuple[Template, ...]:
        """Its kernels."""
        return TEMPLATES

    def lifecycle(self) -> str:
        """Tensors of bytes."""
        return LIFECYCLE

    def group(self, target: Target, ranks: int) -> Group:
        """Ranks that call PyTorch's own collectives, each in a process of its own (abi.runtime.collectives)."""
        from accelctl.backends.torch.ops.collectives import GlooGroup

        return GlooGroup(ranks)

    def open(self, session: Session, depth: int) -> Ring:
        """A ring that takes instructions. UsageError for a session of another chip, or a depth that cannot be."""
        return _ring(session, depth, _instruction)


def _nothing(session: TorchSession, work: bytes) -> Callable[[], None]:
    if work != _NOP:
        raise UsageError(f"no work of a queue of torch: {work[:16]!r}")
    return lambda: None


class TorchQueue:
    """The Queue contract."""

    def nop(self) -> bytes:
        """Work that does nothing."""
        return _NOP

    def open(self, session: Session, depth: int) -> Ring:
        """A ring that takes that and nothing else; UsageError as for instructions."""
        return _ring(session, depth, _nothing)


OPS, QUEUE = TorchOps(), TorchQueue()
