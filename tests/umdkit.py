"""The service in tests: on the simulated chip, with as few or as strict kernels as a test wants, in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from accelctl.abi.lifecycle import Session as DeviceSession
from accelctl.abi.ops import Device, Template
from accelctl.abi.opset import OPS
from accelctl.abi.queue import Ring, Timeline
from accelctl.abi.tensors import DTYPES
from accelctl.backends.sim.driver import SimSyscalls
from accelctl.backends.sim.memory import MEMORY
from accelctl.backends.sim.ops.contract import OPS as SIM
from accelctl.umd.chip import Chip
from accelctl.umd.observer import Observer
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.registrar import Limits
from accelctl.umd.service import Service
from accelctl.umd.session import Session
from accelctl.umd.transfer import Inbox
from tests.opskit import NAMES, NUMPY
from tests.simkit import TARGET

Array = NDArray[Any]
PATIENCE_S = 5.0
QUICK = Limits(patience_s=PATIENCE_S)


class Kernels:
    """sim's kernels, some of them left out or stricter than they are."""

    def __init__(self, change: Callable[[Template], Template | None] = lambda template: template) -> None:
        self._templates = tuple(made for one in SIM.templates() if (made := change(one)) is not None)

    def devices(self) -> tuple[Device, ...]:
        return SIM.devices()

    def templates(self) -> tuple[Template, ...]:
        return self._templates

    def lifecycle(self) -> str:
        return SIM.lifecycle()

    def open(self, session: DeviceSession, depth: int) -> Ring:
        return SIM.open(session, depth)


class HeldRing:
    """A ring on which nothing is done until a test says so."""

    def __init__(self, depth: int) -> None:
        self.line = Timeline(depth)
        self.works: list[bytes] = []
        self.fails: Exception | None = None

    @property
    def depth(self) -> int:
        return self.line.depth

    @property
    def state(self) -> str:
        return self.line.state

    def submit(self, work: bytes) -> int:
        if self.fails is not None:
            raise self.fails
        point = self.line.take()
        self.works.append(work)
        return point

    def passed(self) -> int:
        return self.line.passed()

    def wait(self, point: int, timeout_s: float) -> bool:
        return self.line.wait(point, timeout_s)

    def close(self) -> None:
        self.line.close()


