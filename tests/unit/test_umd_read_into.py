"""ClientSession.read_into: a caller's buffer is filled in place, over both ways for data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.umd.channel.door import Door
from accelctl.umd.client import Client, ClientSession, ServiceError
from accelctl.umd.server import serve
from accelctl.umd.service import Service
from tests import umdkit


@pytest.fixture(params=["shared memory", "grpc"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClientSession]:
    door = Door(str(tmp_path / "data")) if request.param == "shared memory" else None
    server = serve(Service(umdkit.chip_of(), door=door), f"unix:{tmp_path}/s")
    with Client(f"unix:{tmp_path}/s", deadline_s=20) as client, client.session() as found:
        assert found.transport == request.param
        yield found
    server.stop()


def test_a_buffer_is_filled_from_an_offset(session: ClientSession) -> None:
    x = session.alloc((1000,), "fp32")
    values = np.arange(1000, dtype=np.float32)
    session.write(x, values.view(np.uint8).data)
    into = np.zeros((20, 5), np.float32)
    session.read_into(x, into.data, 400)
    assert (into.reshape(-1) == values[100:200]).all()
    part = bytearray(b"\xa5" * 12)
    session.read_into(x, memoryview(part)[4:8], 4)
    assert bytes(part) == b"\xa5" * 4 + values[1].tobytes() + b"\xa5" * 4
    session.read_into(x, bytearray())
    assert bytes(session.read(x)) == values.tobytes()


def test_what_cannot_be_filled(session: ClientSession) -> None:
    x = session.alloc((8,), "uint8")
    for wrong in (memoryview(b"readonly"), np.zeros((4, 4), np.uint8)[:, ::2].data):
        with pytest.raises(ValueError, match="cannot be written in one piece"):
            session.read_into(x, wrong)
    with pytest.raises(ServiceError):
        session.read_into(x, bytearray(9))
