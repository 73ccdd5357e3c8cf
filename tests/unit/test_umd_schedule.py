"""Pinned lists of the service: what they give, when two are one, and how a client uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import FP32
from accelctl.backends.sim.memory import MEMORY
from accelctl.backends.sim.schedule import SCHEDULE
from accelctl.umd.chip import Chip
from accelctl.umd.client import Client as GrpcClient
from accelctl.umd.client import ServiceError, SessionGone, desc
from accelctl.umd.metrics import Metrics, text
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests.listkit import Counting, Lists, listing, right, three
from tests.simkit import TARGET
from tests.umdkit import QUICK, Kernels


@pytest.fixture(params=["recorded", "one by one"])
def client(request: pytest.FixtureRequest) -> Iterator[Lists]:
    with listing(SCHEDULE if request.param == "recorded" else None) as made:
        yield made


# -- what they give


def test_a_list_gives_what_its_ops_give(client: Lists) -> None:
    data = np.array([-2, -1, 0, 1, 2, 3], np.float32)
    x = client.put(data)
    ops, out = three(client, x)
    pinned = client.pin(ops)
    assert (pinned.instructions, len(pinned.responses), pinned.cache_hit) == (3, 3, False)
    assert [len(one.instructions) for one in pinned.responses] == [0, 0, 0]
    assert client.session.line.submitted == 0, "pinning runs nothing"
    for _ in range(3):
        client.write(x.tensor_id, data.tobytes())
        fence = client.replay(pinned.list_id).fence
        assert client.wait(fence).passed
        assert np.array_equal(client.get(out), right(data))
        data = -2 * data
    assert client.session.counts.launches == {"relu": 3, "add": 6}


def test_a_recorded_list_is_one_submission() -> None:
    counts = Counting()
    with listing(counts) as client:
        ops, out = three(client, client.put(np.ones(4, np.float32)))
        pinned = client.pin(ops)
        assert pinned.recorded
        assert [client.replay(pinned.list_id).fence for _ in range(4)] == [1, 2, 3, 4]
        assert (counts.made, counts.replays) == (1, 4)
        assert client.wait(4).passed
        assert np.array_equal(client.get(out), right(np.ones(4, np.float32)))
    assert counts.closed == 1


def test_without_the_contract_the_service_hands_over_each() -> None:
    with listing() as client:
        ops, _ = three(client, client.put(np.ones(4, np.float32)))
        pinned = client.pin(ops)
        assert not pinned.recorded
        assert [client.replay(pinned.list_id).fence for _ in range(4)] == [3, 6, 9, 12]


def test_a_chip_without_room_for_a_list_gets_its_instructions_one_by_one() -> None:
    counts = Counting()
    with listing(counts) as client:
        counts.full = True
        ops, out = three(client, client.put(np.ones(4, np.float32)))
        pinned = client.pin(ops)
        assert not pinned.recorded
        assert client.wait(client.replay(pinned.list_id).fence).passed
        assert np.array_equal(client.get(out), right(np.ones(4, np.float32)))


def test_results_without_a_place_get_one_that_stays(client: Lists) -> None:
    x = client.put(np.array([-1, 2], np.float32))
    pinned = client.pin([client.request("relu", [x]), client.request("add", [x, x])])
    places = [one.outputs[0] for one in pinned.responses]
    assert len({one.tensor_id for one in places}) == 2
    assert client.wait(client.replay(pinned.list_id).fence).passed
    assert [client.get(one).tolist() for one in places] == [[0, 2], [-2, 4]]


def test_a_list_longer_than_the_queue(client: Lists) -> None:
    x = client.put(np.array([-1, 2], np.float32))
    y = client.alloc([2])
    number = client.pin([client.request("relu", [x], outputs=[y])] * 200).list_id
    assert client.wait(client.replay(number).fence).passed
    assert client.get(y).tolist() == [0, 2]


def test_ops_with_copies_around_them_and_scratch_memory(client: Lists) -> None:
    """Scratch memory grows while the list is there: the list keeps its own."""
    data = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    x = client.put(data)
    half = client.alloc((3, 4), "fp16")
    number = client.pin(
        [client.request("add", [x, x], outputs=[x]), client.request("copy", [x], outputs=[half])]
    ).list_id
    big = client.put(np.zeros((700, 700), np.float32))
    client.respond("softmax", [big], outputs=[big])
    assert client.wait(client.replay(number).fence).passed
    assert np.array_equal(client.get(half), (2 * data).astype(np.float16))


def test_only_empty_results(client: Lists) -> None:
    x = client.alloc((0, 4))
    pinned = client.pin([client.request("relu", [x])])
    assert (pinned.instructions, pinned.recorded) == (0, False)
    assert client.replay(pinned.list_id).fence == 0


def test_optional_results_keep_their_places_when_translated_again(client: Lists) -> None:
    """The second result of this op is made although nobody described it."""
    x, residual = (client.put(np.ones((2, 8), np.float32) * n) for n in (1, 3))
    scale = client.put(np.ones(8, np.float32))
    inputs = {"X": x, "scale": scale, "residual": residual}
    named = [inputs.get(one.name) for one in OPS["rmsnorm"].inputs]
    op = client.request("rmsnorm", named, {"variant": "fused_add", "epsilon": "1e-6"})
    pinned = client.pin([op])
    assert len(pinned.responses[0].outputs) == 2
    client.session.chip.changed("a test")
    tensors = client.session.tensors
    again = client.replay(pinned.list_id, retranslate=True)
    assert again.retranslated == "kernels: a test"
    assert client.session.tensors == tensors, "nothing new was allocated"
    assert client.wait(again.fence).passed
    assert np.array_equal(client.get(pinned.responses[0].outputs[1]), np.full((2, 8), 4, np.float32))


# -- the cache


def test_the_same_ops_are_the_same_list(client: Lists) -> None:
    ops, _ = three(client, client.put(np.ones(4, np.float32)))
    first = client.pin(ops)
    for one in ops:
        one.request_id, one.session_id = 77, 0
    second = client.pin(ops)
    assert (second.list_id, second.cache_hit) == (first.list_id, True)
    assert list(second.responses) == list(first.responses)
    assert (client.level.lists, client.level.pinned, client.level.hits) == (1, 2, 1)


def test_other_shapes_are_another_list(client: Lists) -> None:
    numbers = set()
    for size in (4, 5, 6):
        ops, _ = three(client, client.put(np.ones(size, np.float32)))
        numbers.add(client.pin(ops).list_id)
    assert len(numbers) == 3
    assert client.level.lists == 3


CHANGES: list[tuple[str, str, Callable[[Lists, pb.OpRequest], None]]] = [
    ("shape", "ops[1].inputs[0].shape: [8] became [4]", lambda c, op: _shapes(op, [4])),
    ("strides", "ops[1].inputs[0].strides: [] became [2]", lambda c, op: _shapes(op, [4], [2])),
    ("dtype", "ops[1].inputs[0].data_type: fp32 became int32", lambda c, op: _types(op)),
    ("attrs", "ops[1].attrs: alpha - became 2", lambda c, op: op.attrs.update({"alpha": "2"})),
    ("ops", "ops[1]: add became relu", lambda c, op: _relu(op)),
    ("place", "ops[1].outputs[0]: another place", lambda c, op: op.outputs[0].CopyFrom(c.alloc([8]))),
]


def _shapes(op: pb.OpRequest, shape: list[int], strides: Sequence[int] = ()) -> None:
    """Of a part of the same memory."""
    for one in (*op.inputs, *op.outputs):
        del one.shape[:]
        one.shape.extend(shape)
        one.byte_size = 0
        if strides and one in op.inputs:
            one.strides.extend(strides)
    if strides:
        for one in op.inputs:
            del one.strides[:]
            one.strides.extend(strides)


def _types(op: pb.OpRequest) -> None:
    for one in (*op.inputs, *op.outputs):
        one.data_type = pb.INT32


def _relu(op: pb.OpRequest) -> None:
    op.op_type = pb.RELU
    del op.inputs[1:]


@pytest.mark.parametrize(("reason", "said", "change"), CHANGES, ids=[one[0] for one in CHANGES])
def test_other_ops_under_a_name_end_the_list_before(
    client: Lists, reason: str, said: str, change: Callable[[Lists, pb.OpRequest], None]
) -> None:
    x, y, z = client.put(np.ones(8, np.float32)), client.alloc([8]), client.alloc([8])
    ops = [client.request("relu", [x], outputs=[y]), client.request("add", [y, y], outputs=[z])]
    if reason == "strides":
        _shapes(ops[1], [4])
    first = client.pin(ops, "step")
    change(client, ops[1])
    second = client.pin(ops, "step")
    assert second.list_id != first.list_id
    if reason == "strides":
        said = "ops[1].inputs[0].strides: [] became [2]"
    assert client.ended(first.list_id) == (reason, said)
    assert client.wait(client.replay(second.list_id).fence).passed
    assert dict(client.level.ended) == {reason: 1}
    with pytest.raises(Refusal, match="its ops cannot be translated again"):
        client.replay(first.list_id, retranslate=True)


def test_a_list_that_cannot_be_made_leaves_the_one_before(client: Lists) -> None:
    x = client.put(np.ones(8, np.float32))
    good = client.pin([client.request("relu", [x])], "step")
    tensors = client.session.tensors
    with pytest.raises(Refusal) as caught:
        client.pin([client.request("relu", [x]), client.request("add", [x, client.alloc([3])])], "step")
    assert caught.value.field == "ops[1].inputs[1].shape" or caught.value.field.startswith("ops[1].")
    assert client.session.tensors == tensors + 1, "the first op's result went back"
    assert client.replay(good.list_id).fence
    assert client.session.counts.errors["add"] == 1


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3))
def test_mutated_requests_are_refused_or_right(changes: list[tuple[int, int]]) -> None:
    """Any bytes for any request: a Refusal that is no failure of the service, and nothing is left of it."""
    with listing(SCHEDULE) as client:
        x = client.put(np.ones(4, np.float32))
        ops = [client.request("relu", [x], outputs=[x]), client.request("add", [x, x], {"alpha": "2"})]
        raw = bytearray(pb.PinRequest(session_id=client.number, name="a", ops=ops).SerializeToString())
        for at, byte in changes:
            raw[at % len(raw)] = byte
        try:
            number = client.service.pin(pb.PinRequest.FromString(bytes(raw))).list_id
        except DecodeError:
            return
        except Refusal as refusal:
            number = 0
            refused(refusal)
        if number:
            client.replay(number)
            client.unpin(number)
        assert client.session.lists.level().lists == 0
        good = client.pin(ops[:1]).list_id
        assert client.wait(client.replay(good).fence).passed


def refused(refusal: Refusal) -> None:
    assert refusal.kind != "internal", refusal


# -- through gRPC


@pytest.fixture
def grpc_client(tmp_path: Path) -> Iterator[GrpcClient]:
    chip = Chip(MEMORY, Kernels(), TARGET, {}, schedule=SCHEDULE)
    server = serve(Service(chip, limits=QUICK), f"unix:{tmp_path}/s")
    try:
        with GrpcClient(f"unix:{tmp_path}/s", deadline_s=5.0) as made:
            yield made
    finally:
        server.stop(0.5)


def test_a_recording(grpc_client: GrpcClient) -> None:
    with grpc_client.session() as session:
        x = session.alloc((4,), "fp32")
        with session.record("twice") as recording:
            (y,) = recording.op("relu", [x])
            (z,) = recording.op("add", [y, y])
        pinned = recording.pinned
        assert (pinned.instructions, pinned.recorded, pinned.name) == (2, True, "twice")
        session.write(x, np.array([-1, 1, 2, -3], np.float32).tobytes())
        assert session.wait(pinned.replay())
        assert np.frombuffer(session.read(z), np.float32).tolist() == [0, 2, 4, 0]
        session.free(y)
        with pytest.raises(ServiceError, match=r"memory: tensor .* was freed") as caught:
            pinned.replay()
        assert (caught.value.kind, caught.value.code, caught.value.field) == (
            "invalid_state",
            "FAILED_PRECONDITION",
            "list_id",
        )
        assert not isinstance(caught.value, SessionGone)
        pinned.close()
        pinned.close()
        assert {"pinned_lists", "schedule"} <= grpc_client.features()


@pytest.mark.parametrize("described", [[False, False], [True, False], [True], []])
def test_a_recording_gives_the_tensors_that_its_list_writes(grpc_client: GrpcClient, described: list[bool]) -> None:
    """The second result of this op is optional, and left out."""
    with grpc_client.session() as session:
        x, scale = session.alloc((2, 8), "fp32"), session.alloc((8,), "fp32")
        session.write(x, np.full((2, 8), 3, np.float32).tobytes())
        session.write(scale, np.ones(8, np.float32).tobytes())
        with session.record() as recording:
            outputs = [desc((2, 8), FP32) if one else None for one in described]
            (y,) = recording.op("rmsnorm", [x, scale], outputs, {"epsilon": 1e-5})
        assert recording.pinned.outputs[0][0].tensor_id == y.tensor_id
        assert session.wait(recording.pinned.replay())
        assert np.allclose(np.frombuffer(session.read(y), np.float32), 1)
        (level,) = grpc_client.telemetry().sessions
        assert level.tensors == 3


def test_a_recording_that_fails_leaves_nothing(grpc_client: GrpcClient) -> None:
    with grpc_client.session() as session:
        x = session.alloc((4,), "fp32")
        wrong = session.alloc((3,), "fp32")
        with suppress(ServiceError), session.record() as recording:
            recording.op("relu", [x])
            recording.op("add", [x, wrong])
            pytest.fail("operands that do not fit were taken")
        (level,) = grpc_client.telemetry().sessions
        assert level.tensors == 2, "x, and the operand that did not fit"
        assert level.lists.lists == 0


def test_replays_after_a_restart_say_that_the_session_is_gone(tmp_path: Path) -> None:
    with GrpcClient(f"unix:{tmp_path}/s", deadline_s=5.0) as client:
        pinned = None
        for _ in range(2):
            server = serve(Service(Chip(MEMORY, Kernels(), TARGET, {}), limits=QUICK), f"unix:{tmp_path}/s")
            try:
                if pinned is None:
                    session = client.session()
                    pinned = session.pin([session.request("relu", [session.alloc((2,), "fp32")])])
                else:
                    with pytest.raises(ServiceError) as caught:
                        pinned.replay()
                    assert isinstance(caught.value, SessionGone)
            finally:
                server.stop(0.1)
            (tmp_path / "s").unlink(missing_ok=True)


def test_metrics_tell_of_lists() -> None:
    with listing(SCHEDULE) as client:
        x = client.put(np.ones(2, np.float32))
        number = client.pin([client.request("relu", [x])]).list_id
        client.replay(number)
        client.free(x.tensor_id)
        page = text(Metrics(), client.service.telemetry).decode()
    assert 'umd_lists_total{event="pinned"} 1.0' in page
    assert 'umd_lists_total{event="replayed"} 1.0' in page
    assert 'umd_lists_ended_total{reason="memory"} 1.0' in page
    assert "umd_session_lists{" in page
