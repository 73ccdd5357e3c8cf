"""How data channels end: the session is over, the client or the service is killed, the service is not what it says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("crc32c", reason="the data channel needs the extra umd: pip install 'accelctl[umd]'")

from accelctl.errors import AccelError, TimeoutFailure
from accelctl.hal.sharedmem import create
from accelctl.hal.sidesocket import Gone, SideListener, SideSocket
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.channel.link import Link
from accelctl.umd.channel.messages import ChannelError, Kind, Message, Refused
from accelctl.umd.channel.ring import Shape, Writer
from accelctl.umd.channel.tunnel import Tunnel
from tests.channelkit import PAGE, SESSION, SMALL, Held, Tensors, child, opened, put, said

QUICK_S = 0.2
"""Patience where a test is about losing it."""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = Held()
    yield
    assert before.settled(), before.more()


@pytest.mark.parametrize("how", ["end", "close"])
def test_the_end_of_a_session_stops_a_running_transfer(tmp_path: Path, how: str) -> None:
    tensors = Tensors(t1=64 * PAGE)
    reached = threading.Event()

    def place(tensor_id: int) -> tuple[memoryview, int]:
        reached.set()
        time.sleep(0.05)
        return tensors.place(tensor_id)

    door = Door(str(tmp_path / "data"), shape=SMALL)
    tunnel = Tunnel(door.path, door.offer(Guest(SESSION, place, tensors.done)))
    ended: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                tunnel.upload([(1, 0, bytes(64 * PAGE))])
        except AccelError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(5)
    door.end(SESSION) if how == "end" else door.close()
    assert tensors.idle()
    assert door.channels == 0
    thread.join(5)
    assert isinstance(ended[0], AccelError)
    assert ended[0].kind == "communication"
    tunnel.close()
    door.close()
    door.close()


CLIENT = """
import sys
from accelctl.umd.channel.tunnel import Tunnel
tunnel = Tunnel(sys.argv[1], bytes.fromhex(sys.argv[2]))
data = bytes(1 << 20)
print("go", flush=True)
while True:
    tunnel.upload([(1, 0, data)])
