"""The client of the service: one channel, many threads, deadlines on everything.

What is retried, and what is not: a call that was never answered may have been carried out. Asking again is harmless for
what only asks or translates (`handshake`, `translate` without submit, `wait`, `keep_alive`, `read`); memory would be
allocated twice and work would run twice, so those fail with one line instead.

After a restart of the service the channel connects again by itself, but sessions are gone: `SessionGone` says so, and
the caller opens a new one.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from accelctl import __version__
from accelctl.abi.opset import OPS, Value, text_of
from accelctl.abi.tensors import DTYPES, DType
from accelctl.abi.version import ABI, accepts
from accelctl.errors import KINDS, AbiError, AccelError, UsageError
from accelctl.model.configtext import near
from accelctl.umd.channel.tunnel import Tunnel
from accelctl.umd.connect import connect, forbidden
from accelctl.umd.places import Places, all_placed, extent
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.proto.umd_pb2_grpc import InstructionTranslatorStub

if TYPE_CHECKING:
    from accelctl.umd.pins import Pinned, Recording

T = TypeVar("T")
DEADLINE_S = 0.5
"""Of a single call."""
PER_OP_S = 0.02
"""More for each op of a batch."""
SLOWEST_BYTES_PER_S = 50e6
"""What data are allowed to take, beside the single call's deadline."""
CHUNK = 1 << 20
RETRIES, RETRY_WAIT_S = 5, 0.05
_GRPC_KINDS = {
    "INVALID_ARGUMENT": "invalid_argument",
    "UNIMPLEMENTED": "not_supported",
    "NOT_FOUND": "not_found",
    "FAILED_PRECONDITION": "invalid_state",
    "RESOURCE_EXHAUSTED": "out_of_resources",
    "DEADLINE_EXCEEDED": "timeout",
    "UNAVAILABLE": "communication",
    "CANCELLED": "cancelled",
    "PERMISSION_DENIED": "permission",
    "OUT_OF_RANGE": "invalid_argument",
}
STATUS_KEY = "umd-status-bin"
_ABSENT = pb.TensorDesc()


class ServiceError(AccelError):
    """The service refused, or cannot be reached. ``code`` is gRPC's name, ``field`` what it is about."""

    def __init__(self, message: str, hint: str | None = None, *, kind: str, code: str = "", field: str = "") -> None:
        self.default_kind = kind
        super().__init__(message, hint, kind=kind)
        self.code, self.field = code, field


class SessionGone(ServiceError):
    """The session expired, or the service was restarted since."""


