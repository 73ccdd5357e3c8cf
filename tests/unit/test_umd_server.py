"""The service on gRPC: status codes, limits, pings, streams, health and reflection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import grpc
from crc32c import crc32c
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from accelctl.umd.ops import MOST_STREAMED
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.proto import umd_pb2_grpc
from accelctl.umd.registrar import Limits
from accelctl.umd.server import NAME, OPTIONS, STATUS_KEY, Server, serve
from accelctl.umd.service import USUAL, Service
from tests.umdkit import HeldKernels, chip_of, device_files

PATIENCE_S = 20.0
PATIENT = Limits(patience_s=PATIENCE_S)
LIBERAL = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def stub_of(channel: Any) -> Any:
    """Generated, and without types."""
    made: Any = umd_pb2_grpc
    return made.InstructionTranslatorStub(channel)


class Listener:
    """What the observer was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def translated(self, op: str, stage_ns: object, hit: bool, session: int = 0) -> None:
        self.told.append(("translated", op, hit))

    def failed(self, kind: str, op: str) -> None:
        self.told.append(("failed", kind, op))

    def launched(self, op: str, count: int) -> None:
        self.told.append(("launched", op, count))

    def moved(self, direction: str, count: int) -> None:
        self.told.append(("moved", direction, count))

    def answered(self, method: str, ns: int, code: int) -> None:
        assert ns > 0
        self.told.append(("answered", method, code))


class Served:
    def __init__(self, server: Server, stub: Any, channel: Any, listener: Listener) -> None:
        self.server, self.stub, self.channel, self.listener = server, stub, channel, listener
        self.session = stub.CreateSession(pb.CreateSessionRequest(client="test")).session_id

    def alloc(self, *shape: int, dtype: pb.DataType = pb.FP32) -> pb.TensorDesc:
        wanted = pb.TensorDesc(shape=shape, data_type=dtype)
        answer: pb.AllocTensorResponse = self.stub.AllocTensor(
            pb.AllocTensorRequest(session_id=self.session, tensor=wanted)
        )
        return answer.tensor

    def relu(self, **more: Any) -> pb.OpRequest:
        return pb.OpRequest(
            session_id=self.session, op_type=pb.RELU, inputs=[self.alloc(8)], outputs=[self.alloc(8)], **more
        )

    def piece(self, number: int, offset: int, data: bytes, last: bool = False) -> pb.TensorChunk:
        return pb.TensorChunk(
            session_id=self.session, tensor_id=number, offset=offset, data=data, crc32c=crc32c(data), last=last
        )


@contextmanager
def served_at(
    folder: Path,
    kernels: HeldKernels | None = None,
    options: Any = LIBERAL,
    limits: Limits = PATIENT,
) -> Iterator[Served]:
    listener = Listener()
    service = Service(chip_of(kernels), limits=limits, observer=listener)
    address = f"unix:{folder}/s"
    server = serve(service, address)
    try:
        with grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1), *options)) as channel:
            yield Served(server, stub_of(channel), channel, listener)
    finally:
        server.stop(1.0)
        assert device_files(service) == 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with served_at(tmp_path) as made:
        yield made


