"""The queue: order, fences, a full ring, a lost one; and instructions that come back from a client."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.abi import blob
from accelctl.abi.launch import Launch
from accelctl.errors import DeviceUnusable
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import DEADLINE_EXCEEDED, FAILED_PRECONDITION, INTERNAL, Refusal
from accelctl.umd.registrar import Limits
from accelctl.umd.transfer import Inbox
from tests.umdkit import Client, HeldKernels, HeldRing, Kernels, client_of, view

SOON = Limits(patience_s=0.2)


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of() as made:
        yield made


@pytest.fixture
def held() -> Iterator[tuple[Client, HeldRing]]:
    kernels = HeldKernels()
    with client_of(kernels) as made:
        yield made, kernels.rings[0]
        kernels.rings[0].line.advance(kernels.rings[0].line._submitted)


Held = tuple[Client, HeldRing]


def relu(client: Client, **more: bool) -> pb.OpRequest:
    return client.request("relu", [client.put([-1, 2], "fp32")], {}, [client.alloc((2,))], **more)


def test_translating_is_not_running(held: Held) -> None:
    client, ring = held
    answer = client.translate(relu(client))
    assert answer.instructions
    assert not ring.works
    assert answer.fence == 0


def test_fences_rise_and_instructions_keep_their_order(held: Held) -> None:
    client, ring = held
    answers = [client.translate(relu(client, submit=True)) for _ in range(3)]
    assert [one.fence for one in answers] == [1, 2, 3]
    assert ring.works == [one.instructions[0].instruction_blob for one in answers]


def test_instructions_of_one_op_stay_together() -> None:
    """Two threads, ops of three instructions each: never mixed, because they share scratch memory."""
    kernels = HeldKernels()
    kernels._templates = tuple(
        one._replace(dtypes=frozenset({"fp32"})) if one.op == "relu" else one for one in kernels._templates
    )
    with client_of(kernels) as client:
        x = client.alloc((4,), "fp16")
        request = client.request("relu", [x], {}, [client.alloc((4,), "fp16")], submit=True)
        threads = [threading.Thread(target=lambda: [client.translate(request) for _ in range(10)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ring = kernels.rings[0]
        names = [client.service.chip.by_number[blob.decode(work).kernel_id].op for work in ring.works]
        assert names == ["copy", "relu", "copy"] * 20
        ring.line.advance(60)


def test_a_full_queue_is_waited_for(held: Held) -> None:
    client, ring = held
    other = Client(client.service, queue_depth=2)
    kernels = client.service.chip.ops
    assert isinstance(kernels, HeldKernels)
    ring = kernels.rings[1]
    for _ in range(2):
        other.translate(relu(other, submit=True))
    timer = threading.Timer(0.1, ring.line.advance, [1])
    start = time.monotonic()
    timer.start()
    assert other.translate(relu(other, submit=True)).fence == 3
    assert time.monotonic() - start >= 0.09
    timer.join()
    ring.line.advance(3)


def test_a_full_queue_at_the_deadline() -> None:
    kernels = HeldKernels()
    with client_of(kernels) as client:
        small = Client(client.service, queue_depth=1)
        small.translate(relu(small, submit=True))
        tensors = small.session.tensors
        request = small.request("relu", [small.put([1], "fp32")], submit=True)
        with pytest.raises(Refusal, match="1 instructions are in flight") as caught:
            small.service.translate(request.SerializeToString(), 0.1)
        assert caught.value.code == DEADLINE_EXCEEDED
        assert small.session.tensors == tensors + 1, "what was allocated for the result is back"
        small.session.free(1 | small.session.memory._tag)
        kernels.rings[1].line.advance(1)


def test_an_op_of_more_instructions_than_the_queue_holds() -> None:
    kernels = Kernels(lambda one: one._replace(dtypes=frozenset({"fp32"})) if one.op == "relu" else one)
    with client_of(kernels) as client:
        small = Client(client.service, queue_depth=1)
        for _ in range(3):
            assert small.run("relu", [small.put([-1, 2], "fp16")])[0].tolist() == [0, 2]


def test_waiting(held: Held) -> None:
    client, ring = held
    fence = client.translate(relu(client, submit=True)).fence
    assert not client.wait(fence, 0).passed
    assert not client.wait(fence, 1000).passed
    ring.line.advance(1)
    assert client.wait(fence, 0).passed
    assert client.wait(0, 0).passed
    with pytest.raises(Refusal) as caught:
        client.wait(2)
    assert caught.value.field == "fence"


def test_a_tensor_that_the_queue_uses(held: Held) -> None:
    """Reading and writing it waits; freeing it does not, but its memory is nobody else's before the queue is done."""
    client, ring = held
    request = relu(client, submit=True)
    request.outputs[0].device_addr, start = 0, request.outputs[0].device_addr
    client.translate(request)
    number = request.outputs[0].tensor_id
    with pytest.raises(Refusal, match="still uses") as caught:
        client.service.receive(_piece(client, number), Inbox(), 0.05)
    assert caught.value.code == DEADLINE_EXCEEDED
    client.free(number)
    assert client.alloc((2,)).device_addr != start
    ring.line.advance(1)
    assert client.alloc((2,)).device_addr == start


