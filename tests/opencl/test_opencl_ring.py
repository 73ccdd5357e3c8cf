"""The OpenCL chip's ring and memory where something is odd: numbers that no kernel takes, a queue that is held up,
faults, several readers of one tensor, a driver that refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from accelctl.abi import compute, registry
from accelctl.errors import DeviceUnusable, NoDeviceError

try:
    registry.load("opencl").ops.devices()  # type: ignore[union-attr]
except NoDeviceError as error:
    pytest.skip(f"no OpenCL device: {error.message}", allow_module_level=True)

import numpy as np
import pyopencl as cl

from accelctl.abi.tensors import DTYPES
from accelctl.backends.opencl import contract, kernels, platform, programs
from accelctl.umd.chip import Chip
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.service import Service
from tests.umdkit import QUICK, Client, view

LONG_S = 20.0


class Set(NamedTuple):
    """A session of a service of its own."""

    client: Client
    ring: Any
    device: Any


@pytest.fixture
def ocl() -> Iterator[Set]:
    found = compute.named("opencl:0")
    service = Service(Chip.registered(found.chip, found.device.target), limits=QUICK)
    client = Client(service, queue_depth=4)
    yield Set(client, client.session.line.ring, client.session.device)
    service.close()
    assert service.registrar.budget.held == 0


def in_time(what: Callable[[], Any], end: Callable[[], None] = lambda: None) -> Any:
    """What it gives, unless it does not come back; ``end`` lets it go then."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(what()), daemon=True)
    thread.start()
    thread.join(LONG_S)
    end()
    assert found, "it waits"
    return found[0]


def held(device: Any) -> Any:
    """Nothing that is enqueued from now on begins before the event is set."""
    user = cl.UserEvent(device.context)
    cl.enqueue_barrier(device.queue, wait_for=[user])
    return user


def done(user: Any) -> None:
    user.set_status(cl.command_execution_status.COMPLETE)


def decode(client: Client, block: int) -> pb.OpRequest:
    """Of one block of four tokens; the cache has two."""
    q, cache = client.put(np.ones((1, 1, 4), np.float32)), client.put(np.ones((2, 4, 1, 4), np.float32))
    table, lens = client.put(np.array([[block]], np.int32)), client.put(np.array([4], np.int32))
    return client.request("attention_decode", [q, cache, cache, table, lens], {"block_size": "4"}, submit=True)


# -- what cannot be put into a kernel's arguments --


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("rmsnorm", 1, {"epsilon": "1e300"}),
        ("layernorm", 1, {"epsilon": "-1e39"}),
        ("add", 2, {"alpha": "1e300"}),
        ("attention_prefill", 3, {"scale": "1e300"}),
        ("attention_prefill", 3, {"softcap": "1e39"}),
    ],
)
def test_numbers_beyond_fp32_are_refused_before_anything_is_submitted(
    ocl: Set, op: str, operands: int, attrs: dict[str, str]
) -> None:
    x = ocl.client.put(np.ones((1, 2, 2), np.float32))
    for submit in (False, True):
        with pytest.raises(Refusal, match="is beyond fp32"):
            ocl.client.translate(ocl.client.request(op, [x] * operands, attrs, submit=submit))
    assert (ocl.ring.state, ocl.client.session.line.submitted, ocl.client.session.tensors) == ("idle", 0, 1)


def test_whole_numbers_take_any_factor_and_rope_any_base(ocl: Set) -> None:
    x = ocl.client.put(np.array([2, 4], np.int32))
    assert ocl.client.run("add", [x, x], {"alpha": "2147483647"})[0].tolist() == [0, 0]
    x, at = ocl.client.put(np.ones((1, 1, 2), np.float32)), ocl.client.put(np.array([0], np.int32))
    assert ocl.client.run("rope", [x, at], {"style": "neox", "base": "1e300"})[0].tolist() == [[[1, 1]]]


