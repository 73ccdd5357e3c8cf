"""The Ops contract on OpenCL: a table of kernels, and a ring that enqueues them in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from accelctl.abi import blob
from accelctl.abi.call import Call, decode
from accelctl.abi.lifecycle import Session, Target
from accelctl.abi.ops import Device, Template
from accelctl.abi.opset import OPS as OPSET
from accelctl.abi.queue import LOST, Ring, Timeline
from accelctl.abi.tensors import span
from accelctl.backends.opencl.kernels import CHECKED, FAULTS, TEMPLATES, launched
from accelctl.backends.opencl.memory import LIFECYCLE, ClSession
from accelctl.backends.opencl.platform import accelerator, devices, module
from accelctl.errors import DeviceUnusable, UsageError

MOST_DEPTH = 1024
_POLL_S = 0.0002
_BY_ID = {template.kernel_id: template for template in TEMPLATES}


class ClRing:
    """One ring of a session. All rings of a session share its in-order queue."""

    def __init__(self, session: ClSession, depth: int) -> None:
        self._session, self._line = session, Timeline(depth)
        self._flying: deque[tuple[int, Any, bool]] = deque()
        """Point, event, and whether its kernel may have found a fault."""
        self._lock = threading.RLock()
        session.rings.append(self)

    @property
    def depth(self) -> int:
        """See Ring."""
        return self._line.depth

    @property
    def state(self) -> str:
        """See Ring."""
        self.passed()
        return self._line.state

    def submit(self, work: bytes) -> int:
        """An instruction (abi.blob); see Ring."""
        call, template, config = _read(work)
        with self._lock:
            operands = [self._operand(one) for one in call.tensors]
            self.passed()
            point = self._line.take()
            cl = module()
            try:
                event = launched(self._session, template, call, operands, config)
                self._session.queue.flush()
            except cl.Error as error:
                self._line.lose(str(error))
                raise DeviceUnusable(f"{template.name}: {error}") from error
            self._flying.append((point, event, template.name in CHECKED))
            return point

    def _operand(self, tensor: Any) -> tuple[Any, int]:
        """The cl_mem of an operand, and where it starts there, in elements."""
        size = span(tensor.shape, tensor.strides, tensor.dtype)
        if not size:
            return self._session.fault, 0  # nothing is read or written: any cl_mem will do
        found = self._session.find(tensor.address, size)
        if found is None:
            raise UsageError(f"the device cannot reach {size} bytes at {tensor.address:#x}")
        buffer, at = found
        if at % tensor.dtype.itemsize:
            raise UsageError(f"{tensor.address:#x} is not aligned to {tensor.dtype.itemsize} bytes")
        return buffer, at // tensor.dtype.itemsize

    def passed(self) -> int:
        """See Ring."""
        with self._lock:
            if self._line.state == LOST:
                return self._line.passed()
            while self._flying:
                point, event, checked = self._flying[0]
                status = event.command_execution_status if event is not None else 0
                if status < 0:
                    self._line.lose(f"instruction {point} failed with OpenCL error {status}")
                    break
                if status > 0:
                    break
                if checked and self._fault(point):
                    break
                self._flying.popleft()
                self._line.advance(point)
            return self._line.passed()

    def _fault(self, point: int) -> bool:
        """Whether that instruction found a fault; the ring is lost then."""
        word = bytearray(4)
        module().enqueue_copy(self._session.queue, word, self._session.fault)
        number = int.from_bytes(word, "little")
        if number:
            self._line.lose(f"instruction {point} failed: {FAULTS.get(number, number)}")
        return bool(number)

    def wait(self, point: int, timeout_s: float) -> bool:
        """See Ring. OpenCL has no wait with a limit, so the state of the command is asked for, less and less often."""
        end, pause = time.monotonic() + timeout_s, _POLL_S
        while self.passed() < point:
            left = end - time.monotonic()
            if left <= 0:
                return self._line.wait(point, 0)
            if self._line.wait(point, min(pause, left)):
                break
            pause = min(pause * 1.5, 0.02)
        return self._line.wait(point, 0)

    def close(self) -> None:
        """See Ring."""
        with self._lock:
            self._line.close()
            self._flying.clear()
            if self in self._session.rings:
                self._session.rings.remove(self)


def _read(work: bytes) -> tuple[Call, Template, blob.Instruction]:
    found = blob.decode(work)
    template = _BY_ID.get(found.kernel_id)
    if template is None:
        raise UsageError(f"opencl has no kernel {found.kernel_id}")
    call = decode(OPSET[template.op], found.body, found.params)
    first = call.tensors[0]
    if first.dtype.name not in template.dtypes or (not template.strided and not all(one.dense for one in call.tensors)):
        raise UsageError(f"{template.name} does not take these operands")
    reason = template.refuses(call) if template.refuses else ""
    if reason:
        raise UsageError(f"{template.name}: {reason}")
    return call, template, found


class ClOps:
    """What the chip offers."""

    def devices(self) -> tuple[Device, ...]:
        """``opencl:0``, ``opencl:1``, ...: accelerators first. NoDeviceError where OpenCL is not here."""
        found = []
        for number, one in enumerate(devices()):
            target = Target(f"opencl:{number}", "opencl", str(one.platform.name), "")
            found.append(Device(target, f"{one.name.strip()} ({one.platform.name})", accelerator(one)))
        return tuple(found)

    def templates(self) -> tuple[Template, ...]:
        """Its kernels."""
        return TEMPLATES

    def lifecycle(self) -> str:
        """Buffers."""
        return LIFECYCLE

    def open(self, session: Session, depth: int) -> Ring:
        """A ring. UsageError for a session of another chip, or a depth that cannot be."""
        if not isinstance(session, ClSession):
            raise UsageError("a ring of opencl needs a session of opencl")
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"a ring of depth {depth}: 1 to {MOST_DEPTH} can be")
        return ClRing(session, depth)


OPS = ClOps()