class Client:
    """A service at ``address``: ``unix:/path`` or ``host:port``. May be used by several threads, and after a fork (the
    child gets a channel of its own)."""

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S, name: str = "") -> None:
        self.address, self.deadline_s = address, deadline_s
        self.name = name or f"accelctl {__version__}, pid {os.getpid()}"
        self._lock = threading.Lock()
        self._pid = 0
        self._channel: grpc.Channel | None = None
        self._stub: InstructionTranslatorStub | None = None
        self._features: frozenset[str] | None = None

    # -- connection --

    @property
    def stub(self) -> InstructionTranslatorStub:
        """The calls, on this process's channel."""
        if self._stub is None or self._pid != os.getpid():
            with self._lock:
                if self._stub is None or self._pid != os.getpid():
                    self._channel = connect(self.address)
                    self._stub = InstructionTranslatorStub(self._channel)  # type: ignore[no-untyped-call]
                    self._pid = os.getpid()
        return self._stub

    def close(self) -> None:
        """Give the connection back. What comes after opens a new one."""
        with self._lock:
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._pid == os.getpid():
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- calls --

    def call(self, method: str, request: Any, *, extra_s: float = 0.0, safe: bool = False) -> Any:
        """One call with its deadline. ServiceError; with ``safe`` a service that is not there is tried again."""
        deadline = time.monotonic() + self.deadline_s + extra_s
        for attempt in range(RETRIES if safe else 1):
            left = max(0.001, deadline - time.monotonic())
            try:
                return getattr(self.stub, method)(request, timeout=left)
            except grpc.RpcError as error:
                again = safe and error.code() is grpc.StatusCode.UNAVAILABLE and attempt + 1 < RETRIES
                if not again or time.monotonic() + RETRY_WAIT_S >= deadline:
                    raise self.failed(error, method) from None
            time.sleep(RETRY_WAIT_S)
        raise AssertionError

    def failed(self, error: grpc.RpcError, method: str) -> ServiceError:
        """What a gRPC error means, in our words."""
        code = error.code().name if error.code() is not None else "UNKNOWN"
        told = pb.Status()
        trailing: Iterable[tuple[str, bytes]] = error.trailing_metadata() or ()  # type: ignore[assignment]
        for key, value in trailing:
            if key == STATUS_KEY:
                told.ParseFromString(value)
        if told.code:
            return refusal(told, code)
        said = " ".join(str(error.details() or "").split())
        if code == "UNAVAILABLE" and (path := forbidden(self.address)):
            message = f"permission denied: {path} is the socket of a service of another user"
            return ServiceError(message, f"ls -l {shlex.quote(path)}", kind="permission", code=code)
        if code == "UNAVAILABLE":
            message = f"no service answers at {self.address} ({said})"
            return ServiceError(message, "accelctl serve --device ...", kind="communication", code=code)
        if code == "DEADLINE_EXCEEDED":
            return ServiceError(f"{method} was not answered in time", kind="timeout", code=code)
        return ServiceError(f"{method}: {said or code}", kind=_GRPC_KINDS.get(code, "internal"), code=code)

    def handshake(self) -> pb.HandshakeResponse:
        """What is there. AbiError where the two do not fit."""
        answer = self.call("Handshake", pb.HandshakeRequest(abi=ABI, client=self.name), safe=True)
        if not accepts(answer.abi):
            raise AbiError(f"the service at {self.address} speaks ABI {answer.abi}, this client {ABI}")
        return answer  # type: ignore[no-any-return]

    def telemetry(self) -> pb.TelemetrySample:
        """Levels of all sessions, and counts since the service started."""
        try:
            for sample in self.stub.Telemetry(pb.TelemetryRequest(count=1), timeout=self.deadline_s):
                return sample  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            raise self.failed(error, "Telemetry") from None
        raise ServiceError("Telemetry gave nothing", kind="internal")

    def features(self) -> frozenset[str]:
        """What the service at this address offers; asked once."""
        if self._features is None:
            self._features = frozenset(self.handshake().features)
        return self._features

    def session(self, *, keepalive_ms: int = 0, queue_depth: int = 0) -> ClientSession:
        """A new session; the caller closes it."""
        request = pb.CreateSessionRequest(client=self.name, keepalive_ms=keepalive_ms, queue_depth=queue_depth)
        answer = checked(self.call("CreateSession", request, extra_s=self.deadline_s))
        return ClientSession(self, answer)


def refusal(status: pb.Status, code: str = "") -> ServiceError:
    """A Status that is no success, as an exception."""
    kind = status.kind if status.kind in KINDS else _GRPC_KINDS.get(code, "internal")
    where = f"{status.field}: " if status.field and status.field not in status.message else ""
    gone = "session" in status.field and kind in ("invalid_state", "invalid_handle", "not_found")
    kind_of_error = SessionGone if gone else ServiceError
    return kind_of_error(where + status.message, status.hint or None, kind=kind, code=code, field=status.field)


def checked(answer: T) -> T:
    """The answer; ServiceError where its status is no success."""
    status: pb.Status = answer.status  # type: ignore[attr-defined]
    if status.code:
        raise refusal(status, _name(status.code))
    return answer


def _name(code: int) -> str:
    return next((one.name for one in grpc.StatusCode if one.value[0] == code), "UNKNOWN")