def test_a_launch_that_cannot_be_made_takes_no_point(ocl: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise OverflowError("int too large to convert")

    x = ocl.client.put(np.array([-1, 2], np.float32))
    request = ocl.client.request("relu", [x], submit=True)
    for _ in range(ocl.ring.depth + 1):
        with monkeypatch.context() as patched:
            patched.setitem(kernels._CALLS, "relu", broken)
            with pytest.raises(Refusal, match="does not fit the kernel's arguments"):
                ocl.client.translate(request)
    assert ocl.ring.state == "idle"
    assert ocl.client.run("relu", [x])[0].tolist() == [0, 2]


def test_a_launch_that_fails_loses_the_ring_and_nobody_waits(ocl: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("not an argument")

    x = ocl.client.put(np.array([-1, 2], np.float32))
    monkeypatch.setattr(contract, "launched", broken)
    with pytest.raises(Refusal, match="relu: not an argument"):
        ocl.client.respond("relu", [x])
    assert ocl.ring.state == "lost"


def test_a_stride_without_meaning_may_be_any_number(ocl: Set) -> None:
    x, y = ocl.client.put(np.array([[1, -2]], np.float32)), ocl.client.alloc((1, 4))
    odd = view(y, (1, 2), ((1 << 64) - 1, 2))
    answer = ocl.client.respond("relu", [x], {}, [odd])
    assert ocl.client.wait(answer.fence).passed
    assert np.frombuffer(ocl.client.read(y.tensor_id), np.float32)[::2].tolist() == [1, 0]


# -- faults --


def test_a_fault_is_that_of_its_own_instruction(ocl: Set) -> None:
    requests = [decode(ocl.client, block) for block in (1, 77, 0)]
    user = held(ocl.device)
    good, bad, last = (ocl.client.translate(request) for request in requests)
    done(user)
    ocl.device.queue.finish()
    assert ocl.client.wait(good.fence).passed
    for answer in (bad, last):
        with pytest.raises(Refusal, match=rf"instruction {bad.fence} failed: block_table"):
            ocl.client.wait(answer.fence)


def test_an_instruction_is_done_when_it_is_and_not_what_stands_behind_it(ocl: Set) -> None:
    answer = ocl.client.translate(decode(ocl.client, 1))
    user = held(ocl.device)
    assert in_time(lambda: ocl.client.wait(answer.fence, 10_000_000).passed, lambda: done(user))


def test_a_wait_without_time_does_not_wait(ocl: Set) -> None:
    request = decode(ocl.client, 1)
    user = held(ocl.device)
    answer = ocl.client.translate(request)
    assert not in_time(lambda: ocl.client.wait(answer.fence, 0).passed, lambda: done(user))
    assert ocl.client.wait(answer.fence).passed


# -- memory --


def test_several_may_read_one_tensor(ocl: Set) -> None:
    x, session = ocl.client.put(np.arange(4, dtype=np.float32)), ocl.client.session
    for _ in range(3):
        session.lend(x.tensor_id)
    session.take_back(x.tensor_id)
    assert np.frombuffer(ocl.client.read(x.tensor_id), np.float32).tolist() == [0, 1, 2, 3]
    session.take_back(x.tensor_id)
    session.take_back(x.tensor_id)
    assert ocl.client.run("relu", [x])[0].tolist() == [0, 1, 2, 3]


def refused(*_: Any, **__: Any) -> Any:
    raise cl.RuntimeError("it is broken")


def test_a_map_that_the_driver_refuses_is_an_oserror(ocl: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ocl.client.alloc((4,))
    block = ocl.client.session.memory.get(x.tensor_id).block.handle
    with monkeypatch.context() as patched:
        patched.setattr(cl, "enqueue_map_buffer", refused)
        with pytest.raises(OSError, match="clEnqueueMapBuffer: it is broken"):
            ocl.device._sync(block, True)
    ocl.client.write(x.tensor_id, bytes(16))


def test_a_session_ends_on_a_queue_that_is_broken(ocl: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    ocl.client.alloc((4,))
    with monkeypatch.context() as patched:
        patched.setattr(ocl.device, "queue", type("Queue", (), {"finish": refused})())
        with pytest.raises(OSError, match="it is broken"):
            ocl.client.session.close("over")
    assert ocl.device.buffers == {}


# -- kernels --


def test_no_op_waits_for_a_compiler(ocl: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def build(self: Any, *_: Any, **__: Any) -> Any:
        built.append(self)
        raise cl.RuntimeError("no compiler is here")

    monkeypatch.setattr(cl.Program, "build", build)
    half = pb.TensorDesc(shape=(2, 2), data_type=DTYPES["fp16"].code)  # type: ignore[arg-type]
    for dtype in ("fp32", "fp16", "bf16"):
        x = ocl.client.put([[1, -2], [3, 4]], dtype)
        for op, operands in (("relu", 1), ("matmul", 2), ("softmax", 1)):
            ocl.client.respond(op, [x] * operands)
        ocl.client.respond("copy", [x], {}, [half])
    assert built == []


def test_kernels_that_cannot_be_built_are_said_before_a_service_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "build", refused)
    found = compute.named("opencl:0")
    with pytest.raises(DeviceUnusable, match="opencl:0: its kernels cannot be built: it is broken"):
        Chip.registered(found.chip, found.device.target)


def test_all_programs_are_built_beforehand() -> None:
    programs._program.cache_clear()
    context = platform.context_of("opencl:0")
    programs.build(context)
    assert programs._program.cache_info().currsize == 9