class HeldKernels(Kernels):
    """sim's kernels behind rings that a test holds: ``rings``, in the order of opening."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: list[HeldRing] = []

    def open(self, session: DeviceSession, depth: int) -> Ring:
        self.rings.append(HeldRing(depth))
        return self.rings[-1]


def chip_of(kernels: Kernels | None = None, **options: str) -> Chip:
    return Chip(MEMORY, kernels or Kernels(), TARGET, options)


@contextmanager
def service_of(
    kernels: Kernels | None = None, limits: Limits = QUICK, observer: Observer | None = None, **options: str
) -> Iterator[Service]:
    """A service; afterwards nothing of the device is held any more."""
    chip = chip_of(kernels, **options)
    service = Service(chip, limits=limits, observer=observer)
    try:
        yield service
    finally:
        service.close()
        assert device_files(service) == 0
        assert service.registrar.budget.held == 0


def device_files(service: Service) -> int:
    """Open files of the simulated device: one for each session."""
    syscalls = service.chip._env.syscalls
    assert isinstance(syscalls, SimSyscalls)
    return len(syscalls.device.files)


@contextmanager
def client_of(
    kernels: Kernels | None = None, limits: Limits = QUICK, observer: Observer | None = None, **options: str
) -> Iterator[Client]:
    """A session of a service of its own."""
    with service_of(kernels, limits, observer, **options) as service:
        yield Client(service)


class Client:
    """One session, without gRPC."""

    def __init__(self, service: Service, **wishes: Any) -> None:
        self.service = service
        made = service.create_session(pb.CreateSessionRequest(client="test", **wishes))
        self.number = made.session_id

    @property
    def session(self) -> Session:
        return self.service.session(self.number)

    def alloc(self, shape: Sequence[int], dtype: str = "fp32") -> pb.TensorDesc:
        wanted = pb.TensorDesc(shape=shape, data_type=DTYPES[dtype].code)  # type: ignore[arg-type]
        return self.service.alloc_tensor(pb.AllocTensorRequest(session_id=self.number, tensor=wanted)).tensor

    def free(self, number: int) -> int:
        wanted = pb.FreeTensorRequest(session_id=self.number, tensor_id=number)
        return self.service.free_tensor(wanted).freed_bytes

    def put(self, array: Any, dtype: str = "") -> pb.TensorDesc:
        """An array in memory of its own."""
        values = np.asarray(array)
        if dtype:
            values = np.asarray(array, np.float64).astype(NUMPY[dtype])
        made = self.alloc(values.shape, NAMES[values.dtype])
        self.write(made.tensor_id, values.tobytes())
        return made

    def write(self, number: int, data: bytes, offset: int = 0) -> None:
        inbox = Inbox()
        piece = pb.TensorChunk(
            session_id=self.number, tensor_id=number, offset=offset, data=data, crc32c=crc32c(data), last=True
        )
        self.service.receive(piece, inbox, PATIENCE_S)
        inbox.end()

    def read(self, number: int) -> bytes:
        wanted = pb.ReadTensorRequest(session_id=self.number, tensor_id=number)
        return b"".join(piece.data for piece in self.service.read_tensor(wanted, PATIENCE_S))

    def get(self, tensor: pb.TensorDesc) -> Array:
        """The elements of a tensor (or of a view of one)."""
        dtype = NUMPY[next(name for name, one in DTYPES.items() if one.code == tensor.data_type)]
        start = self.session.memory.get(tensor.tensor_id).start
        raw = self.read(tensor.tensor_id)[(tensor.device_addr or start) - start :]
        flat = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype)
        if not tensor.strides:
            return np.asarray(flat[: int(np.prod(tensor.shape))].reshape(tuple(tensor.shape)))
        steps = [stride * dtype.itemsize for stride in tensor.strides]
        found: Array = np.lib.stride_tricks.as_strided(flat, tuple(tensor.shape), steps).copy()
        return found

    def request(
        self,
        op: str,
        inputs: Sequence[pb.TensorDesc | None],
        attrs: Mapping[str, str] | None = None,
        outputs: Sequence[pb.TensorDesc | None] = (),
        *,
        submit: bool = False,
        request_id: int = 0,
    ) -> pb.OpRequest:
        return pb.OpRequest(
            session_id=self.number,
            request_id=request_id,
            op_type=OPS[op].code,  # type: ignore[arg-type]
            inputs=[one or pb.TensorDesc() for one in inputs],
            outputs=[one or pb.TensorDesc() for one in outputs],
            attrs=attrs or {},
            submit=submit,
        )

    def translate(self, request: pb.OpRequest) -> pb.OpResponse:
        return pb.OpResponse.FromString(self.service.translate(request.SerializeToString(), PATIENCE_S))

    def batch(self, ops: Sequence[pb.OpRequest]) -> pb.BatchOpResponse:
        request = pb.BatchOpRequest(session_id=self.number, ops=ops)
        return pb.BatchOpResponse.FromString(self.service.batch(request.SerializeToString(), PATIENCE_S))

    def run(
        self,
        op: str,
        inputs: Sequence[pb.TensorDesc | None],
        attrs: Mapping[str, str] | None = None,
        outputs: Sequence[pb.TensorDesc | None] = (),
    ) -> list[Array]:
        """Results, when they are there."""
        return [self.get(one) for one in self.respond(op, inputs, attrs, outputs).outputs]

    def respond(
        self,
        op: str,
        inputs: Sequence[pb.TensorDesc | None],
        attrs: Mapping[str, str] | None = None,
        outputs: Sequence[pb.TensorDesc | None] = (),
    ) -> pb.OpResponse:
        return self.translate(self.request(op, inputs, attrs, outputs, submit=True))

    def wait(self, fence: int, timeout_us: int = 5_000_000) -> pb.WaitResponse:
        wanted = pb.WaitRequest(session_id=self.number, fence=fence, timeout_us=timeout_us)
        return self.service.wait(wanted)

    def submit(self, instructions: Sequence[pb.HardwareInstruction]) -> pb.SubmitResponse:
        wanted = pb.SubmitRequest(session_id=self.number, instructions=instructions)
        return self.service.submit(wanted, PATIENCE_S)


def view(tensor: pb.TensorDesc, shape: Sequence[int], strides: Sequence[int] = (), offset: int = 0) -> pb.TensorDesc:
    """Other elements of the same memory; ``offset`` in bytes."""
    return pb.TensorDesc(
        tensor_id=tensor.tensor_id,
        shape=shape,
        strides=strides,
        data_type=tensor.data_type,
        device_addr=tensor.device_addr + offset,
    )
