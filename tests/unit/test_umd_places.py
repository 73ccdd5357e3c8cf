"""The client and views: bytes of one come from where it lies. What is asked again; how a lost session is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from accelctl.abi.opset import OPS
from accelctl.abi.tensors import FP16, FP32
from accelctl.errors import UsageError
from accelctl.umd.channel.door import Door
from accelctl.umd.client import Client, ClientSession, ServiceError, SessionGone, desc
from accelctl.umd.places import Places, all_placed, extent
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests.umdkit import chip_of


@pytest.fixture(params=["grpc", "shared memory"])
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ClientSession]:
    address = f"unix:{tmp_path}/s"
    door = Door(f"{tmp_path}/data") if request.param == "shared memory" else None
    server = serve(Service(chip_of(), door=door), address)
    try:
        with Client(address, deadline_s=20) as client, client.session() as made:
            assert made.transport == request.param
            yield made
    finally:
        server.stop(1.0)


def floats(raw: bytes | bytearray) -> list[float]:
    return np.frombuffer(bytes(raw), np.float32).tolist()  # type: ignore[no-any-return]


def counted(session: ClientSession, count: int) -> pb.TensorDesc:
    x = session.alloc((count,), "fp32")
    session.write(x, np.arange(count, dtype=np.float32).tobytes())
    return x


def test_a_view_is_read_and_written_where_it_lies(session: ClientSession) -> None:
    x = counted(session, 8)
    half = desc((4,), FP32, tensor_id=x.tensor_id, device_addr=x.device_addr + 16)
    assert floats(session.read(half)) == [4, 5, 6, 7]
    assert floats(session.read(half, 4, 8)) == [5, 6]
    session.write(half, np.float32(9).tobytes(), 4)
    assert floats(session.read(x)) == [0, 1, 2, 3, 4, 9, 6, 7]
    assert floats(session.read(desc((4,), FP32, tensor_id=x.tensor_id))) == [0, 1, 2, 3]
    every = desc((4,), FP32, tensor_id=x.tensor_id, device_addr=x.device_addr + 4, strides=[2])
    assert floats(session.read(every)) == [1, 2, 3, 4, 9, 6, 7]


def test_a_result_in_a_larger_tensor(session: ClientSession) -> None:
    x, y = counted(session, 4), session.alloc((8,), "fp32")
    session.write(y, bytes(32))
    out = desc((4,), FP32, tensor_id=y.tensor_id, device_addr=y.device_addr + 16)
    answer = session.translate(session.request("relu", [x], [out], submit=True))
    assert session.wait(answer.fence)
    assert floats(session.read(answer.outputs[0])) == [0, 1, 2, 3]


def test_a_view_of_a_result_that_the_service_allocated(session: ClientSession) -> None:
    x = counted(session, 4)
    for answers in (
        [session.translate(session.request("relu", [x], submit=True))],
        session.batch([session.request("relu", [x], submit=True)]).responses,
        next(session.stream([[session.request("relu", [x], submit=True)]], 20.0)).responses,
    ):
        made = answers[0].outputs[0]
        assert session.wait(answers[0].fence)
        view = desc((2,), FP32, tensor_id=made.tensor_id, device_addr=made.device_addr + 8)
        assert floats(session.read(view)) == [2, 3]


@pytest.mark.parametrize(("offset", "size"), [(-4, 4), (36, None), (0, -1)])
def test_what_is_not_inside_is_said_in_words(session: ClientSession, offset: int, size: int | None) -> None:
    x = counted(session, 8)
    with pytest.raises(UsageError, match="not inside the tensor"):
        session.read(x, offset, size)
    if size == 4:
        with pytest.raises(UsageError, match="not inside the tensor"):
            session.write(x, bytes(4), offset)


def test_the_first_write_says_that_the_session_is_gone(session: ClientSession) -> None:
    x = counted(session, 8)
    with Client(session.client.address, deadline_s=20) as other:
        other.call("DestroySession", pb.SessionRequest(session_id=session.id))
    for _ in range(2):
        with pytest.raises(SessionGone):
            session.write(x, bytes(32))
        with pytest.raises(SessionGone):
            session.read(x)


def test_a_data_channel_that_cannot_be_opened_is_the_services_error(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    door = Door(f"{tmp_path}/data")
    server = serve(Service(chip_of(), door=door), address)
    try:
        with Client(address, deadline_s=20) as client, client.session() as session:
            x = session.alloc((4,), "fp32")
            door._listener.close()
            with pytest.raises(ServiceError, match="nobody listens"):
                session.write(x, bytes(16))
    finally:
        server.stop(1.0)


class Unavailable(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("placed", [True, False])
def test_what_allocates_is_not_asked_again(session: ClientSession, placed: bool) -> None:
    x, y = counted(session, 4), counted(session, 4)
    real: Any = session.client.stub.TranslateOp
    calls = 0

    def flaky(request: pb.OpRequest, timeout: float) -> Any:
        nonlocal calls
        calls += 1
        answer = real(request, timeout=timeout)
        if calls == 1:
            raise Unavailable
        return answer

    session.client.stub.TranslateOp = flaky
    if placed:
        assert session.translate(session.request("relu", [x], [y])).instructions
    else:
        with pytest.raises(ServiceError, match="connection reset"):
            session.translate(session.request("relu", [x], [None]))
    assert calls == 1 + placed


def test_what_has_all_its_places() -> None:
    there, nowhere = pb.TensorDesc(tensor_id=1), pb.TensorDesc(shape=[4], data_type=pb.FP32)
    relu = OPS["relu"].code
    two = next(op.code for op in OPS.values() if sum(not one.optional for one in op.outputs) > 1)
    assert all_placed(pb.OpRequest(op_type=relu, outputs=[there]))  # type: ignore[arg-type]
    assert all_placed(pb.OpRequest(op_type=relu, outputs=[pb.TensorDesc(device_addr=4096)]))  # type: ignore[arg-type]
    for code, outputs in ((relu, []), (relu, [nowhere]), (relu, [pb.TensorDesc()]), (two, [there])):
        assert not all_placed(pb.OpRequest(op_type=code, outputs=outputs))  # type: ignore[arg-type]


def test_extent() -> None:
    assert extent(desc((2, 3), FP16)) == 12
    assert extent(desc((2, 3), FP32, strides=[10, 2])) == 60
    assert extent(desc((0, 3), FP32)) == 0
    assert extent(desc((), FP32)) == 4
    assert extent(pb.TensorDesc(byte_size=7)) == 7
    with pytest.raises(UsageError):
        extent(desc((1 << 40, 1 << 40), FP32))


def test_places_are_forgotten() -> None:
    places = Places()
    places.made([pb.TensorDesc(tensor_id=1, device_addr=100), pb.TensorDesc(tensor_id=1, device_addr=116)])
    view = pb.TensorDesc(tensor_id=1, device_addr=116)
    assert places.within(view, 4, 1) == 20
    places.freed(1)
    places.freed(1)
    assert places.within(view, 4, 1) == 4
