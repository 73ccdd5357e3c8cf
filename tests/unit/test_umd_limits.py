"""What one client can cost the others: sizes of batches and answers, what caches keep, calls that last, tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import grpc
import numpy as np

from accelctl.errors import AccelError
from accelctl.umd import ops, wire
from accelctl.umd.channel import door as doors
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.client import Client as GrpcClient
from accelctl.umd.client import ServiceError
from accelctl.umd.ids import Ids
from accelctl.umd.observer import Silent
from accelctl.umd.pipeline import validate
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import CANCELLED, INTERNAL, Refusal
from accelctl.umd.server import LONG, WATCHERS, WORKERS, Seats, parsed, serve
from accelctl.umd.service import USUAL, Service
from tests.umdkit import Client, HeldKernels, chip_of, client_of, service_of


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


# -- batches


def head(client: Client) -> bytes:
    return pb.BatchOpRequest(session_id=client.number).SerializeToString()


def test_a_batch_has_a_most(client: Client) -> None:
    with pytest.raises(Refusal, match="1 to 65536 in one message are possible") as caught:
        client.service.batch(head(client) + b"\x12\x00" * (USUAL.batch + 1), 1.0)
    assert caught.value.field == "ops"


def test_what_was_not_tried_is_said_in_few_bytes(client: Client) -> None:
    """The longest answer there can be to the shortest ops."""
    raw = client.service.batch(head(client) + b"\x12\x00" * 1000, 1.0)
    answer = pb.BatchOpResponse.FromString(raw)
    assert len(answer.responses) == 1000
    assert {one.status.code for one in answer.responses[1:]} == {CANCELLED}
    for limits in (USUAL, USUAL._replace(message_bytes=8 << 20), USUAL._replace(batch=7)):
        desk = ops.Desk(SimpleNamespace(limits=limits), Silent())  # type: ignore[arg-type]
        assert desk.most_batched <= limits.batch
        assert len(raw) / 1000 * desk.most_batched + desk.most_answered < limits.message_bytes


@pytest.mark.parametrize(
    ("kind", "field", "element"),
    [
        (pb.SubmitRequest, 2, b"\x12\x00"),
        (pb.SubmitRequest, 3, b"\x1a\x00"),
        (pb.PinRequest, 3, b"\x1a\x00"),
        (pb.AllocTensorRequest, 2, b"\x12\x02\x12\x00"),
        (pb.SessionRequest, 1, b"\x08\x01"),
    ],
)
def test_many_empty_elements_are_not_made_into_objects(kind: Any, field: int, element: bytes) -> None:
    """Two bytes on the wire are some 75 as an object: a message of 64 MiB would take gigabytes."""
    most = ops.LONGEST_LIST if kind in (pb.SubmitRequest, pb.PinRequest) else 64 << 10
    assert kind.DESCRIPTOR.fields_by_number[field]
    assert parsed(kind, element * (most // len(element) // 64))
    with pytest.raises(Refusal, match=f"a {kind.__name__} has at most {most}") as caught:
        parsed(kind, element * (most // len(element) + 1))
    assert caught.value.kind == "out_of_resources"


def test_a_batch_in_an_unusual_order_is_short() -> None:
    """It is read as a whole, while one that begins with its session is read op by op."""
    desk = ops.Desk(SimpleNamespace(limits=USUAL), Silent())  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="does not begin with session_id"):
        desk.batch(wire.chunk(2, bytes(ops.LONGEST_LIST)) + b"\x08\x01", 1.0)


def test_a_request_that_is_not_tried_keeps_its_number(client: Client) -> None:
    answer = client.batch([pb.OpRequest(), pb.OpRequest(request_id=1 << 40), pb.OpRequest()])
    assert [one.request_id for one in answer.responses] == [0, 1 << 40, 0]


def test_a_batch_stops_before_its_answer_is_too_large(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = client.put([1], "fp32")
    request = client.request("relu", [x], {}, [x], submit=True)
    desk = client.service.batch.__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(desk, "most_answered", 3 * client.translate(request).ByteSize())
    answer = client.batch([request] * 10)
    done = [one for one in answer.responses if not one.status.code]
    assert 3 <= len(done) <= 5
    assert (answer.status.kind, answer.status.field) == ("out_of_resources", f"ops[{len(done)}]")
    assert client.session.counts.launches["relu"] == len(done) + 1, "what has no answer was not run"


def test_a_failure_of_the_service_in_a_batch_is_that_ops(caplog: pytest.LogCaptureFixture) -> None:
    kernels = HeldKernels()
    with client_of(kernels) as client:
        ring = kernels.rings[0]
        x = client.put([1], "fp32")
        good = client.request("relu", [x], {}, [], submit=True)
        real, tensors = ring.submit, client.session.tensors

        def fails(work: bytes) -> int:
            if len(ring.works) == 1:
                raise OverflowError("too large to pack")
            return real(work)

        ring.submit = fails  # type: ignore[method-assign]
        answer = client.batch([good, good, good])
        assert [one.status.code for one in answer.responses] == [0, INTERNAL, CANCELLED]
        assert answer.status.field == "ops[1]"
        assert "OverflowError" in answer.status.message
        assert answer.responses[0].fence == 1
        assert client.session.tensors == tensors + 1, "the result of the first one, which its client knows"
        assert "an op of a batch failed" in caplog.text
        ring.line.advance(1)


def test_an_op_of_a_batch_that_names_its_session_last(client: Client) -> None:
    x = client.put([1], "fp32")
    request = client.request("relu", [x], {}, [x])
    request.session_id = 0
    own = request.SerializeToString() + wire.number(1, client.number)
    other = request.SerializeToString() + wire.number(1, client.number + 1)
    for last, code in ((own, 0), (other, 3)):
        raw = head(client) + wire.chunk(2, last)
        answer = pb.BatchOpResponse.FromString(client.service.batch(raw, 1.0))
        assert [one.status.code for one in answer.responses] == [code]
        assert answer.status.field == ("ops[0].session_id" if code else "")


def test_two_sessions_in_one_request(client: Client) -> None:
    x = client.put([1], "fp32")
    raw = client.request("relu", [x], {}, [x]).SerializeToString() + wire.number(1, client.number + 1)
    with pytest.raises(Refusal) as caught:
        client.service.translate(raw, 1.0)
    assert caught.value.field == "session_id"


# -- what is kept


def test_unknown_fields_are_not_kept(client: Client) -> None:
    x, y = client.alloc((4,)), client.alloc((4,))
    unknown = wire.chunk(15, bytes(8192))
    around = client.request("relu", [x], {}, [y]).SerializeToString() + unknown
    inside = client.request("relu", [pb.TensorDesc.FromString(x.SerializeToString() + unknown)], {}, [y])
    validate._tensor.cache_clear()
    for raw in (around, inside.SerializeToString()):
        client.service.translate(raw, 1.0)
    assert len(client.session.plans) == 1
    assert all(len(key) < 100 for key in client.session.plans if isinstance(key, bytes))
    assert validate._tensor.cache_info().currsize == 1


def test_an_op_has_a_most(client: Client) -> None:
    x = client.alloc((4,))
    raw = client.request("relu", [x], {}, [x]).SerializeToString() + wire.chunk(15, bytes(1 << 20))
    with pytest.raises(Refusal, match="one op has at most 1048576"):
        client.service.translate(raw, 1.0)
    answer = pb.BatchOpResponse.FromString(client.service.batch(head(client) + wire.chunk(2, raw), 1.0))
    assert answer.status.field == "ops[0]"


def test_an_attribute_has_a_most(client: Client) -> None:
    x = client.alloc((4,))
    assert client.translate(client.request("rmsnorm", [x], {"epsilon": "1e-5" + " " * 200}, [x])).instructions
    with pytest.raises(Refusal, match="at most 256") as caught:
        client.translate(client.request("rmsnorm", [x], {"epsilon": "1e-5" + " " * 300}, [x]))
    assert caught.value.field == "attrs['epsilon']"


@pytest.mark.parametrize("warm", [False, True])
def test_an_optional_output_that_only_has_a_place_is_wanted(warm: bool) -> None:
    """Also where somebody asked before without it; and one without a place is not, whoever asked before with it."""
    with service_of() as service:
        if warm:
            other = Client(service)
            operands = [other.put(np.ones((1, 2, 4), np.float32)) for _ in range(3)]
            nothing = [pb.TensorDesc(), pb.TensorDesc()]
            assert len(other.respond("attention_prefill", operands, {}, nothing).outputs) == 1
        client = Client(service)
        operands = [client.put(np.ones((1, 2, 4), np.float32)) for _ in range(3)]
        lse = client.put(np.full((1, 2), -77, np.float32))
        wanted = [pb.TensorDesc(), pb.TensorDesc(tensor_id=lse.tensor_id)]
        found = client.respond("attention_prefill", operands, {}, wanted)
        assert client.wait(found.fence).passed
        assert len(found.outputs) == 2
        assert np.allclose(client.get(lse), 2 + np.log(2), atol=1e-6)
        assert len(client.respond("attention_prefill", operands, {}, [pb.TensorDesc()] * 2).outputs) == 1


# -- what is said


def test_what_is_said_fits_into_grpcs_metadata(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    server = serve(Service(chip_of()), address)
    try:
        with GrpcClient(address, deadline_s=20) as client, client.session() as session:
            x = session.alloc((4,), "fp32")
            for name in ("a]: " + "y" * 20_000, "a]: " + "\u20ac" * 20_000, "\u20ac" * 20_000):
                with pytest.raises(ServiceError, match="attrs") as caught:
                    session.translate(session.request("relu", [x], [x], {name: "1"}))
                assert (caught.value.kind, caught.value.code) == ("invalid_argument", "INVALID_ARGUMENT")
    finally:
        server.stop(1.0)


@pytest.mark.parametrize("field", ["", "x", "x" * 10_000])
def test_a_status_is_short(field: str) -> None:
    status = Refusal(field, "\u20ac" * 5000).status("ops[3].")
    assert len(status.message.encode()) <= 1500
    assert len(status.field.encode()) <= 200
    assert status.message.endswith("...")
    assert Refusal(field[:1], "short").status().message.endswith("short")


@pytest.mark.parametrize("later", [1000.9, 900.0])
def test_a_restart_in_the_same_second_or_with_the_clock_set_back(later: float) -> None:
    number = Ids(lambda: 1000.2).new()
    assert Ids(lambda: later).gone(number).message.endswith("or the service was restarted since")
    assert "restarted" not in Ids(lambda: later).gone(5).message


# -- who takes part


def seated(stub: Any) -> bool:
    """Whether a stream begins. The service hears of the end of another when that says something again."""
    try:
        next(stub.Telemetry(pb.TelemetryRequest(period_ms=10)))
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
    return True


def test_telemetry_shuts_out_nobody(tmp_path: Path) -> None:
    """One more stream than may be is refused; everything else goes on, and a seat is free again when a stream ends."""
    address = f"unix:{tmp_path}/s"
    server = serve(Service(chip_of()), address)
    try:
        with GrpcClient(address, deadline_s=30) as client, client.session() as session:
            stub: Any = client.stub
            streams = [stub.Telemetry(pb.TelemetryRequest(period_ms=10)) for _ in range(WATCHERS)]
            for one in streams:
                next(one)
            with pytest.raises(grpc.RpcError) as caught:
                next(stub.Telemetry(pb.TelemetryRequest(period_ms=10)))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(client.telemetry().sessions) == 1
            assert session.alloc((4,), "fp32").tensor_id
            for one in streams:
                one.cancel()
            assert any(seated(stub) for _ in range(10_000)), "no seat came back"
    finally:
        server.stop(1.0)


def test_there_are_workers_for_calls_that_end_by_themselves() -> None:
    assert WATCHERS + LONG < WORKERS


def test_seats() -> None:
    seats = Seats(1, "waits")
    with seats, pytest.raises(Refusal, match="1 waits are running") as caught, seats:
        pass
    assert caught.value.kind == "out_of_resources"
    with seats:
        pass


def test_tokens_of_one_session_shut_out_nobody(tmp_path: Path) -> None:
    door = Door(str(tmp_path / "data"))
    try:

        def place(number: int) -> tuple[memoryview, int]:
            raise LookupError

        for _ in range(doors.MAX_OF_ONE):
            door.offer(Guest(1, place))
        with pytest.raises(AccelError, match="of this session") as caught:
            door.offer(Guest(1, place))
        assert caught.value.kind == "out_of_resources"
        assert door.offer(Guest(2, place))
        door.end(1)
        assert door.offer(Guest(1, place))
    finally:
        door.close()