def _piece(client: Client, number: int) -> pb.TensorChunk:
    return pb.TensorChunk(session_id=client.number, tensor_id=number, last=True)


def test_a_lost_queue(held: Held) -> None:
    client, ring = held
    client.translate(relu(client, submit=True))
    ring.line.lose("the chip fell off the bus")
    ring.fails = DeviceUnusable("the ring is lost: the chip fell off the bus")
    for call in (lambda: client.translate(relu(client, submit=True)), lambda: client.wait(1)):
        with pytest.raises(Refusal, match="fell off the bus") as caught:
            call()
        assert (caught.value.kind, caught.value.code) == ("device_lost", INTERNAL)
    assert client.translate(relu(client)).instructions, "translating needs no queue"
    client.service.destroy_session(pb.SessionRequest(session_id=client.number))
    fresh = Client(client.service)
    assert fresh.translate(relu(fresh, submit=True)).fence == 1
    client.service.destroy_session(pb.SessionRequest(session_id=fresh.number))


# -- instructions that come back


def test_instructions_may_be_kept_and_run_later(client: Client) -> None:
    x, y = client.put([-1, 2], "fp32"), client.alloc((2,))
    answer = client.translate(client.request("relu", [x], {}, [y]))
    for value in (3, 5):
        client.write(x.tensor_id, bytes(4) + _fp32(value))
        done = client.submit(answer.instructions)
        assert client.wait(done.fence).passed
        assert client.get(y).tolist() == [0, value]
    several = client.submit(list(answer.instructions) * 3)
    assert list(several.fences) == [several.fence - 2, several.fence - 1, several.fence]


def _fp32(value: float) -> bytes:
    return struct.pack("<f", value)


def test_addresses_may_be_changed_within_the_session(client: Client) -> None:
    """Not made by the service byte for byte, but possible: checked from the ground up."""
    x, y, z = client.put([-1, 2], "fp32"), client.alloc((2,)), client.put([-3, 4], "fp32")
    (one,) = client.translate(client.request("relu", [x], {}, [y])).instructions
    found = blob.decode(one.instruction_blob)
    made = blob.encode(found.kernel_id, found.launch.encode(), (z.device_addr, y.device_addr), found.body)
    client.submit([pb.HardwareInstruction(instruction_blob=made)])
    assert client.get(y).tolist() == [0, 4]


class Case:
    def __init__(self, name: str, field: str, change: Callable[[Client, blob.Instruction], bytes]) -> None:
        self.name, self.field, self.change = name, field, change


def encoded(found: blob.Instruction, **changes: Any) -> bytes:
    one = found._replace(**changes)
    return blob.encode(one.kernel_id, one.launch.encode(), one.params, one.body)


def elsewhere(client: Client) -> int:
    """An address of another session of the same client; this one has nothing there."""
    return Client(client.service).alloc((1 << 20,)).device_addr + (1 << 21)


BLOB, PARAMS = "instructions[0].instruction_blob", "instructions[0].param_addrs"
BAD = [
    Case("nothing", BLOB, lambda client, found: b""),
    Case("another kernel", BLOB, lambda client, found: encoded(found, kernel_id=0x60)),
    Case("no kernel", BLOB, lambda client, found: encoded(found, kernel_id=9999)),
    Case("another launch", BLOB, lambda client, found: encoded(found, launch=Launch((2, 1, 1), (256, 1, 1)))),
    Case("an address too many", BLOB, lambda client, found: encoded(found, params=(*found.params, 0))),
    Case("nobody's address", PARAMS, lambda client, found: encoded(found, params=(8, found.params[1]))),
    Case("odd address", PARAMS, lambda client, found: encoded(found, params=(found.params[0] + 2, found.params[1]))),
    Case("over the end", PARAMS, lambda client, found: encoded(found, params=(found.params[0], found.params[1] + 4))),
    Case(
        "another session's address",
        PARAMS,
        lambda client, found: encoded(found, params=(found.params[0], elsewhere(client))),
    ),
    Case(
        "over its operand", PARAMS, lambda client, found: encoded(found, params=(found.params[0], found.params[0] + 4))
    ),
    Case("a byte more", BLOB, lambda client, found: encoded(found) + b"\0"),
]


@pytest.mark.parametrize("case", BAD, ids=[case.name for case in BAD])
def test_what_no_pipeline_would_make(case: Case, client: Client) -> None:
    x, y = client.alloc((3,)), client.alloc((3,))
    three = client.request("relu", [view(x, (2,))], {}, [view(y, (2,))])
    (one,) = client.translate(three).instructions
    made = case.change(client, blob.decode(one.instruction_blob))
    if case.name == "over the end":
        made = encoded(blob.decode(made), params=(blob.decode(made).params[0], y.device_addr + 8))
    with pytest.raises(Refusal) as caught:
        client.submit([pb.HardwareInstruction(instruction_blob=made)])
    assert caught.value.field.startswith(case.field), str(caught.value)
    assert client.session.line.submitted == 0


