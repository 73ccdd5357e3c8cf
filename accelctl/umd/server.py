"""The service on gRPC: calls to methods of Service, refusals to status codes, limits, health and reflection.

Calls are taken as bytes and parsed here: so what is not a message at all is refused like any other wrong request, and
translating, which has its own short way with bytes, loses nothing on the way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from accelctl.errors import AccelError
from accelctl.umd.ops import LONGEST_LIST, MOST_STREAMED
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import CANCELLED, INVALID_ARGUMENT, Refusal, refusal_of
from accelctl.umd.service import Service
from accelctl.umd.transfer import Inbox

LOG = logging.getLogger("accelctl.umd")
NAME = "umd.InstructionTranslator"
STATUS_KEY = "umd-status-bin"
"""Trailing metadata of a refused call: a Status."""
WORKERS = 256
"""Calls at one time; a thread each while they last. More are refused with RESOURCE_EXHAUSTED."""
WATCHERS = 32
"""Telemetry streams at one time."""
LONG = 192
"""Calls at one time that may last as long as their client likes: waits and streams of ops and bytes. What is left of
WORKERS without these and the watchers is for calls that end by themselves, KeepAlive above all."""
LEAST_PING_MS = 250
"""A client may ping so often. gRPC's own default is 300,000: with that, a client that pings every second ends its own
long calls with "Too many pings". Measured with grpcio 1.85: a server honours the option
`grpc.http2.min_ping_interval_without_data_ms`; `min_recv_ping_interval_without_data_ms` has no effect."""
Options = tuple[tuple[str, int], ...]
OPTIONS: Options = (
    ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two services on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
)
TELEMETRY_MS, LEAST_TELEMETRY_MS = 1000, 10
_NO_DEADLINE_S = 1e9
_CODES = {code.value[0]: code for code in grpc.StatusCode}

M = TypeVar("M", bound=Message)
Context = grpc.ServicerContext
if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]


def sizes(limit: int) -> Options:
    """Messages of at most so many bytes, both ways."""
    return (("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit))


class Server:
    """A service, listening. ``port`` is what the system chose where a TCP address named port 0."""

    def __init__(self, service: Service, address: str, *, options: Options = OPTIONS) -> None:
        self.service, self.address = service, address
        self.stopping = threading.Event()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="umd-call")
        options = (*sizes(service.limits.message_bytes), *options)
        self._grpc = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=WORKERS)
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, Calls(self).handlers()),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), self._grpc)
        self.listen()

    def listen(self) -> None:
        """Begin to take calls. AccelError where the address cannot be had."""
        try:
            self.port = self._grpc.add_insecure_port(self.address)
        except RuntimeError as error:
            self._pool.shutdown()
            raise AccelError(f"{self.address}: gRPC cannot listen there ({error})", kind="already_exists") from None
        self._serving(True)
        self._grpc.start()

    def _serving(self, yes: bool) -> None:
        words = health_pb2.HealthCheckResponse
        for name in ("", NAME):
            self._health.set(name, words.SERVING if yes else words.NOT_SERVING)

    def stop(self, grace_s: float = 5.0) -> None:
        """No new calls; those that run may end within ``grace_s``, then they are cancelled. Then every session is
        closed. Raises the first failure of that. Safe to call twice."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._serving(False)
        self._grpc.stop(grace_s).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.service.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is stopped; whether it was."""
        return not self._grpc.wait_for_termination(timeout_s)


def serve(service: Service, address: str) -> Server:
    """Listen on ``unix:/path`` or ``host:port``. AccelError where that is impossible."""
    return Server(service, address)


class Calls:
    """The protocol's methods, as gRPC calls them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._service = server.service
        self._observer = server.service.observer
        self._watchers, self._long = Seats(WATCHERS, "telemetry streams"), Seats(LONG, "waits and streams")

    def handlers(self) -> dict[str, Handler]:
        """Name of a method -> what gRPC wants to know of it."""
        service, unary = self._service, self._unary
        found = {
            "Handshake": unary("Handshake", pb.HandshakeRequest, lambda request, _: service.handshake(request)),
            "CreateSession": unary(
                "CreateSession", pb.CreateSessionRequest, lambda request, _: service.create_session(request)
            ),
            "DestroySession": unary(
                "DestroySession", pb.SessionRequest, lambda request, _: service.destroy_session(request)
            ),
            "KeepAlive": unary("KeepAlive", pb.SessionRequest, lambda request, _: service.keep_alive(request)),
            "AllocTensor": unary(
                "AllocTensor", pb.AllocTensorRequest, lambda request, _: service.alloc_tensor(request)
            ),
            "FreeTensor": unary("FreeTensor", pb.FreeTensorRequest, lambda request, _: service.free_tensor(request)),
            "Submit": unary("Submit", pb.SubmitRequest, service.submit),
            "PinList": unary("PinList", pb.PinRequest, lambda request, _: service.pin(request)),
            "ReplayList": unary("ReplayList", pb.ReplayRequest, service.replay),
            "UnpinList": unary("UnpinList", pb.UnpinRequest, lambda request, _: service.unpin(request)),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait),
            "OpenDataChannel": unary(
                "OpenDataChannel", pb.DataChannelRequest, lambda request, _: service.open_data_channel(request)
            ),
            "TranslateOp": grpc.unary_unary_rpc_method_handler(self._raw("TranslateOp", service.translate)),
            "TranslateOpsBatch": grpc.unary_unary_rpc_method_handler(self._raw("TranslateOpsBatch", service.batch)),
            "TranslateStream": grpc.stream_stream_rpc_method_handler(self._translate_stream),
            "StreamTensorData": grpc.stream_unary_rpc_method_handler(self._stream_tensor_data),
            "ReadTensor": grpc.unary_stream_rpc_method_handler(self._read_tensor),
            "Telemetry": grpc.unary_stream_rpc_method_handler(self._telemetry),
        }
        return dict(found)

    def _unary(self, method: str, kind: type[M], call: Callable[[M, float], Message]) -> Handler:
        def bytes_to_bytes(raw: bytes, patience_s: float) -> bytes:
            return call(parsed(kind, raw), patience_s).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(self._raw(method, bytes_to_bytes))

    def _raw(self, method: str, call: Callable[[bytes, float], bytes]) -> Callable[[bytes, Context], bytes]:
        """A call from bytes to bytes, with its end told to the observer."""

        return self._answering(method, lambda raw, context: call(raw, self._patience(context)))

    def _answering(self, method: str, call: Callable[[bytes, Context], bytes]) -> Callable[[bytes, Context], bytes]:
        def handle(raw: bytes, context: Context) -> bytes:
            start = now()
            try:
                answer = call(raw, context)
                if len(answer) > self._service.limits.message_bytes:
                    raise _too_large(len(answer), self._service.limits.message_bytes)
            except Exception as error:
                self._refuse(method, start, error, context)
            self._observer.answered(method, now() - start, 0)
            return answer

        return handle

    def _patience(self, context: Context) -> float:
        """Seconds that this call may wait."""
        left = context.time_remaining()
        if left is None or left > _NO_DEADLINE_S:
            return self._service.limits.patience_s
        return max(0.0, left)

    def _wait(self, raw: bytes, context: Context) -> bytes:
        """A wait says itself how long it is; it ends with its client."""

        def wait(raw: bytes, context: Context) -> bytes:
            with self._long:
                return self._service.wait(parsed(pb.WaitRequest, raw), context.is_active).SerializeToString()

        return self._answering("Wait", wait)(raw, context)

    def _refuse(self, method: str, start: int, error: Exception, context: Context) -> NoReturn:
        """End the call with what is wrong."""
        if isinstance(error, grpc.RpcError):  # how gRPC says, to whoever reads a stream, that the client is gone
            self._observer.answered(method, now() - start, CANCELLED)
            raise error
        refusal = refusal_of(error)
        if refusal.kind == "internal":
            LOG.error("%s failed", method, exc_info=error)
        status = refusal.status()
        if not refusal.told:
            self._observer.failed(refusal.kind, "")
        self._observer.answered(method, now() - start, status.code)
        context.set_trailing_metadata(((STATUS_KEY, status.SerializeToString()),))
        context.abort(_CODES[status.code or INVALID_ARGUMENT], status.message)
        raise AssertionError("abort returns to nobody")

    # -- streams

    def _translate_stream(self, messages: Iterator[bytes], context: Context) -> Iterator[bytes]:
        start = now()
        try:
            with self._long:
                for raw in messages:
                    yield self._service.batch(raw, self._patience(context), MOST_STREAMED)
        except Exception as error:
            self._refuse("TranslateStream", start, error, context)
        self._observer.answered("TranslateStream", now() - start, 0)

    def _stream_tensor_data(self, messages: Iterator[bytes], context: Context) -> bytes:
        start = now()
        inbox = Inbox()
        try:
            with self._long:
                for raw in messages:
                    self._service.receive(parsed(pb.TensorChunk, raw), inbox, self._patience(context))
            inbox.end()
        except Exception as error:
            self._refuse("StreamTensorData", start, error, context)
        self._observer.answered("StreamTensorData", now() - start, 0)
        return pb.StreamAck(bytes=inbox.bytes, chunks=inbox.chunks).SerializeToString()

    def _read_tensor(self, raw: bytes, context: Context) -> Iterator[bytes]:
        start = now()
        try:
            with self._long:
                for piece in self._service.read_tensor(parsed(pb.ReadTensorRequest, raw), self._patience(context)):
                    yield piece.SerializeToString()
        except Exception as error:
            self._refuse("ReadTensor", start, error, context)
        self._observer.answered("ReadTensor", now() - start, 0)

    def _telemetry(self, raw: bytes, context: Context) -> Iterator[bytes]:
        start = now()
        try:
            request = parsed(pb.TelemetryRequest, raw)
            period_s = max(LEAST_TELEMETRY_MS, request.period_ms or TELEMETRY_MS) / 1000
            ended = threading.Event()
            context.add_callback(ended.set)
            count = 0
            with self._watchers if request.count != 1 else nullcontext():
                while True:
                    yield self._service.telemetry().SerializeToString()
                    count += 1
                    if count == request.count or ended.wait(period_s) or self._server.stopping.is_set():
                        break
        except Exception as error:
            self._refuse("Telemetry", start, error, context)
        self._observer.answered("Telemetry", now() - start, 0)


