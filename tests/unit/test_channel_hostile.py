"""Data channels with peers that lie, stop, flood or die: nothing hangs, nothing leaks, nobody else's bytes change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("crc32c", reason="the data channel needs the extra umd: pip install 'accelctl[umd]'")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.errors import AccelError
from accelctl.hal.sharedmem import SharedMemory, adopt
from accelctl.hal.sidesocket import Gone, connect
from accelctl.umd.channel import door as door_module
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.channel.link import Link
from accelctl.umd.channel.messages import VERSION, ChannelError, Kind, Message, unpack
from accelctl.umd.channel.ring import Chunk, Writer
from accelctl.umd.channel.tunnel import Tunnel
from tests.channelkit import PAGE, SESSION, SMALL, VOID, Held, Tensors, opened, put

QUICK_S = 0.2
"""Patience where a test is about losing it."""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = Held()
    yield
    assert before.settled(), before.more()


class Rogue:
    """A client that speaks the protocol and does what it likes with the rings."""

    def __init__(self, door: Door, token: bytes) -> None:
        self.sock = connect(door.path, timeout_s=5)
        self.link = Link(self.sock)
        self.link.send(Message(Kind.HELLO, 0, VERSION, 0, token))
        packet = self.sock.receive(4096, timeout_s=5, max_fds=2)
        assert unpack(packet.data).kind is Kind.WELCOME
        self.fds = list(packet.fds)
        self.up, self.down = (adopt(os.dup(fd), door.shape.size_bytes, "rogue") for fd in packet.fds)
        self.writer = Writer(self.up.view, door.shape)

    def __enter__(self) -> Rogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.release()
        for memory in (self.up, self.down):
            memory.close()
        for fd in self.fds:
            os.close(fd)
        self.sock.close()

    def put(self, transfer: int, chunks: int, size: int) -> Message:
        """Announce, and the answer."""
        self.link.send(Message(Kind.PUT, transfer, chunks, size))
        return self.link.next(5)


def test_a_replayed_chunk_is_refused(tmp_path: Path) -> None:
    """The same chunk twice, and one of an earlier transfer: every time in a record that is right in itself."""
    tensors = Tensors(t1=30)
    with opened(tmp_path, tensors) as (door, token), Rogue(door, token) as rogue:
        put(rogue.writer, b"one", 1, 0, 1, 0)
        put(rogue.writer, b"one", 1, 0, 1, 3)
        put(rogue.writer, b"two", 1, 2, 1, 6)
        answer = rogue.put(1, 3, 9)
        assert (answer.a, answer.b) == (6, 1)
        assert answer.text == "chunk 1: it is chunk 0 of transfer 1, sent before or out of turn"
        assert tensors.bytes[1] == b"one\0\0\0two" + bytes(21)
        put(rogue.writer, b"one", 1, 0, 1, 9)
        answer = rogue.put(2, 1, 3)
        assert (answer.a, answer.b) == (0, 1)
        assert answer.text.endswith("it is chunk 0 of transfer 1, sent before or out of turn")


def test_a_replayed_slot_is_not_seen(tmp_path: Path) -> None:
    """The whole ring, as it was before, sequences included: the reader is further."""
    tensors = Tensors(t1=30)
    with opened(tmp_path, tensors, patience_s=QUICK_S) as (door, token), Rogue(door, token) as rogue:
        put(rogue.writer, b"one", 1, 0, 1, 0)
        before = bytes(rogue.up.view)
        assert rogue.put(1, 1, 3).kind is Kind.DONE
        for number in range(4):
            put(rogue.writer, b"xyz", 2, number, 1, 3 * number)
        assert rogue.put(2, 4, 12).b == 0
        rogue.up.view[PAGE:] = before[PAGE:]
        answer = rogue.put(3, 1, 3)
        assert answer.kind is Kind.FAIL
        assert "chunk 0 did not come for 0.2 s; it is closed" in answer.text


def test_less_than_announced_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, Tensors(t1=30)) as (door, token), Rogue(door, token) as rogue:
        put(rogue.writer, b"one")
        answer = rogue.put(1, 1, 4)
        assert (answer.kind, answer.a, answer.text) == (Kind.DONE, 3, "3 bytes came, 4 were announced")


def chunk_at(rogue: Rogue, word: int, value: int) -> None:
    """Change one word of the first slot's header behind the writer's back."""
    rogue.up.view.cast("Q")[PAGE // 8 + word] = value


@pytest.mark.parametrize(
    ("word", "value", "words"),
    [
        (0, 4, "sequence 4 instead of 2"),
        (1, 7, "the header's checksum does not fit"),
        (6, 0xFFFFFFFF, "the header's checksum does not fit"),
    ],
)
def test_a_corrupt_header_is_refused_and_the_next_chunk_taken(
    tmp_path: Path, word: int, value: int, words: str
) -> None:
    tensors = Tensors(t1=30)
    with opened(tmp_path, tensors) as (door, token), Rogue(door, token) as rogue:
        put(rogue.writer, b"one", 1, 0, 1, 0)
        put(rogue.writer, b"two", 1, 1, 1, 3)
        chunk_at(rogue, word, value)
        answer = rogue.put(1, 2, 6)
        assert (answer.a, answer.b, answer.text) == (3, 1, f"chunk 0: it is corrupt: {words}")
        assert tensors.bytes[1] == b"\0\0\0two" + bytes(24)


class Liar(Writer):
    """Its headers carry lengths and checksums that no slot has; their own checksum is right."""

    length = 0

    def _describe(self, slot: int, number: int, chunk: Chunk, checksum: int) -> None:
        super()._describe(slot, number, chunk._replace(length=self.length), checksum)


@pytest.mark.parametrize("length", [PAGE + 1, 0xFFFFFFFF, VOID, VOID - 1, 2])
def test_a_lie_about_the_length_is_refused(tmp_path: Path, length: int) -> None:
    tensors = Tensors(t1=2 * PAGE)
    with opened(tmp_path, tensors, staged=True) as (door, token), Rogue(door, token) as rogue:
        rogue.writer.release()
        rogue.writer = Liar(rogue.up.view, door.shape)
        Liar.length = length
        put(rogue.writer, b"one")
        answer = rogue.put(1, 1, 3)
        assert (answer.a, answer.b) == (0, 1)
        assert tensors.bytes[1] == bytes(2 * PAGE)


def test_bytes_that_changed_on_the_way_never_reach_a_staged_tensor(tmp_path: Path) -> None:
    """Staged, the tensor stays as it was; otherwise only the chunk's own range may hold anything."""
    for staged in (True, False):
        tensors = Tensors(t1=30)
        tensors.bytes[1][:] = b"." * 30
        with opened(tmp_path, tensors, staged=staged) as (door, token), Rogue(door, token) as rogue:
            put(rogue.writer, b"one", offset=10)
            rogue.up.view[door.shape.payload_at] ^= 1
            answer = rogue.put(1, 1, 3)
            assert (answer.a, answer.b) == (0, 1)
            assert answer.text == "chunk 0: it is corrupt: the payload's checksum does not fit"
            left = bytes(tensors.bytes[1])
            assert left == b"." * 30 if staged else left[:10] + left[13:] == b"." * 27


