"""The Ops contract on OpenCL: a table of kernels, and a ring that enqueues them in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from accelctl.abi import blob
from accelctl.abi.call import Call, decode
from accelctl.abi.condition import Offers
from accelctl.abi.lifecycle import Session, Target
from accelctl.abi.ops import Device, Template
from accelctl.abi.opset import OPS as OPSET
from accelctl.abi.queue import LOST, Ring, Timeline
from accelctl.abi.tensors import span
from accelctl.backends.opencl.kernels import FAULTS, TEMPLATES, Operands, Ready, launched, ready
from accelctl.backends.opencl.memory import LIFECYCLE, ClSession
from accelctl.backends.opencl.platform import accelerator, context_of, device_of, devices, flushes, module, said
from accelctl.backends.opencl.programs import build, source_digest
from accelctl.errors import DeviceUnusable, UsageError

MOST_DEPTH = 1024
_POLL_S = 0.0002
_BY_ID = {template.kernel_id: template for template in TEMPLATES}


class Prepared(NamedTuple):
    """An instruction of which nothing is left to be refused; ``made`` None: there is nothing to do. ``uses``: the
    cl_mem of each operand."""

    name: str
    made: Ready | None
    uses: tuple[Any, ...]


class ClRing:
    """One ring of a session. All rings of a session share its in-order queue."""

    def __init__(self, session: ClSession, depth: int) -> None:
        self._session, self._line = session, Timeline(depth)
        self._flying: deque[tuple[int, list[tuple[Any, bytearray]]]] = deque()
        """Point, and for each of its instructions the event (None: nothing to do) and the word in which its fault
        stands once that is passed."""
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
        with self._lock:
            return self.hand_over((self.prepare(work),))

    def prepare(self, work: bytes) -> Prepared:
        """Read an instruction, and find its operands. UsageError, DeviceUnusable."""
        call, template, config = _read(work)
        with self._lock:
            operands = [self._operand(one) for one in call.tensors]
            made = self._ready(template, call, operands, config)
        return Prepared(template.name, made, tuple(buffer for buffer, _ in operands))

    def hand_over(self, works: Sequence[Prepared]) -> int:
        """Enqueue them as one work; its point. QueueFull, QueueClosed, DeviceUnusable."""
        queue, done = self._session.queue, []
        with self._lock:
            self.passed()
            point = self._line.take()
            for name, made, _ in works:
                try:
                    done.append(launched(queue, made) if made is not None else (None, bytearray(4)))
                except Exception as error:  # the point is taken: it passes, or the ring is lost
                    raise self._lost(name, error) from error
            try:
                queue.flush()
            except Exception as error:
                raise self._lost("flush", error) from error
            self._flying.append((point, done))
            return point

    def _lost(self, what: str, error: Exception) -> DeviceUnusable:
        self._line.lose(said(error))
        return DeviceUnusable(f"{what}: {said(error)}")

    @property
    def lists(self) -> WeakSet[Any]:
        """What is to be told when memory of the session goes."""
        return self._session.lists

    def check_open(self) -> None:
        """QueueClosed, DeviceUnusable for a ring that takes nothing any more."""
        self.passed()
        self._line.check_alive()

    def _ready(self, template: Template, call: Call, operands: Operands, config: blob.Instruction) -> Ready | None:
        try:
            return ready(self._session, template, call, operands, config)
        except module().Error as error:
            raise DeviceUnusable(f"{template.name}: {said(error)}") from error

    def _operand(self, tensor: Any) -> tuple[Any, int]:
        """The cl_mem of an operand, and where it starts there, in elements."""
        size = span(tensor.shape, tensor.strides, tensor.dtype)
        if not size:
            return self._session.blank, 0  # nothing is read or written: any cl_mem will do
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
                point, works = self._flying[0]
                status, reason = _outcomes(works)
                if reason:
                    self._line.lose(f"instruction {point} failed{reason}")
                if reason or status:
                    break
                self._flying.popleft()
                self._line.advance(point)
            return self._line.passed()

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


def _outcomes(works: Sequence[tuple[Any, bytearray]]) -> tuple[int, str]:
    """How far they are (0: done), and how the first of them failed that did. The queue is in order: while the last one
    is not done nobody looks at the others."""
    status, reason = _outcome(*works[-1])
    if status > 0:
        return status, ""
    for number, (event, word) in enumerate(works[:-1]):
        earlier, why = _outcome(event, word)
        if why:
            return earlier, f": instruction {number} of its list{why}"
    return status, reason


def _outcome(event: Any, word: bytearray) -> tuple[int, str]:
    """How far an instruction is (0: done), and how it failed."""
    try:
        status = event.command_execution_status if event is not None else 0
    except module().Error as error:
        return -1, f": {error}"
    if status < 0:
        return status, f" with OpenCL error {status}"
    number = 0 if status else int.from_bytes(word, "little")
    return status, f": {FAULTS.get(number, number)}" if number else ""


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
    failed = template.conditions.failed(call) if template.conditions is not None else ""
    if reason or failed:
        raise UsageError(f"{template.name}: {reason or f'it takes calls only where {failed}'}")
    return call, template, found


class ClOps:
    """What the chip offers."""

    def devices(self) -> tuple[Device, ...]:
        """``opencl:0``, ``opencl:1``, ...: accelerators first. NoDeviceError where OpenCL is not here."""
        found = []
        for number, one in enumerate(devices()):
            target = Target(f"opencl:{number}", "opencl", str(one.platform.name), "")
            found.append(Device(target, f"{one.name.strip()} ({one.platform.name})", accelerator(one), flushes(one)))
        return tuple(found)

    def prepare(self, target: Target) -> None:
        """Build all kernels, so that no op waits for a compiler. NoDeviceError, DeviceUnusable."""
        try:
            build(context_of(target.id))
        except module().Error as error:
            raise DeviceUnusable(f"{target.id}: its kernels cannot be built: {said(error)}") from error

    def versions(self, target: Target, template: Template) -> dict[str, str]:
        """The platform, which is also the compiler; the driver; and the source that is built there."""
        from importlib.metadata import version  # 50 ms, and nobody else needs it

        device = device_of(target.id)
        return {
            "platform": str(device.platform.version).strip(),
            "driver": str(device.driver_version).strip(),
            "pyopencl": version("pyopencl"),
            "source": source_digest(template.name),
        }

    def offers(self, target: Target) -> Offers:
        """Of one work-group, and the extensions that kernels may use."""
        device = device_of(target.id)
        resources = {"local_memory_bytes": int(device.local_mem_size), "threads": int(device.max_work_group_size)}
        return Offers(resources, frozenset(str(device.extensions).split()))

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