class Seats:
    """So many calls of a kind at one time. Refusal for one more."""

    def __init__(self, count: int, what: str) -> None:
        self._count, self._what = count, what
        self._free = threading.Semaphore(count)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            text = f"{self._count} {self._what} are running, and there may be no more"
            raise Refusal("", text, "out_of_resources")

    def __exit__(self, *ended: object) -> None:
        self._free.release()


_LONGEST = 64 << 10
"""Bytes of a message that holds no list and no data of a tensor."""
_LONGEST_OF: dict[type[Message], int] = {
    pb.TensorChunk: 64 << 20,
    pb.SubmitRequest: LONGEST_LIST,
    pb.PinRequest: LONGEST_LIST,
}


def parsed(kind: type[M], raw: bytes) -> M:
    """A message. Refusal for bytes that are none, and for more of them than it has a use for: an empty element of a
    list takes two bytes on the wire and some 75 as an object, so 64 MiB would become gigabytes."""
    most = _LONGEST_OF.get(kind, _LONGEST)
    if len(raw) > most:
        text = f"{len(raw)} bytes: a {kind.DESCRIPTOR.name} has at most {most}"
        raise Refusal("", text, "out_of_resources", "send fewer at a time")
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise Refusal("", f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def _too_large(size: int, limit: int) -> Refusal:
    text = f"the answer has {size} bytes, the service sends at most {limit}"
    return Refusal("", text, "out_of_resources", "ask for fewer ops in one call")