class ClientSession:
    """One session. Its methods may be called by several threads; ``close`` once, at the end."""

    def __init__(self, client: Client, created: pb.CreateSessionResponse) -> None:
        self.client, self.id = client, created.session_id
        self.queue_depth = created.queue_depth
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._places = Places()
        self._tunnel: Tunnel | None = None
        self._pid = os.getpid()
        self._far = not client.address.startswith("unix:")
        """No shared memory: the service may be on another machine (a forwarded port looks like loopback)."""
        self._beat_s = created.keepalive_ms / 3000
        self._beats = threading.Thread(target=self._keep_alive, name="accelctl-keepalive", daemon=True)
        if self._beat_s > 0:
            self._beats.start()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._beat_s):
            try:
                self.client.call("KeepAlive", pb.SessionRequest(session_id=self.id), safe=True)
            except ServiceError:
                continue  # the next real call says what is wrong

    def close(self) -> pb.DestroySessionResponse | None:
        """Give everything back. None where the session was gone already; safe to call twice."""
        if self._closed.is_set():
            return None
        self._closed.set()
        with self._lock:
            tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            tunnel.close()
        try:
            return checked(self._call("DestroySession", pb.SessionRequest(session_id=self.id), extra_s=5.0))  # type: ignore[no-any-return]
        except SessionGone:
            return None

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except ServiceError:
            if error is None:  # what went wrong first is the better story
                raise

    def _call(self, method: str, request: Any, *, extra_s: float = 0.0, safe: bool = False) -> Any:
        return self.client.call(method, request, extra_s=extra_s, safe=safe)

    # -- memory --

    def alloc(self, shape: Sequence[int], dtype: str) -> pb.TensorDesc:
        """Memory for a dense tensor. UsageError for an element type that there is not."""
        if dtype not in DTYPES:
            raise UsageError(f"there is no element type {dtype!r}; there are: {', '.join(DTYPES)}")
        described = desc(shape, DTYPES[dtype])
        return self._alloc(described)

    def alloc_bytes(self, size: int) -> pb.TensorDesc:
        """So many bytes, for views."""
        return self._alloc(pb.TensorDesc(byte_size=size))

    def _alloc(self, described: pb.TensorDesc) -> pb.TensorDesc:
        answer = checked(self._call("AllocTensor", pb.AllocTensorRequest(session_id=self.id, tensor=described)))
        self._places.made([answer.tensor])
        return answer.tensor  # type: ignore[no-any-return]

    def free(self, tensor: pb.TensorDesc) -> int:
        """Give it back; the bytes."""
        request = pb.FreeTensorRequest(session_id=self.id, tensor_id=tensor.tensor_id)
        freed = checked(self._call("FreeTensor", request)).freed_bytes
        self._places.freed(tensor.tensor_id)
        return freed  # type: ignore[no-any-return]

    def by_messages(self) -> ClientSession:
        """Itself; from now on bytes of tensors travel in messages, as to a service elsewhere: to compare the two."""
        self._far = True
        return self

    @property
    def transport(self) -> str:
        """How bytes of tensors travel: ``shared memory``, or ``grpc`` to a service elsewhere or without a channel."""
        return "grpc" if self._far or "data_channel" not in self.client.features() else "shared memory"

    def _channel(self) -> Tunnel | None:
        """The data channel, opened on first use and again after it broke."""
        if self.transport == "grpc":
            return None
        with self._lock:
            if self._tunnel is None or self._tunnel.closed or self._pid != os.getpid():
                answer = self._call("OpenDataChannel", pb.DataChannelRequest(session_id=self.id))
                with _through_memory():
                    self._tunnel = Tunnel(checked(answer).socket, answer.token)
                self._pid = os.getpid()
            return self._tunnel

    @contextmanager
    def _through(self, channel: Tunnel) -> Iterator[None]:
        """A transfer. What broke the channel off may be the end of the session, and SessionGone says that."""
        try:
            with _through_memory():
                yield
        except ServiceError:
            if channel.closed:
                self._still_there()
            raise

    def _still_there(self) -> None:
        """SessionGone where the service says so."""
        try:
            self._call("KeepAlive", pb.SessionRequest(session_id=self.id), safe=True)
        except SessionGone:
            raise
        except ServiceError:
            pass  # what was wrong first is the better story

    def write(self, tensor: pb.TensorDesc, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Put bytes into the memory of a tensor or of a view of one, from ``offset`` on."""
        view = memoryview(data).cast("B")
        offset = self._places.within(tensor, offset, len(view))
        channel = self._channel()
        if channel is not None:
            with self._through(channel):
                channel.upload([(tensor.tensor_id, offset, view)])
            return
        seconds = self.client.deadline_s + len(view) / SLOWEST_BYTES_PER_S
        try:
            answer = self.client.stub.StreamTensorData(self._chunks(tensor.tensor_id, view, offset), timeout=seconds)
        except grpc.RpcError as error:
            raise self.client.failed(error, "StreamTensorData") from None
        checked(answer)

    def _chunks(self, tensor_id: int, view: memoryview, offset: int) -> Iterator[pb.TensorChunk]:
        from crc32c import crc32c

        for at in range(0, max(1, len(view)), CHUNK):
            data = bytes(view[at : at + CHUNK])
            yield pb.TensorChunk(
                session_id=self.id,
                tensor_id=tensor_id,
                offset=offset + at,
                data=data,
                crc32c=crc32c(data),
                last=at + CHUNK >= len(view),
            )

    def read(self, tensor: pb.TensorDesc, offset: int = 0, size: int | None = None) -> bytearray:
        """Bytes of the memory of a tensor or of a view of one; default: all of it from ``offset`` on."""
        length = extent(tensor) - offset if size is None else size
        self._places.within(tensor, offset, length)
        found = bytearray(length)
        self.read_into(tensor, found, offset)
        return found

    def read_into(self, tensor: pb.TensorDesc, into: bytearray | memoryview, offset: int = 0) -> None:
        """Fill a buffer with bytes of a tensor's memory, from ``offset`` on: one copy less than to make it and copy.
        Where this fails the buffer holds anything. ValueError for one that cannot be written, or has gaps."""
        from crc32c import crc32c

        found = memoryview(into)
        if found.readonly or not found.c_contiguous:
            raise ValueError("the buffer cannot be written in one piece")
        offset = self._places.within(tensor, offset, found.nbytes)
        if not (length := found.nbytes):
            return
        found = found.cast("B")
        channel = self._channel()
        if channel is not None:
            with self._through(channel):
                channel.download([(tensor.tensor_id, offset, found)])
            return
        request = pb.ReadTensorRequest(session_id=self.id, tensor_id=tensor.tensor_id, offset=offset, length=length)
        seconds, have = self.client.deadline_s + length / SLOWEST_BYTES_PER_S, 0
        try:
            for chunk in self.client.stub.ReadTensor(request, timeout=seconds):
                at = chunk.offset - offset
                if at != have or at + len(chunk.data) > length or crc32c(chunk.data) != chunk.crc32c:
                    raise ServiceError(f"tensor {tensor.tensor_id}: a damaged piece arrived", kind="communication")
                found[at : at + len(chunk.data)] = chunk.data
                have += len(chunk.data)
        except grpc.RpcError as error:
            raise self.client.failed(error, "ReadTensor") from None
        if have != length:
            raise ServiceError(f"tensor {tensor.tensor_id}: {have} of {length} bytes arrived", kind="communication")

    # -- ops --

    def request(
        self,
        op: str,
        inputs: Iterable[pb.TensorDesc | None],
        outputs: Iterable[pb.TensorDesc | None] = (),
        attrs: Mapping[str, Value] | None = None,
        *,
        submit: bool = False,
        request_id: int = 0,
    ) -> pb.OpRequest:
        """An op as a message. None: an optional operand that is left out. UsageError for an op that there is not."""
        if op not in OPS:
            raise UsageError(f"there is no op {op!r}{near(op, OPS)}", "accelctl smoke --list-cases")
        return pb.OpRequest(
            session_id=self.id,
            request_id=request_id,
            op_type=OPS[op].code,  # type: ignore[arg-type]
            inputs=[_ABSENT if one is None else one for one in inputs],
            outputs=[_ABSENT if one is None else one for one in outputs],
            attrs={name: value if isinstance(value, str) else text_of(value) for name, value in (attrs or {}).items()},
            submit=submit,
        )

    def translate(self, request: pb.OpRequest) -> pb.OpResponse:
        """Instructions of an op; with ``submit`` they are in the queue as well, and the answer has a fence.

        Allocating outputs and submitting are not repeated where no answer came.
        """
        safe = not request.submit and all_placed(request)
        answer = checked(self._call("TranslateOp", request, safe=safe))
        self._places.made(answer.outputs)
        return answer  # type: ignore[no-any-return]

    def batch(self, requests: Sequence[pb.OpRequest]) -> pb.BatchOpResponse:
        """Several ops in order. The answer's status is that of the first one that failed; those before it stand."""
        request = pb.BatchOpRequest(session_id=self.id, ops=requests)
        answer = self._call("TranslateOpsBatch", request, extra_s=PER_OP_S * len(requests))
        for one in answer.responses:
            self._places.made(one.outputs)
        return answer  # type: ignore[no-any-return]

    def stream(self, batches: Iterable[Sequence[pb.OpRequest]], timeout_s: float) -> Iterator[pb.BatchOpResponse]:
        """Batches of 1 to 64 ops, one after the other over one call; answers in order, as they come."""
        messages = (pb.BatchOpRequest(session_id=self.id, ops=ops) for ops in batches)
        try:
            for answer in self.client.stub.TranslateStream(messages, timeout=timeout_s):
                for one in answer.responses:
                    self._places.made(one.outputs)
                yield answer
        except grpc.RpcError as error:
            raise self.client.failed(error, "TranslateStream") from None

    def submit(self, instructions: Sequence[pb.HardwareInstruction]) -> int:
        """Hand over instructions that were translated earlier; the fence of the last one."""
        request = pb.SubmitRequest(session_id=self.id, instructions=instructions)
        return checked(self._call("Submit", request, extra_s=PER_OP_S * len(instructions))).fence  # type: ignore[no-any-return]

    def pin(self, requests: Sequence[pb.OpRequest], name: str = "") -> Pinned:
        """Fix a list of ops: translated once, replayed as a whole. Other ops under its name end the one before."""
        from accelctl.umd.pins import Pinned

        request = pb.PinRequest(session_id=self.id, name=name, ops=requests)
        answer = checked(self._call("PinList", request, extra_s=PER_OP_S * len(requests)))
        self._places.made([made for one in answer.responses for made in one.outputs])
        return Pinned(self, name, answer)

    def record(self, name: str = "") -> Recording:
        """Ops one after the other, pinned as one list in the end: see umd.pins."""
        from accelctl.umd.pins import Recording

        return Recording(self, name)

    def wait(self, fence: int, timeout_s: float = 10.0) -> bool:
        """Whether the fence was passed within so many seconds."""
        request = pb.WaitRequest(session_id=self.id, fence=fence, timeout_us=int(timeout_s * 1e6))
        return checked(self._call("Wait", request, extra_s=timeout_s, safe=True)).passed  # type: ignore[no-any-return]


@contextmanager
def _through_memory() -> Iterator[None]:
    """What the data channel says, as whatever else goes wrong with the service."""
    try:
        yield
    except ServiceError:
        raise
    except AccelError as error:
        raise ServiceError(error.message, error.hint, kind=error.kind) from error


def desc(shape: Sequence[int], dtype: DType, **more: Any) -> pb.TensorDesc:
    """A TensorDesc; ``more``: tensor_id, device_addr, strides, byte_size."""
    return pb.TensorDesc(shape=shape, data_type=dtype.code, **more)  # type: ignore[arg-type]


def wait_until_ready(address: str, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Until a service answers there. ServiceError after so long, or when ``alive`` says that it died."""
    end = time.monotonic() + timeout_s
    with Client(address) as client:
        while True:
            try:
                client.handshake()
                return
            except ServiceError as error:
                if not alive() or time.monotonic() > end or error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise
            time.sleep(0.05)