def test_a_peer_cannot_cut_the_memory_off(tmp_path: Path) -> None:
    """A truncated file would kill the service with SIGBUS at its next look; the seals refuse that."""
    tensors = Tensors(t1=30)
    with opened(tmp_path, tensors) as (door, token), Rogue(door, token) as rogue:
        for fd in rogue.fds:
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
        put(rogue.writer, b"one")
        assert rogue.put(1, 1, 3).a == 3


def stop_after_three(rogue: Rogue) -> None:
    rogue.link.send(Message(Kind.PUT, 1, 10, 30))


def leave_a_slot_odd(rogue: Rogue) -> None:
    chunk_at(rogue, 0, 1)
    rogue.link.send(Message(Kind.PUT, 1, 10, 30))


def ring_for_ever(rogue: Rogue) -> None:
    rogue.link.send(Message(Kind.PUT, 1, 10, 30))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        try:
            rogue.link.ring()
        except Gone:
            return
        time.sleep(0.001)
    raise AssertionError("the service goes on listening to a peer that does nothing but ring")


def read_nothing(rogue: Rogue) -> None:
    rogue.link.send(Message(Kind.GET, 1, 0, 0, b"".join(number.to_bytes(8, "little") for number in (2, 0, 9 * PAGE))))


def claim_to_have_read_all(rogue: Rogue) -> None:
    rogue.down.view.cast("Q")[0] = 1 << 40
    read_nothing(rogue)


def talk_nonsense(rogue: Rogue) -> None:
    rogue.sock.send(b"\xff" * 100, timeout_s=1)


def talk_out_of_turn(rogue: Rogue) -> None:
    rogue.link.send(Message(Kind.DONE, 1))


def talk_without_end(rogue: Rogue) -> None:
    with suppress(Gone):
        for number in range(40):
            rogue.link.send(Message(Kind.PUT, number, 10, 30))


ROGUES: dict[str, tuple[Callable[[Rogue], None], str]] = {
    "stops in the middle": (stop_after_three, "chunk 0 did not come"),
    "leaves a slot odd": (leave_a_slot_odd, "chunk 0 did not come"),
    "rings and does nothing else": (ring_for_ever, "chunk 0 did not come"),
    "asks and does not read": (read_nothing, "was taken out"),
    "has read what was not written": (claim_to_have_read_all, "cursor"),
    "talks nonsense": (talk_nonsense, "not a message of the data channel"),
    "talks out of turn": (talk_out_of_turn, "DONE makes no sense here"),
    "does not wait for answers": (talk_without_end, "without waiting for answers"),
}