def failure(call: Callable[[], object]) -> tuple[Any, str, pb.Status]:
    """Code, details, and the Status beside them."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    trailing = dict(error.trailing_metadata() or ())
    return error.code(), error.details(), pb.Status.FromString(trailing.get(STATUS_KEY, b""))


def test_an_op_from_end_to_end(served: Served) -> None:
    request = served.relu(submit=True, request_id=5)
    data = b"".join(value.to_bytes(4, "little") for value in (0xBF800000, 0x40000000)) * 4
    ack = served.stub.StreamTensorData(
        iter(
            [
                served.piece(request.inputs[0].tensor_id, 0, data[:20]),
                served.piece(request.inputs[0].tensor_id, 20, data[20:], True),
            ]
        )
    )
    assert (ack.bytes, ack.chunks) == (32, 2)
    answer = served.stub.TranslateOp(request)
    assert (answer.request_id, answer.status.code, len(answer.instructions)) == (5, 0, 1)
    assert served.stub.Wait(pb.WaitRequest(session_id=served.session, fence=answer.fence, timeout_us=10**6)).passed
    wanted = pb.ReadTensorRequest(session_id=served.session, tensor_id=request.outputs[0].tensor_id)
    found = b"".join(one.data for one in served.stub.ReadTensor(wanted))
    assert found == (bytes(4) + data[4:8]) * 4
    told = served.listener.told
    assert ("translated", "relu", False) in told
    assert ("launched", "relu", 1) in told
    assert [one for one in told if one[0] == "moved"] == [
        ("moved", "in", 20),
        ("moved", "in", 12),
        ("moved", "out", 32),
    ]
    assert ("answered", "TranslateOp", 0) in told


def test_a_refusal_has_a_code_a_line_and_a_field(served: Served) -> None:
    request = served.relu()
    request.inputs[0].byte_size = 31
    code, details, status = failure(lambda: served.stub.TranslateOp(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == status.message == "inputs[0].byte_size: 31: shape (8,) of fp32 has 32"
    assert (status.code, status.field, status.kind) == (3, "inputs[0].byte_size", "invalid_argument")
    assert served.listener.told.count(("failed", "invalid_argument", "relu")) == 1
    assert ("failed", "invalid_argument", "") not in served.listener.told
    code, details, status = failure(lambda: served.stub.KeepAlive(pb.SessionRequest(session_id=7)))
    assert (code, status.field) == (grpc.StatusCode.NOT_FOUND, "session_id")
    assert ("failed", "not_found", "") in served.listener.told


METHODS = [
    "CreateSession",
    "DestroySession",
    "TranslateOp",
    "TranslateOpsBatch",
    "KeepAlive",
    "Handshake",
    "AllocTensor",
]
METHODS += ["FreeTensor", "Submit", "Wait", "OpenDataChannel", "PinList", "ReplayList", "UnpinList"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x0a\x05ab", b"\x08"])
def test_bytes_that_are_no_message(method: str, raw: bytes, served: Served) -> None:
    """gRPC itself would answer INTERNAL, as if the service were at fault."""
    call = served.channel.unary_unary(f"/{NAME}/{method}")
    code, details, _ = failure(lambda: call(raw))
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details


def test_a_failure_of_the_service_is_called_that(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("accelctl.umd.session.Session.allocate", broken)
    code, details, status = failure(lambda: served.alloc(4))
    assert code is grpc.StatusCode.INTERNAL
    assert "the service failed: ZeroDivisionError: by nought" in details
    assert status.kind == "internal"
    monkeypatch.undo()
    assert served.alloc(4).tensor_id


def test_a_batch_says_which_op_failed_while_the_earlier_ones_stand(served: Served) -> None:
    bad = served.relu(request_id=3)
    bad.inputs[0].shape[0] = 9
    ops = [served.relu(request_id=1, submit=True), served.relu(request_id=2), bad, served.relu(request_id=4)]
    answer = served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=served.session, ops=ops))
    assert [one.request_id for one in answer.responses] == [1, 2, 3, 4]
    assert [one.status.code for one in answer.responses] == [0, 0, 3, 1]
    assert [len(one.instructions) for one in answer.responses] == [1, 1, 0, 0]
    assert answer.status.code == 3
    assert answer.status.field == "ops[2].inputs[0].byte_size"
    assert answer.responses[2].status.field == "inputs[0].byte_size"
    assert answer.responses[3].status.message == "not tried: ops[2] was refused"
    assert answer.responses[0].fence == 1


def test_a_batch_keeps_order(served: Served) -> None:
    ops = [served.relu(request_id=number) for number in range(100)]
    for _ in range(2):
        answer = served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=served.session, ops=ops))
        assert [one.request_id for one in answer.responses] == list(range(100))
        assert [one.instructions[0].param_addrs[0] for one in answer.responses] == [
            one.inputs[0].device_addr for one in ops
        ]
        assert answer.status.code == 0
    assert all(one.cache_hit for one in answer.responses)


def test_a_batch_belongs_to_one_session(served: Served) -> None:
    other = served.relu()
    other.session_id = 12345
    answer = served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=served.session, ops=[served.relu(), other]))
    assert answer.status.field == "ops[1].session_id"
    code, _, status = failure(lambda: served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=9)))
    assert (code, status.field) == (grpc.StatusCode.NOT_FOUND, "session_id")
    assert served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=served.session)).status.code == 0


# -- RPC-01


def test_rpc_01_messages_beyond_4_mib(served: Served) -> None:
    """a: a tensor of 4 MiB in one field; c: 5,000,000 bytes from a client whose limits are raised; d: as an answer."""
    room = served.alloc(1024, 1024)
    one = served.piece(room.tensor_id, 0, bytes(4194304), True)
    assert one.ByteSize() > 4 << 20
    assert served.stub.StreamTensorData(iter([one])).bytes == 4194304
    large = served.alloc(5000000, dtype=pb.UINT8)
    assert served.stub.StreamTensorData(iter([served.piece(large.tensor_id, 0, b"x" * 5000000, True)])).bytes == 5000000
    request = served.relu()
    answer = served.stub.TranslateOpsBatch(pb.BatchOpRequest(session_id=served.session, ops=[request] * 40000))
    assert answer.ByteSize() > 5000000


def test_rpc_01_a_default_client_gets_answers_that_it_can_take(tmp_path: Path) -> None:
    """The receiver's limit counts: a tensor of 5,000,000 bytes comes to a client with gRPC's own limits in pieces."""
    with served_at(tmp_path, options=()) as served:
        large = served.alloc(5000000, dtype=pb.UINT8)
        wanted = pb.ReadTensorRequest(session_id=served.session, tensor_id=large.tensor_id)
        assert sum(len(one.data) for one in served.stub.ReadTensor(wanted)) == 5000000


def test_rpc_01_the_limit_is_told_with_size_and_side(served: Served) -> None:
    raw = bytes(USUAL.message_bytes + 1)
    code, details, _ = failure(lambda: served.channel.unary_unary(f"/{NAME}/TranslateOp")(raw))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"SERVER: Received message larger than max ({len(raw)} vs. {USUAL.message_bytes})" in details


def test_rpc_01_an_answer_that_is_too_large(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.server.service, "limits", USUAL._replace(message_bytes=100))
    code, details, status = failure(lambda: served.stub.TranslateOp(served.relu()))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the service sends at most 100" in details
    assert status.hint == "ask for fewer ops in one call"


# -- RPC-02

PINGS = (
    ("grpc.keepalive_time_ms", 300),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
)


def long_call(folder: Path, options: Any) -> str:
    """A call of 5 s from a client that pings three times a second: how it ended."""
    kernels = HeldKernels()
    service = Service(chip_of(kernels), limits=PATIENT)
    server = Server(service, f"unix:{folder}/s", options=options)
    channel = grpc.insecure_channel(f"unix:{folder}/s", options=(("grpc.use_local_subchannel_pool", 1), *PINGS))
    try:
        stub = stub_of(channel)
        session = stub.CreateSession(pb.CreateSessionRequest()).session_id
        room = stub.AllocTensor(pb.AllocTensorRequest(session_id=session, tensor=pb.TensorDesc(byte_size=64))).tensor
        x = pb.TensorDesc(tensor_id=room.tensor_id, shape=[4], data_type=pb.FP32)
        request = pb.OpRequest(session_id=session, op_type=pb.RELU, inputs=[x], outputs=[x], submit=True)
        fence = stub.TranslateOp(request).fence
        assert not stub.Wait(pb.WaitRequest(session_id=session, fence=fence, timeout_us=5_000_000)).passed
        return "fine"
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    finally:
        kernels.rings[0].line.advance(1)
        channel.close()
        server.stop(0)


def test_rpc_02_pings_do_not_end_a_long_call(tmp_path: Path) -> None:
    """With gRPC's own options the same call ends with "Too many pings"; with those of the service it does not."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ended: dict[str, str] = {}
    plain = tuple(option for option in OPTIONS if "ping" not in option[0] and "keepalive" not in option[0])
    threads = [
        threading.Thread(target=lambda: ended.update(plain=long_call(tmp_path / "a", plain))),
        threading.Thread(target=lambda: ended.update(ours=long_call(tmp_path / "b", OPTIONS))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended["ours"] == "fine"
    assert ended["plain"] == "UNAVAILABLE: Too many pings", "the client's pings would not have been noticed"


# -- RPC-06


def test_rpc_06_a_client_of_before_a_restart(tmp_path: Path) -> None:
    with served_at(tmp_path) as first:
        old = first.session
    time.sleep(1.0)  # a number says the second in which the service was started
    with served_at(tmp_path) as second:
        code, details, status = failure(
            lambda: second.stub.FreeTensor(pb.FreeTensorRequest(session_id=old, tensor_id=5))
        )
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert details == "session_id: the service was restarted, this session is gone"
        assert status.hint == "open a new session"


# -- streams


def test_a_stream_of_ops(served: Served) -> None:
    def messages() -> Iterator[pb.BatchOpRequest]:
        for number in range(10):
            ops = [served.relu(request_id=100 * number + n) for n in range(number + 1)]
            yield pb.BatchOpRequest(session_id=served.session, ops=ops)

    found = [[one.request_id for one in answer.responses] for answer in served.stub.TranslateStream(messages())]
    assert found == [[100 * number + n for n in range(number + 1)] for number in range(10)]


@pytest.mark.parametrize("count", [0, MOST_STREAMED + 1])
def test_a_message_of_a_stream_has_1_to_64_ops(count: int, served: Served) -> None:
    message = pb.BatchOpRequest(session_id=served.session, ops=[served.relu()] * count)
    code, details, status = failure(lambda: list(served.stub.TranslateStream(iter([message]))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert status.field == "ops"
    assert details == "ops: 1 to 64 in one message are possible"


def test_a_refused_op_does_not_end_a_stream(served: Served) -> None:
    bad = pb.OpRequest(op_type=99)  # type: ignore[arg-type]
    messages = [
        pb.BatchOpRequest(session_id=served.session, ops=ops) for ops in ([served.relu()], [bad], [served.relu()])
    ]
    found = [answer.status.code for answer in served.stub.TranslateStream(iter(messages))]
    assert found == [0, 12, 0]


def test_a_client_that_does_not_read_is_not_served_without_end(served: Served) -> None:
    """Back-pressure: answers that nobody takes fill the connection's window, and then no more messages are read."""
    ops = [served.relu() for _ in range(MOST_STREAMED)]
    message = pb.BatchOpRequest(session_id=served.session, ops=ops)
    sent = 0

    def messages() -> Iterator[pb.BatchOpRequest]:
        nonlocal sent
        while True:
            sent += 1
            yield message

    stream = served.stub.TranslateStream(messages())
    next(stream)
    seen, end = -1, time.monotonic() + 20
    while seen != sent and time.monotonic() < end:
        seen = sent
        time.sleep(0.5)
    assert seen == sent, f"still going on after {sent} messages"
    taken = 0
    while sent == seen and taken < seen:
        next(stream)
        taken += 1
    assert sent > seen, "and when they are taken, it goes on"
    stream.cancel()


def test_a_torn_piece_ends_the_stream(served: Served) -> None:
    room = served.alloc(8)
    bad = served.piece(room.tensor_id, 0, bytes(32))
    bad.crc32c ^= 1
    code, details, status = failure(lambda: served.stub.StreamTensorData(iter([bad])))
    assert code is grpc.StatusCode.DATA_LOSS
    assert status.field == "crc32c"
    assert "torn" in details
    code, _, status = failure(lambda: served.stub.StreamTensorData(iter([])))
    assert status.field == "last"


def test_telemetry(served: Served) -> None:
    samples = list(served.stub.Telemetry(pb.TelemetryRequest(period_ms=10, count=3)))
    assert len(samples) == 3
    assert [one.session_id for one in samples[0].sessions] == [served.session]
    assert samples[0].taken_ns < samples[1].taken_ns < samples[2].taken_ns
    endless = served.stub.Telemetry(pb.TelemetryRequest(period_ms=10_000))
    next(endless)
    endless.cancel()
    deadline = time.monotonic() + 5
    while ("answered", "Telemetry", 0) not in served.listener.told[-1:] and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_data_channel_that_is_not_there(served: Served) -> None:
    code, _, status = failure(lambda: served.stub.OpenDataChannel(pb.DataChannelRequest(session_id=served.session)))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert status.hint == "use StreamTensorData"


# -- what standard clients look for


def test_health(served: Served) -> None:
    stub: Any = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", NAME):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_service_and_describes_it(served: Served) -> None:
    stub: Any = reflection_pb2_grpc
    stub = stub.ServerReflectionStub(served.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked))
    assert NAME in [one.name for one in listed.list_services_response.service]
    assert described.file_descriptor_response.file_descriptor_proto == [pb.DESCRIPTOR.serialized_pb]


@pytest.mark.parametrize(
    "method", list(pb.DESCRIPTOR.services_by_name["InstructionTranslator"].methods), ids=lambda one: one.name
)
def test_every_method_of_the_protocol_is_there(method: Any, served: Served) -> None:
    """What is not there would be UNIMPLEMENTED."""
    words = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    call = getattr(served.channel, "_".join(words))(f"/{NAME}/{method.name}")

    def ask() -> object:
        answer = call(iter([b"\xff"]) if method.client_streaming else b"\xff")
        return list(answer) if method.server_streaming else answer

    code, details, _ = failure(ask)
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details


# -- the end


def test_stopping_lets_calls_end_and_closes_sessions(tmp_path: Path) -> None:
    kernels = HeldKernels()
    service = Service(chip_of(kernels), limits=PATIENT)
    server = serve(service, f"unix:{tmp_path}/s")
    with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
        stub = stub_of(channel)
        session = stub.CreateSession(pb.CreateSessionRequest()).session_id
        room = stub.AllocTensor(pb.AllocTensorRequest(session_id=session, tensor=pb.TensorDesc(byte_size=64))).tensor
        x = pb.TensorDesc(tensor_id=room.tensor_id, shape=[4], data_type=pb.FP32)
        request = pb.OpRequest(session_id=session, op_type=pb.RELU, inputs=[x], outputs=[x], submit=True)
        fence = stub.TranslateOp(request).fence
        waiting = stub.Wait.future(pb.WaitRequest(session_id=session, fence=fence, timeout_us=10_000_000))
        time.sleep(0.2)
        stopper = threading.Thread(target=server.stop, args=(5.0,))
        stopper.start()
        time.sleep(0.2)
        kernels.rings[0].line.advance(1)
        assert waiting.result(5).passed
        stopper.join(10)
        assert not stopper.is_alive()
    assert device_files(service) == 0
    server.stop()


def test_an_address_that_is_taken(tmp_path: Path, served: Served) -> None:
    from accelctl.errors import AccelError

    other = Service(chip_of())
    try:
        with pytest.raises(AccelError, match="gRPC cannot listen there"):
            serve(other, "unix:/nowhere/at/all")
    finally:
        other.close()