@pytest.mark.parametrize("field", ["kernel_id", "launch_config", "param_addrs"])
def test_what_stands_beside_the_instruction_must_be_in_it(field: str, client: Client) -> None:
    (one,) = client.translate(relu(client)).instructions
    if field == "param_addrs":
        one.param_addrs[0] += 8
    else:
        setattr(one, field, getattr(one, field) + 1)
    with pytest.raises(Refusal) as caught:
        client.submit([one])
    assert caught.value.field == f"instructions[0].{field}"


def test_shapes_that_do_not_fit_are_refused_in_instructions_too(client: Client) -> None:
    """A [2,3] x B [3,2] whose body says that B is [4,2]: a kernel would read over the end of A."""
    a, b, y = client.alloc((2, 3)), client.alloc((8, 8)), client.alloc((2, 2))
    (one,) = client.translate(client.request("matmul", [a, view(b, (3, 2))], {}, [y])).instructions
    found = blob.decode(one.instruction_blob)
    body = bytearray(found.body)
    at = 16 + 4 + 36 + 4
    assert body[at] == 3
    body[at] = 4
    with pytest.raises(Refusal, match=r"do not fit|not in the one form") as caught:
        client.submit([pb.HardwareInstruction(instruction_blob=encoded(found, body=bytes(body)))])
    assert caught.value.field == BLOB


def test_one_bad_instruction_keeps_all_from_running(client: Client) -> None:
    (one,) = client.translate(relu(client)).instructions
    with pytest.raises(Refusal) as caught:
        client.submit([one, pb.HardwareInstruction(instruction_blob=b"rubbish")])
    assert caught.value.field == "instructions[1].instruction_blob"
    assert client.session.line.submitted == 0


def test_freed_memory_is_not_run_on(client: Client) -> None:
    request = relu(client)
    (one,) = client.translate(request).instructions
    client.free(request.outputs[0].tensor_id)
    with pytest.raises(Refusal) as caught:
        client.submit([one])
    assert caught.value.field.startswith(PARAMS)


def test_ops_may_be_submitted_directly(client: Client) -> None:
    good = [relu(client), relu(client)]
    wanted = pb.SubmitRequest(session_id=client.number, ops=good)
    done = client.service.submit(wanted, 1.0)
    assert list(done.fences) == [1, 2]
    assert done.fence == 2
    assert len(done.responses) == 2
    wanted.ops.add(op_type=99)
    done = client.service.submit(wanted, 1.0)
    assert (done.status.field, list(done.fences)) == ("ops[2].op_type", [3, 4])
    wanted.instructions.add()
    with pytest.raises(Refusal, match="one of them"):
        client.service.submit(wanted, 1.0)


def test_nothing_is_submitted_at_once(client: Client) -> None:
    done = client.service.submit(pb.SubmitRequest(session_id=client.number), 1.0)
    assert (done.fence, list(done.fences)) == (0, [])


@given(st.data())
@settings(max_examples=150)
def test_an_instruction_with_a_wrong_byte_never_reaches_a_queue_unless_it_is_possible(data: st.DataObject) -> None:
    """Every accepted one is decoded again: it is inside the session's memory and describes the op of its kernel."""
    client, original, room = _shared()
    raw = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    before = client.session.line.submitted
    refusal = submitted(client, bytes(raw))
    if refusal is not None:
        assert refusal.field.startswith("instructions[0].")
        assert client.session.line.submitted == before
        return
    found = blob.decode(bytes(raw))
    assert all(any(start <= one < end for start, end in room) for one in found.params)
    assert found.kernel_id in (0x40, 0x0F0)


def submitted(client: Client, raw: bytes) -> Refusal | None:
    try:
        client.submit([pb.HardwareInstruction(instruction_blob=raw)])
    except Refusal as refusal:
        return refusal
    return None


_SHARED: list[tuple[Client, bytes, list[tuple[int, int]]]] = []


def _shared() -> tuple[Client, bytes, list[tuple[int, int]]]:
    assert _SHARED
    return _SHARED[0]


@pytest.fixture(autouse=True, scope="module")
def shared() -> Iterator[None]:
    with client_of() as client:
        x, y = client.alloc((64,)), client.alloc((64,))
        (one,) = client.translate(client.request("relu", [view(x, (8,))], {}, [view(y, (8,))])).instructions
        room = [(t.device_addr, t.device_addr + 256) for t in (x, y)]
        _SHARED.append((client, one.instruction_blob, room))
        yield
        _SHARED.clear()


def test_a_session_that_was_closed_meanwhile(held: Held) -> None:
    client, _ = held
    session = client.session
    client.service.destroy_session(pb.SessionRequest(session_id=client.number))
    with pytest.raises(Refusal, match="destroyed") as caught:
        session.touch()
    assert caught.value.code == FAILED_PRECONDITION
