"""A device that is slow, or hangs: who waits for it, for how long, and who must not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.abi import blob
from accelctl.abi.lifecycle import Session as DeviceSession
from accelctl.abi.queue import QueueFull, Ring
from accelctl.errors import AccelError
from accelctl.umd.channel.door import Door
from accelctl.umd.channel.ring import Chunk
from accelctl.umd.channel.transfer import Placing
from accelctl.umd.channel.tunnel import Tunnel
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.registrar import Limits
from accelctl.umd.service import Service
from tests.umdkit import Client, HeldKernels, HeldRing, chip_of, client_of, device_files, service_of

LONG_S = 20.0
"""Before that a thread that was told so has ended, also on a busy machine."""


def threes() -> HeldKernels:
    """relu of fp16 takes three instructions: copy, relu, copy."""
    kernels = HeldKernels()
    kernels._templates = tuple(
        one._replace(dtypes=frozenset({"fp32"})) if one.op == "relu" else one for one in kernels._templates
    )
    return kernels


def relu16(client: Client, **more: Any) -> pb.OpRequest:
    return client.request("relu", [client.put([-1, 2], "fp16")], submit=True, **more)


class Running:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()

    def refusal(self) -> Refusal:
        self.end()
        assert isinstance(self.error, Refusal), self.error
        return self.error


def until(yes: Callable[[], object]) -> None:
    end = time.monotonic() + LONG_S
    while not yes():
        assert time.monotonic() < end
        time.sleep(0.001)


class Quick(HeldRing):
    """Ends everything between saying that it is full and the next question."""

    def submit(self, work: bytes) -> int:
        try:
            return super().submit(work)
        except QueueFull:
            self.line.advance(self.line._submitted)
            raise


class QuickKernels(HeldKernels):
    def open(self, session: DeviceSession, depth: int) -> Ring:
        self.rings.append(Quick(depth))
        return self.rings[-1]


def test_a_queue_that_is_done_before_it_is_waited_for() -> None:
    kernels = QuickKernels()
    kernels._templates = threes()._templates
    with service_of(kernels) as service:
        client = Client(service, queue_depth=1)
        assert client.translate(relu16(client)).fence == 3
        kernels.rings[0].line.advance(3)


def test_an_op_that_does_not_fit_gives_up_at_the_deadline() -> None:
    """Two of three are in; memory for the result is back, and goes to nobody before the queue is done."""
    kernels = threes()
    with service_of(kernels) as service:
        client = Client(service, queue_depth=2)
        request = relu16(client)
        tensors = client.session.tensors
        with pytest.raises(Refusal, match="2 of 3 instructions were handed over before the deadline") as caught:
            service.translate(request.SerializeToString(), 0.05)
        assert caught.value.kind == "timeout"
        assert client.session.tensors == tensors
        assert client.session.memory.waiting
        kernels.rings[0].line.advance(2)
        assert client.wait(2).passed
        assert not client.session.memory.waiting


def test_nobody_else_waits_for_an_op_that_goes_in_piece_by_piece() -> None:
    kernels = threes()
    with service_of(kernels) as service:
        client, other = Client(service, queue_depth=2), Client(service)
        request = relu16(client).SerializeToString()
        running = Running(lambda: service.translate(request, LONG_S))
        until(lambda: len(kernels.rings[0].works) == 2)
        found = [Running(service.telemetry), Running(lambda: client.alloc((4,))), Running(lambda: other.alloc((4,)))]
        for one in found:
            one.end()
            assert one.error is None
        kernels.rings[0].line.advance(1)
        running.end()
        assert pb.OpResponse.FromString(running.result).fence == 3
        kernels.rings[0].line.advance(3)


def test_instructions_of_two_ops_that_do_not_fit_are_not_mixed() -> None:
    kernels = threes()
    with service_of(kernels) as service:
        client = Client(service, queue_depth=2)
        requests = [relu16(client).SerializeToString() for _ in range(2)]
        running = [Running(partial(service.translate, raw, LONG_S)) for raw in requests]
        line = kernels.rings[0].line

        def done() -> bool:
            line.advance(line._submitted)
            return all(one.result for one in running)

        until(done)
        assert sorted(pb.OpResponse.FromString(one.result).fence for one in running) == [3, 6]
        kernel = service.chip.by_number
        names = [kernel[blob.decode(work).kernel_id].op for work in kernels.rings[0].works]
        assert names == ["copy", "relu", "copy"] * 2
        line.advance(6)


def test_a_session_ends_under_an_op_that_goes_in_piece_by_piece() -> None:
    kernels = threes()
    with service_of(kernels) as service:
        client = Client(service, queue_depth=1)
        request = relu16(client).SerializeToString()
        running = Running(lambda: service.translate(request, LONG_S))
        until(lambda: kernels.rings[0].works)
        ending = Running(lambda: service.destroy_session(pb.SessionRequest(session_id=client.number)))
        assert running.refusal().message == "this session was destroyed"
        ending.end()
        assert ending.error is None


def test_whoever_waits_for_a_full_queue_is_there() -> None:
    """Its session does not expire, however short its keepalive is."""
    kernels = HeldKernels()
    with service_of(kernels) as service:
        client = Client(service, queue_depth=1, keepalive_ms=300)
        x = client.alloc((2,))
        request = client.request("relu", [x], {}, [x], submit=True)
        assert client.translate(request).fence == 1
        timer = threading.Timer(1.5, kernels.rings[0].line.advance, [1])
        timer.start()
        assert client.translate(request).fence == 2
        threading.Timer(1.5, kernels.rings[0].line.advance, [2]).start()
        assert client.wait(2).passed


def test_a_failure_that_has_no_name_gives_the_result_back() -> None:
    kernels = HeldKernels()
    with client_of(kernels) as client:
        x = client.put([1], "fp32")
        tensors = client.session.tensors
        kernels.rings[0].fails = OverflowError("too large to pack")
        with pytest.raises(OverflowError):
            client.translate(client.request("relu", [x], submit=True))
        assert client.session.tensors == tensors


# -- memory that the queue used


def test_memory_that_waited_for_the_queue_is_there_for_other_sessions() -> None:
    kernels = HeldKernels()
    with service_of(kernels, Limits(memory_bytes=64 << 20)) as service:
        client, other = Client(service), Client(service)
        x = client.alloc((10 << 20,))
        client.translate(client.request("relu", [x], {}, [x], submit=True))
        client.free(x.tensor_id)
        with pytest.raises(Refusal, match="64 MiB"):
            other.alloc((10 << 20,))
        kernels.rings[0].line.advance(1)
        assert other.alloc((10 << 20,)).byte_size == 40 << 20


def test_scratch_memory_takes_what_waited_for_the_queue() -> None:
    kernels = threes()
    with service_of(kernels) as service:
        client = Client(service)
        x = client.alloc((1 << 10,))
        client.translate(client.request("relu", [x], {}, [x], submit=True))
        client.free(x.tensor_id)
        kernels.rings[0].line.advance(1)
        wide = client.alloc((4,), "fp16")
        x = client.alloc((1 << 10,))
        client.translate(client.request("relu", [x], {}, [x], submit=True))
        client.free(x.tensor_id)
        kernels.rings[0].line.advance(2)
        assert client.session.memory.waiting
        client.translate(client.request("relu", [wide], {}, [wide]))
        assert not client.session.memory.waiting


# -- the data channel


def test_a_session_ends_under_an_upload_that_waits_for_the_queue(tmp_path: Path) -> None:
    """Many tensors that a hung queue uses: what is asked for next is refused at once, and all is given back."""
    kernels, door = HeldKernels(), Door(str(tmp_path / "data"))
    service = Service(chip_of(kernels), limits=Limits(patience_s=1.0), door=door)
    try:
        client = Client(service)
        tensors = [client.alloc((64,)) for _ in range(12)]
        for one in tensors:
            client.translate(client.request("relu", [one], {}, [one], submit=True))
        offer = service.open_data_channel(pb.DataChannelRequest(session_id=client.number))
        tunnel = Tunnel(offer.socket, offer.token)
        running = Running(lambda: tunnel.upload([(one.tensor_id, 0, bytes(256)) for one in tensors]))
        until(lambda: any(client.session.memory.get(one.tensor_id).pins for one in tensors))
        gone = service.destroy_session(pb.SessionRequest(session_id=client.number))
        assert gone.freed_tensors == 12
        running.end()
        assert running.error is not None
        assert device_files(service) == 0
        assert service.registrar.budget.held == 0
        tunnel.close()
    finally:
        service.close()


def test_a_session_is_given_back_also_where_its_channel_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with service_of() as service:
        client = Client(service)
        client.alloc((4,))

        def fails(number: int) -> None:
            raise RuntimeError("data-channel-1 does not end")

        monkeypatch.setattr(service.registrar, "_ended", fails)
        with pytest.raises(RuntimeError, match="does not end"):
            service.destroy_session(pb.SessionRequest(session_id=client.number))
        assert device_files(service) == 0
        assert service.registrar.budget.held == 0
        monkeypatch.undo()


def test_a_tensor_that_cannot_be_had_is_asked_for_once_in_a_transfer() -> None:
    asked: list[int] = []

    def place(number: int) -> tuple[memoryview, int]:
        asked.append(number)
        raise AccelError("the queue still uses this tensor", kind="timeout")

    sink = Placing(1, place)
    for index in range(5):
        assert sink.accept(index, Chunk(1, index, 7, 0, 16)) is None
    sink.close()
    assert asked == [7]
    assert (sink.refused, sink.why) == (5, "chunk 0: the queue still uses this tensor")


def test_what_a_driver_raises_does_not_keep_the_rest_from_going_back() -> None:
    """A release and a ring of a driver whose errors are its own kind."""

    class Odd(Exception):
        pass

    kernels = HeldKernels()
    with service_of(kernels) as service:
        client = Client(service)
        client.alloc((4,))

        def fails() -> None:
            raise Odd("the ring")

        kernels.rings[0].close = fails  # type: ignore[method-assign]
        with pytest.raises(Odd, match="the ring"):
            service.destroy_session(pb.SessionRequest(session_id=client.number))
        assert device_files(service) == 0
