"""Sessions: numbers that are never given twice, isolation, expiry, and that everything comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.umd.ids import REMEMBERED, Ids
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import FAILED_PRECONDITION, NOT_FOUND, RESOURCE_EXHAUSTED, Refusal
from accelctl.umd.registrar import Limits
from accelctl.umd.service import Service
from tests.umdkit import QUICK, Client, client_of, device_files, service_of


@pytest.fixture
def service() -> Iterator[Service]:
    with service_of() as made:
        yield made


def destroy(client: Client) -> pb.DestroySessionResponse:
    return client.service.destroy_session(pb.SessionRequest(session_id=client.number))


def refusal_of(client: Client) -> Refusal:
    with pytest.raises(Refusal) as caught:
        client.service.keep_alive(pb.SessionRequest(session_id=client.number))
    assert caught.value.field == "session_id"
    return caught.value


# -- numbers


def test_numbers_hold_start_sequence_and_chance() -> None:
    ids = Ids(lambda: 1_700_000_000.9)
    found = [ids.new() for _ in range(1000)]
    assert {one >> 32 for one in found} == {1_700_000_000} == {ids.start}
    assert [one >> 16 & 0xFFFF for one in found] == list(range(1000))
    assert len({one & 0xFFFF for one in found}) > 900


def test_no_number_comes_twice_in_one_run() -> None:
    ids = Ids(lambda: 1000.0)
    found = [ids.new() for _ in range(200_000)]
    assert len(set(found)) == len(found)
    assert {one >> 32 for one in found} == {1000, 1001, 1002, 1003}
    assert "gone" in ids.gone(found[0]).message
    assert "no session" in ids.gone(found[-1] + (1 << 16)).message
    assert "no session" in ids.gone(found[-1] ^ 1).message, "a guess"


def test_a_number_of_an_earlier_run_is_known_as_such() -> None:
    earlier, later = Ids(lambda: 1000.0), Ids(lambda: 2000.0)
    refusal = later.gone(earlier.new())
    assert refusal.message == "the service was restarted, this session is gone"
    assert refusal.code == FAILED_PRECONDITION
    assert earlier.gone(later.new()).code == NOT_FOUND
    assert later.gone(0).code == NOT_FOUND


def test_what_is_remembered_of_ended_sessions_is_bounded() -> None:
    ids = Ids()
    numbers = [ids.new() for _ in range(REMEMBERED + 10)]
    for number in numbers:
        ids.end(number, "destroyed")
    assert ids.gone(numbers[-1]).message == "destroyed"
    assert ids.gone(numbers[0]).message == "this session is gone"


# -- isolation


def test_rpc_06_numbers_of_before_a_restart() -> None:
    """Client 1's session and buffer are of a service that was restarted: client 2's buffer is not touched."""
    with service_of() as first:
        client1 = Client(first)
        handle = client1.put([1], "fp32").tensor_id
    with service_of() as second:
        second.registrar.ids._start += 1  # a later second, as a restart is
        second.registrar.ids._starts = {second.registrar.ids._start}
        client2 = Client(second)
        buffer = client2.put([7.0], "fp32")
        client1.service = second
        with pytest.raises(Refusal, match="the service was restarted, this session is gone") as caught:
            client1.free(handle)
        assert caught.value.code == FAILED_PRECONDITION
        assert client2.get(buffer).tolist() == [7.0]
        again = Client(second)
        assert again.run("relu", [again.put([-1, 1], "fp32")])[0].tolist() == [0, 1]


def test_a_tensor_of_another_session(service: Service) -> None:
    one, other = Client(service), Client(service)
    mine, theirs = one.put([1.0], "fp32"), other.put([2.0], "fp32")
    assert mine.tensor_id != theirs.tensor_id
    for call in (
        lambda: one.free(theirs.tensor_id),
        lambda: one.read(theirs.tensor_id),
        lambda: one.write(theirs.tensor_id, b"1234"),
        lambda: one.translate(one.request("relu", [theirs])),
    ):
        with pytest.raises(Refusal, match="not a tensor of this session") as caught:
            call()
        assert caught.value.code == NOT_FOUND
    assert other.get(theirs).tolist() == [2.0]


def test_the_same_address_is_other_memory_in_another_session(service: Service) -> None:
    one, other = Client(service), Client(service)
    mine, theirs = one.put([1.0], "fp32"), other.put([2.0], "fp32")
    assert mine.device_addr == theirs.device_addr, "each has an address space of its own"
    assert one.run("relu", [mine])[0].tolist() == [1.0]
    assert other.run("relu", [theirs])[0].tolist() == [2.0]


def test_a_freed_number_is_never_given_again(service: Service) -> None:
    client = Client(service)
    first = client.alloc((4,))
    client.free(first.tensor_id)
    second = client.alloc((4,))
    assert second.device_addr == first.device_addr
    assert second.tensor_id != first.tensor_id
    with pytest.raises(Refusal, match="this tensor was freed"):
        client.free(first.tensor_id)
    with pytest.raises(Refusal, match="never had such a tensor"):
        client.free(second.tensor_id + 1)


# -- the end


def test_everything_comes_back(service: Service) -> None:
    client = Client(service)
    for size in (1, 100, 5000, 1 << 20):
        client.alloc((size,), "int8")
    client.run("relu", [client.put([1.0], "fp32")])
    assert device_files(service) == 1
    answer = destroy(client)
    assert (answer.freed_bytes, answer.freed_tensors) == (1 + 100 + 5000 + (1 << 20) + 4 + 4, 6)
    assert device_files(service) == 0
    assert service.registrar.budget.held == 0
    assert refusal_of(client).message == "this session was destroyed"


def test_counts_of_a_session_outlive_it(service: Service) -> None:
    client = Client(service)
    client.run("relu", [client.put([1.0], "fp32")])
    before = service.telemetry()
    destroy(client)
    after = service.telemetry()
    assert not after.sessions
    assert [(one.op, one.launches, one.allocations) for one in after.ops] == [
        (one.op, one.launches, one.allocations) for one in before.ops
    ]
    assert {one.op: one.frees for one in after.ops} == {"client": 1, "relu": 1}
    assert [(one.bytes, one.allocations, one.frees) for one in after.size_classes] == [(4096, 2, 2)]


def test_a_silent_session_expires() -> None:
    with service_of() as service:
        quiet, loud = Client(service, keepalive_ms=300), Client(service, keepalive_ms=300)
        quiet.alloc((1 << 20,))
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            service.keep_alive(pb.SessionRequest(session_id=loud.number))
            time.sleep(0.05)
        refusal = refusal_of(quiet)
        assert refusal.message == "session expired: nothing was heard of it for 0.3 s"
        assert refusal.code == FAILED_PRECONDITION
        assert device_files(service) == 1
        assert service.telemetry().sessions_expired == 1
        assert loud.run("relu", [loud.put([-1.0], "fp32")])[0].tolist() == [0]


def test_every_call_counts_as_being_heard() -> None:
    with client_of() as client:
        client.session.keepalive_s = 0.4
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            client.translate(client.request("relu", [client.alloc((1,))]))
            time.sleep(0.05)
        assert client.service.keep_alive(pb.SessionRequest(session_id=client.number)).remaining_ms > 300


@pytest.mark.parametrize(
    ("keepalive", "depth", "field"), [(1, 0, "keepalive_ms"), (10**9, 0, "keepalive_ms"), (0, 5000, "queue_depth")]
)
def test_wishes_that_are_not_granted(keepalive: int, depth: int, field: str, service: Service) -> None:
    with pytest.raises(Refusal) as caught:
        Client(service, keepalive_ms=keepalive, queue_depth=depth)
    assert caught.value.field == field
    assert device_files(service) == 0


def test_more_sessions_than_there_may_be() -> None:
    with service_of(limits=Limits(sessions=2)) as service:
        clients = [Client(service) for _ in range(2)]
        with pytest.raises(Refusal, match="2 sessions are open") as caught:
            Client(service)
        assert caught.value.code == RESOURCE_EXHAUSTED
        destroy(clients[0])
        Client(service)


def test_many_threads_open_use_and_close() -> None:
    problems: list[BaseException] = []

    def work(service: Service) -> None:
        try:
            for _ in range(5):
                client = Client(service)
                assert client.run("relu", [client.put([-1, 1], "fp32")])[0].tolist() == [0, 1]
                destroy(client)
        except BaseException as error:
            problems.append(error)

    with service_of() as service:
        threads = [threading.Thread(target=work, args=(service,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert service.telemetry().sessions_created == 40
        assert not service.telemetry().sessions


def test_one_session_from_many_threads() -> None:
    with client_of() as client:
        wrong: list[object] = []

        def work(seed: int) -> None:
            for turn in range(20):
                x = client.put([seed, -turn], "fp32")
                y = client.run("relu", [x])[0].tolist()
                if y != [seed, 0]:
                    wrong.append((seed, turn, y))
                client.free(x.tensor_id)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_stopping_ends_all_sessions() -> None:
    with service_of() as service:
        client = Client(service)
        client.alloc((1 << 16,))
        service.registrar.stop()
        assert device_files(service) == 0
        with pytest.raises(Refusal, match="stopping"):
            Client(service)


def test_handshake(service: Service) -> None:
    from accelctl.abi.version import ABI

    answer = service.handshake(pb.HandshakeRequest(abi=ABI, client="test"))
    assert (answer.abi, answer.device, answer.simulated) == (ABI, "sim:0", True)
    assert len(answer.ops) == 15
    assert answer.message_limit == 64 << 20
    assert answer.keepalive_ms == QUICK.keepalive_s * 1000
    with pytest.raises(Refusal, match=f"ABI {ABI + 1}, this service ABI {ABI}") as caught:
        service.handshake(pb.HandshakeRequest(abi=ABI + 1))
    assert (caught.value.field, caught.value.kind) == ("abi", "version_mismatch")


def test_names_of_clients_are_made_printable(service: Service) -> None:
    service.create_session(pb.CreateSessionRequest(client="a\x1b[31m\n" + "b" * 500))
    (level,) = service.telemetry().sessions
    assert level.client == "a?[31m?" + "b" * 73