@pytest.mark.parametrize("name", list(ROGUES))
def test_a_rogue_loses_its_channel_and_nobody_else_anything(tmp_path: Path, name: str) -> None:
    act, words = ROGUES[name]
    tensors = Tensors(t1=30, t2=9 * PAGE)
    with opened(tmp_path, tensors, patience_s=QUICK_S) as (door, token):
        good = Tunnel(door.path, door.offer(Guest(SESSION + 1, tensors.place, tensors.done)))
        with Rogue(door, token) as rogue:
            act(rogue)
            answer = last_words(rogue)
            assert answer is not None
            assert words in answer.text
            end = time.monotonic() + 5
            while door.channels > 1 and time.monotonic() < end:
                time.sleep(0.005)
            assert door.channels == 1
            assert (door.counters["lost"], tensors.idle()) == (1, True)
        with good:
            assert good.upload([(1, 0, b"still here")]) == 10


def last_words(rogue: Rogue) -> Message | None:
    """The service's FAIL, if it could be sent, behind whatever it said before."""
    found = None
    try:
        while True:
            message = unpack(rogue.sock.receive(4096, timeout_s=5).data)
            found = message if message.kind is Kind.FAIL else found
    except Gone:
        return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 4 * 8 - 1), st.integers(0, VOID)), max_size=5), st.integers(0, 5), st.data())
def test_corrupt_headers_never_reach_another_tensor(
    tmp_path: Path, changes: list[tuple[int, int]], chunks: int, data: st.DataObject
) -> None:
    """Any words in the headers of a transfer: tensor 2 stays as it is, and the service answers or hangs up in time."""
    tensors = Tensors(t1=30, t2=30)
    with opened(tmp_path, tensors, patience_s=0.02) as (door, token), Rogue(door, token) as rogue:
        for number in range(min(chunks, SMALL.slots)):
            put(rogue.writer, b"one", 1, number, 1, number * 3)
        for word, value in changes:
            rogue.up.view.cast("Q")[PAGE // 8 + word] = value
        rogue.link.send(Message(Kind.PUT, 1, chunks, 3 * chunks))
        answer = unpack(rogue.sock.receive(4096, timeout_s=5).data)
        while answer.kind is Kind.WAKE:
            answer = unpack(rogue.sock.receive(4096, timeout_s=5).data)
        assert answer.kind in (Kind.DONE, Kind.FAIL)
        assert answer.kind is Kind.FAIL or answer.a <= 3 * chunks
    assert tensors.bytes[2] == bytes(30)
    assert set(bytes(tensors.bytes[1])) <= set(b"one\0")
    (tmp_path / "data").unlink(missing_ok=True)


# -- coming in


def test_a_token_is_good_once_and_for_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Tensors(t1=30)
    with opened(tmp_path, tensors) as (door, token):
        Tunnel(door.path, token).close()
        stale = door.offer(Guest(SESSION, tensors.place))
        other = door.offer(Guest(SESSION + 1, tensors.place))
        door.end(SESSION)
        monkeypatch.setattr(door_module, "TOKEN_LIFE_S", 0.0)
        late = door.offer(Guest(SESSION + 2, tensors.place))
        for bad in (token, stale, late, b"", b"x" * 32):
            with pytest.raises(ChannelError, match="the token is not valid, or not any longer"):
                Tunnel(door.path, bad)
        Tunnel(door.path, other).close()
        assert door.counters["refused_clients"] == 5


def test_another_version_and_a_silent_client_do_not_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, Tensors()) as (door, token):
        for word in (Message(Kind.HELLO, 0, VERSION + 1, 0, token), Message(Kind.PUT)):
            with connect(door.path, timeout_s=1) as sock:
                sock.send(word.pack(), timeout_s=1)
                answer = unpack(sock.receive(4096, timeout_s=5).data)
                assert (answer.kind, answer.text) == (Kind.FAIL, "this service speaks version 1 of the data channel")
        monkeypatch.setattr(door_module, "HELLO_S", 0.05)
        with connect(door.path, timeout_s=1) as sock:
            assert unpack(sock.receive(4096, timeout_s=5).data).kind is Kind.FAIL
            with pytest.raises(Gone):
                sock.receive(4096, timeout_s=5)
        monkeypatch.undo()
        Tunnel(door.path, token).close()


def test_only_so_many_channels(tmp_path: Path) -> None:
    tensors = Tensors(t1=1)
    door = Door(str(tmp_path / "data"), shape=SMALL, max_channels=2)
    guest = Guest(SESSION, tensors.place)
    with Tunnel(door.path, door.offer(guest)):
        door.offer(guest)
        with pytest.raises(AccelError, match="2 data channels are open already") as caught:
            door.offer(guest)
        assert caught.value.kind == "out_of_resources"
    door.close()
    with pytest.raises(AccelError):
        door.offer(guest)


def test_no_memory_for_a_ring_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, size: int) -> SharedMemory:
        raise AccelError(f"no shared memory of {size} bytes: No space left on device", kind="out_of_memory")

    with opened(tmp_path, Tensors()) as (door, token):
        monkeypatch.setattr(door_module, "create", full)
        with pytest.raises(ChannelError, match="No space left on device"):
            Tunnel(door.path, token)