"""


def test_a_client_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """At several moments of its transfers."""
    tensors = Tensors(t1=1 << 20)
    with opened(tmp_path, tensors) as (door, token):
        before, ticket = Held(), token
        for pause in (0.0, 0.013, 0.037):
            client = child(CLIENT, door.path, ticket.hex())
            assert said(client) == "go"
            time.sleep(pause)
            client.send_signal(signal.SIGKILL)
            client.communicate()
            assert before.settled(), before.more()
            assert (door.channels, tensors.idle()) == (0, True)
            ticket = door.offer(Guest(SESSION, tensors.place, tensors.done))
        with Tunnel(door.path, ticket) as tunnel:
            assert tunnel.upload([(1, 0, b"next")]) == 4


SERVICE = """
import sys
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.channel.ring import Shape
tensor = memoryview(bytearray(1 << 20))
door = Door(sys.argv[1], shape=Shape(4, 4096))
print(door.offer(Guest(1, lambda _: (tensor, 1 << 20))).hex(), flush=True)
sys.stdin.read()
"""


def for_ever(tunnel: Tunnel, way: str) -> None:
    parts = [(1, 0, bytearray(1 << 20))]
    while True:
        tunnel.upload(parts) if way == "up" else tunnel.download(parts)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_service_that_is_killed_is_told_at_once(tmp_path: Path, way: str) -> None:
    """RPC-05 a and b for us: nothing has a name but the socket, so nothing but that is left."""
    service = child(SERVICE, str(tmp_path / "data"))
    with Tunnel(str(tmp_path / "data"), bytes.fromhex(said(service))) as tunnel:
        timer = threading.Timer(0.05, service.kill)
        timer.start()
        with pytest.raises(Gone, match="closed the connection"):
            for_ever(tunnel, way)
        with pytest.raises(ChannelError, match="it is closed; open a new one"):
            tunnel.upload([(1, 0, b"")])
        timer.join()
    service.communicate()
    assert [name for name in os.listdir("/dev/shm") if "accelctl" in name] == []


# -- services that lie to a client


def rogue_service(path: Path, act: Callable[[SideSocket], None]) -> threading.Thread:
    listener = SideListener(str(path))

    def work() -> None:
        sock = listener.accept(5)
        assert sock is not None
        with sock:
            sock.receive(4096, timeout_s=5)
            act(sock)
            try:
                sock.receive(4096, timeout_s=5)
            except Gone:
                pass
        listener.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def welcome(slots: int, slot_bytes: int, sizes: list[int], *, sealed: bool = True) -> Callable[[SideSocket], None]:
    def act(sock: SideSocket) -> None:
        fds = []
        for size in sizes:
            if sealed:
                with create("rogue", size) as memory:
                    fds.append(os.dup(memory.fd))
            else:
                fds.append(os.memfd_create("rogue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
                os.ftruncate(fds[-1], size)
        sock.send(Message(Kind.WELCOME, 0, slots, slot_bytes).pack(), fds, timeout_s=1)
        for fd in fds:
            os.close(fd)

    return act


SIZE = SMALL.size_bytes
WELCOMES: dict[str, tuple[Callable[[SideSocket], None], str]] = {
    "not sealed": (welcome(4, PAGE, [SIZE, SIZE], sealed=False), "it is not sealed"),
    "too small": (welcome(4, PAGE, [SIZE, SIZE - PAGE]), f"has {SIZE - PAGE} bytes, not {SIZE}"),
    "one descriptor": (welcome(4, PAGE, [SIZE]), "makes no sense"),
    "three descriptors": (welcome(4, PAGE, [SIZE] * 3), "descriptors nobody asked for"),
    "no slots": (welcome(0, PAGE, [SIZE, SIZE]), "makes no sense"),
    "slots without end": (welcome(1 << 60, PAGE, [SIZE, SIZE]), "makes no sense"),
    "slots of a byte": (welcome(4, 1, [SIZE, SIZE]), "makes no sense"),
}


@pytest.mark.parametrize("name", list(WELCOMES))
def test_a_welcome_is_checked_against_what_came_with_it(tmp_path: Path, name: str) -> None:
    act, words = WELCOMES[name]
    thread = rogue_service(tmp_path / "s", act)
    with pytest.raises(AccelError, match=words) as caught:
        Tunnel(str(tmp_path / "s"), b"token")
    assert caught.value.kind == "communication"
    thread.join()


def test_a_service_that_says_nothing(tmp_path: Path) -> None:
    thread = rogue_service(tmp_path / "s", lambda sock: None)
    start = time.monotonic()
    with pytest.raises(TimeoutFailure):
        Tunnel(str(tmp_path / "s"), b"token", patience_s=QUICK_S)
    assert time.monotonic() - start < 3
    thread.join()


def test_bytes_that_were_not_asked_for_are_not_taken(tmp_path: Path) -> None:
    """A service that answers a download with another tensor, another place, and then with more than the ring holds."""

    def act(sock: SideSocket) -> None:
        link = Link(sock)
        shape = Shape(4, PAGE)
        with create("up", shape.size_bytes) as up, create("down", shape.size_bytes) as down:
            sock.send(Message(Kind.WELCOME, 0, 4, PAGE).pack(), [up.fd, down.fd], timeout_s=1)
            writer = Writer(down.view, shape)
            for turn, (tensor_id, offset) in enumerate([(2, 0), (1, 1), (1, 0)], 1):
                assert link.next(5).kind is Kind.GET
                put(writer, b"one", turn, 0, tensor_id, offset)
                link.send(Message(Kind.DONE, turn, 3))
            writer.release()

    thread = rogue_service(tmp_path / "s", act)
    with Tunnel(str(tmp_path / "s"), b"token") as tunnel:
        buffer = bytearray(3)
        for _ in range(2):
            with pytest.raises(Refused, match=r"1 of 1 chunks were refused; .* came instead of 3 at 0 of tensor 1"):
                tunnel.download([(1, 0, buffer)])
            assert buffer == bytes(3)
        assert tunnel.download([(1, 0, buffer)]) == 3
        assert buffer == b"one"
    thread.join()
