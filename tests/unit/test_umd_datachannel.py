"""The data channel of a real session: bytes go into its tensors, and its end is the session's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the service needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.errors import AccelError
from accelctl.umd.channel.door import Door
from accelctl.umd.channel.tunnel import Tunnel
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.service import Service
from tests.umdkit import Client, chip_of, device_files


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    service = Service(chip_of(), door=Door(str(tmp_path / "data")))
    try:
        yield Client(service)
    finally:
        service.close()
        assert device_files(service) == 0


def tunnel_of(client: Client) -> Tunnel:
    answer = client.service.open_data_channel(pb.DataChannelRequest(session_id=client.number))
    assert answer.slots * answer.chunk_bytes > 0
    return Tunnel(answer.socket, answer.token)


def test_there_and_back(client: Client) -> None:
    data = bytes(range(256)) * 5000
    room = client.alloc((len(data),), "uint8")
    with tunnel_of(client) as tunnel:
        tunnel.upload([(room.tensor_id, 0, data)])
        assert client.read(room.tensor_id) == data
        back = bytearray(len(data))
        tunnel.download([(room.tensor_id, 0, back)])
        assert back == data
    assert client.session.memory.get(room.tensor_id).pins == 0
    assert client.free(room.tensor_id) == len(data)


def test_another_sessions_tensor_and_bytes_beyond_the_end(client: Client) -> None:
    theirs = Client(client.service).alloc((8,), "uint8")
    mine = client.alloc((8,), "uint8")
    with tunnel_of(client) as tunnel:
        for number, size in ((theirs.tensor_id, 8), (mine.tensor_id, 9)):
            with pytest.raises(AccelError):
                tunnel.upload([(number, 0, bytes(size))])
        tunnel.upload([(mine.tensor_id, 0, b"12345678")])
    assert client.read(mine.tensor_id) == b"12345678"


def test_the_end_of_a_session_ends_its_channels(client: Client) -> None:
    room = client.alloc((1 << 20,), "uint8")
    tunnel = tunnel_of(client)
    tunnel.upload([(room.tensor_id, 0, bytes(1 << 20))])
    client.service.destroy_session(pb.SessionRequest(session_id=client.number))
    assert client.service.door is not None
    assert client.service.door.channels == 0
    with pytest.raises(AccelError):
        tunnel.upload([(room.tensor_id, 0, b"x")])
    tunnel.close()


def test_the_handshake_says_so(client: Client) -> None:
    assert "data_channel" in client.service.handshake(pb.HandshakeRequest()).features
