"""The service without gRPC: messages in, messages out, for one chip.

Calls may come from any thread. What is refused is raised as Refusal, whole; a batch answers op by op. The two that are
called for every op, ``translate`` and ``batch``, speak in bytes: what is found in the cache never becomes an object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from time import perf_counter_ns as now

from accelctl import __version__
from accelctl.abi.opset import OPS
from accelctl.abi.tensors import BY_CODE as DTYPES
from accelctl.abi.tensors import MOST_DIMS, byte_size
from accelctl.abi.version import ABI, accepts
from accelctl.errors import UsageError
from accelctl.umd import transfer
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.chip import Chip
from accelctl.umd.memory import CLIENT
from accelctl.umd.observer import Observer, Silent
from accelctl.umd.ops import Desk
from accelctl.umd.pinning import Press
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.registrar import Limits, Registrar
from accelctl.umd.session import Session
from accelctl.umd.telemetry import sample

USUAL = Limits()
FEATURES = ("translate_stream", "submit", "read_tensor", "telemetry", "strides", "pinned_lists")


class Service:
    """One chip and its clients' sessions. ``door``: the data channel, where there is one; the service closes it."""

    def __init__(
        self, chip: Chip, *, limits: Limits = USUAL, observer: Observer | None = None, door: Door | None = None
    ) -> None:
        self.chip, self.limits, self.door = chip, limits, door
        self.observer: Observer = observer or Silent()
        self.registrar = Registrar(chip, limits, self._ended)
        self.started = time.monotonic()
        desk = Desk(self.registrar, self.observer)
        press = Press(self.registrar, self.observer, desk.launched)
        self.translate = desk.translate
        self.batch = desk.batch
        self.submit = desk.submit
        self.pin, self.replay, self.unpin = press.pin, press.replay, press.unpin

    # -- sessions

    def handshake(self, request: pb.HandshakeRequest) -> pb.HandshakeResponse:
        """Who we are. Refusal for a client of another ABI."""
        if request.abi and not accepts(request.abi):
            text = f"the client speaks ABI {request.abi}, this service ABI {ABI}"
            raise Refusal("abi", text, "version_mismatch", "install the same release of accelctl on both sides")
        target = self.chip.target
        features = [*FEATURES, *(("data_channel",) if self.door is not None else ())]
        features += ["schedule"] if self.chip.schedule is not None else []
        return pb.HandshakeResponse(
            abi=ABI,
            version=__version__,
            features=features,
            device=target.id,
            simulated=target.simulated,
            start_id=self.registrar.ids.start,
            message_limit=self.limits.message_bytes,
            ops=[OPS[name].code for name in self.chip.by_op],  # type: ignore[misc]
            keepalive_ms=int(self.limits.keepalive_s * 1000),
        )

    def create_session(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        """Open one. Refusal."""
        limits = self.limits
        keepalive_s = request.keepalive_ms / 1000 or limits.keepalive_s
        if not limits.least_keepalive_s <= keepalive_s <= limits.most_keepalive_s:
            least, most = int(limits.least_keepalive_s * 1000), int(limits.most_keepalive_s * 1000)
            raise Refusal("keepalive_ms", f"{request.keepalive_ms}: {least} to {most} are possible")
        depth = request.queue_depth or limits.depth
        if depth > limits.most_depth:
            raise Refusal("queue_depth", f"{depth}: at most {limits.most_depth}")
        session = self.registrar.open(_printable(request.client), keepalive_s, depth)
        return pb.CreateSessionResponse(
            session_id=session.number, keepalive_ms=int(keepalive_s * 1000), queue_depth=session.line.depth
        )

    def destroy_session(self, request: pb.SessionRequest) -> pb.DestroySessionResponse:
        """Give everything back. Refusal."""
        session = self.registrar.get(request.session_id)
        freed, tensors = self.registrar.close(session, "this session was destroyed")
        return pb.DestroySessionResponse(freed_bytes=freed, freed_tensors=tensors)

    def keep_alive(self, request: pb.SessionRequest) -> pb.KeepAliveResponse:
        """Still there. Refusal."""
        session = self.registrar.get(request.session_id)
        return pb.KeepAliveResponse(remaining_ms=max(0, int(session.remaining_s() * 1000)))

    def _ended(self, number: int) -> None:
        if self.door is not None:
            self.door.end(number)

    # -- memory

    def alloc_tensor(self, request: pb.AllocTensorRequest) -> pb.AllocTensorResponse:
        """Memory for a tensor, or for so many bytes. Refusal."""
        session = self.registrar.get(request.session_id)
        wanted = request.tensor
        size = _size(wanted)
        with session.lock:
            session.touch()
            made = session.allocate(size, CLIENT)
        answer = pb.AllocTensorResponse()
        answer.tensor.CopyFrom(wanted)
        answer.tensor.tensor_id, answer.tensor.device_addr, answer.tensor.byte_size = made.number, made.start, size
        return answer

    def free_tensor(self, request: pb.FreeTensorRequest) -> pb.FreeTensorResponse:
        """Back. Refusal."""
        session = self.registrar.get(request.session_id)
        with session.lock:
            session.touch()
            return pb.FreeTensorResponse(freed_bytes=session.free(request.tensor_id))

    def receive(self, piece: pb.TensorChunk, inbox: transfer.Inbox, patience_s: float) -> None:
        """One piece of a stream of tensor data. Refusal."""
        if piece.session_id or inbox.session is None:
            session = self.registrar.get(piece.session_id)
        else:
            session = self.registrar.get(inbox.session.number)
        inbox.check(piece)
        self.observer.moved("in", inbox.put(session, piece, patience_s))

    def read_tensor(self, request: pb.ReadTensorRequest, patience_s: float) -> Iterator[pb.TensorChunk]:
        """A tensor's bytes in pieces. Refusal, also between pieces."""
        session = self.registrar.get(request.session_id)
        for piece in transfer.pieces(session, request, patience_s):
            self.observer.moved("out", len(piece.data))
            yield piece

    def open_data_channel(self, request: pb.DataChannelRequest) -> pb.DataChannelResponse:
        """Where the shared memory is handed over. Refusal where this service has none."""
        session = self.registrar.get(request.session_id)
        if self.door is None:
            raise Refusal("", "this service has no data channel", "not_supported", "use StreamTensorData")
        token = self.door.offer(Guest(session.number, session.lend, session.take_back, moved=self.observer.moved))
        shape = self.door.shape
        return pb.DataChannelResponse(
            socket=self.door.path, token=token, chunk_bytes=shape.slot_bytes, slots=shape.slots
        )

    # -- the queue

    def wait(self, request: pb.WaitRequest, active: Callable[[], bool] = lambda: True) -> pb.WaitResponse:
        """Whether a fence was passed in time. The wait ends as well when its caller is gone. Refusal."""
        session = self.registrar.get(request.session_id)
        passed = session.wait(request.fence, request.timeout_us / 1e6, active)
        return pb.WaitResponse(passed=passed, passed_fence=session.line.passed())

    # -- what can be seen of it

    def telemetry(self) -> pb.TelemetrySample:
        """Levels and counts of this moment."""
        return sample(self.registrar, now(), time.monotonic() - self.started)

    def close(self) -> None:
        """End all sessions, then the data channel. Raises the first failure when all is tried."""
        try:
            self.registrar.stop()
        finally:
            if self.door is not None:
                self.door.close()

    def session(self, number: int) -> Session:
        """An open session. Refusal."""
        return self.registrar.get(number)


_MOST_NAME = 80


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:_MOST_NAME])


def _size(wanted: pb.TensorDesc) -> int:
    """Bytes of a tensor that is to be allocated. Refusal."""
    for name in ("tensor_id", "device_addr"):
        if getattr(wanted, name):
            raise Refusal(f"tensor.{name}", "the service chooses it")
    if wanted.strides:
        raise Refusal("tensor.strides", "memory is allocated dense; make a view of it")
    dtype = DTYPES.get(wanted.data_type)
    if dtype is None:
        if wanted.data_type or wanted.shape:
            raise Refusal("tensor.data_type", f"{wanted.data_type}: unknown" if wanted.data_type else "it is not said")
        if not wanted.byte_size:
            raise Refusal("tensor.byte_size", "neither a type with a shape nor a size is said")
        return wanted.byte_size
    if len(wanted.shape) > MOST_DIMS:
        raise Refusal("tensor.shape", f"{len(wanted.shape)} dimensions: {MOST_DIMS} are possible", "not_supported")
    try:
        size = byte_size(wanted.shape, dtype)
    except UsageError as error:
        raise Refusal("tensor.shape", error.message) from None
    if wanted.byte_size and wanted.byte_size != size:
        raise Refusal("tensor.byte_size", f"{wanted.byte_size}: the shape has {size}")
    return size
