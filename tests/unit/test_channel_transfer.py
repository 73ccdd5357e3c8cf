"""Tensors through the data channel, with peers that do what they should."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("crc32c", reason="the data channel needs the extra umd: pip install 'accelctl[umd]'")
from accelctl.errors import AccelError, UsageError
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.channel.link import Link
from accelctl.umd.channel.messages import MAX_PARTS, ChannelError, Refused
from accelctl.umd.channel.ring import Reader, Shape
from accelctl.umd.channel.transfer import Sender, Source, bytes_of, count_chunks, flat
from accelctl.umd.channel.tunnel import Tunnel
from tests.channelkit import PAGE, SESSION, SMALL, Held, Memory, Tensors, opened


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = Held()
    yield
    assert before.settled(), before.more()


def pattern(size: int, seed: int = 1) -> bytearray:
    return bytearray((seed + at * 7 + (at >> 8) * 3) % 256 for at in range(size))


SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE, 23 * PAGE + 5]


@pytest.mark.parametrize("staged", [False, True])
def test_there_and_back(tmp_path: Path, staged: bool) -> None:
    """From nothing to several rounds of the ring."""
    tensors = Tensors(**{f"t{size}": size for size in SIZES})
    with opened(tmp_path, tensors, staged=staged) as (door, token):
        with Tunnel(door.path, token) as tunnel:
            for size in SIZES:
                assert tunnel.upload([(size, 0, pattern(size))]) == size
                assert tensors.bytes[size] == pattern(size)
                back = bytearray(size)
                assert tunnel.download([(size, 0, back)]) == size
                assert back == pattern(size)
        door.close()
        assert door.counters["chunks"] == count_chunks(SIZES, PAGE)
        assert door.counters["bytes"] == sum(SIZES)
        assert (door.counters["refused"], door.counters["lost"]) == (0, 0)


class SlowPeer:
    """The link to a side that takes one chunk whenever the sender waits."""

    patience_s = 5.0

    def __init__(self, reader: Reader) -> None:
        self._reader, self.rings = reader, 0

    def ring(self) -> None:
        self.rings += 1

    def progress(self, *_: object) -> None:
        assert self._reader.look().chunk is not None
        self._reader.skip()


def test_a_full_ring_needs_no_bell() -> None:
    """Whoever has a ring full of unread chunks is awake: a bell for each quarter of it, however slow that side is."""
    memory, chunks = Memory(Shape(16, PAGE)), 64
    peer = SlowPeer(memory.reader())
    Sender(memory.writer(), cast(Link, peer)).send(1, [Source(1, 0, memoryview(bytes(chunks * PAGE)))])
    assert peer.rings == chunks // 4 + 1


def test_many_tensors_and_ranges_in_one_transfer(tmp_path: Path) -> None:
    tensors = Tensors(t1=3 * PAGE, t2=10, t3=0)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        tunnel.upload([(1, 5, pattern(2 * PAGE)), (2, 0, b"0123456789"), (3, 0, b""), (2, 4, b"ab")])
        assert tensors.bytes[1] == bytes(5) + pattern(2 * PAGE) + bytes(PAGE - 5)
        assert tensors.bytes[2] == b"0123ab6789"
        one, other, none = bytearray(PAGE), bytearray(3), bytearray()
        assert tunnel.download([(1, 6, one), (2, 3, other), (3, 0, none), (1, 6, one)]) == 2 * PAGE + 3
        assert one == pattern(PAGE + 1)[1:]
        assert other == b"3ab"
        assert tunnel.upload([]) == tunnel.download([]) == 0


def test_more_parts_than_a_message_holds(tmp_path: Path) -> None:
    count = 2 * MAX_PARTS + 1
    tensors = Tensors(t1=count)
    tensors.bytes[1][:] = pattern(count)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        back = [bytearray(1) for _ in range(count)]
        assert tunnel.download([(1, at, piece) for at, piece in enumerate(back)]) == count
        assert b"".join(back) == pattern(count)


def test_arrays_of_any_shape_but_in_one_piece(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    tensors = Tensors(t1=240)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        tunnel.upload([(1, 0, array)])
        assert tensors.bytes[1] == array.tobytes()
        back = np.zeros((5, 12), np.int32)
        tunnel.download([(1, 0, back)])
        assert back.tobytes() == array.tobytes()
        tunnel.upload([(1, 0, np.zeros((0, 3)))])
        with pytest.raises(ValueError, match="does not lie in one piece"):
            tunnel.upload([(1, 0, array.T)])
        with pytest.raises(ValueError, match="cannot be written"):
            tunnel.download([(1, 0, bytes(240))])
        assert tunnel.download([(1, 0, back)]) == 240  # none of that broke it


REFUSED = {
    "not this session's": ([(9, 0, b"x")], "tensor 9 is not of this session"),
    "one byte too long": ([(1, 0, bytes(11))], "bytes 0 to 11 of tensor 1, which has 10"),
    "from its end on": ([(1, 10, b"x")], "bytes 10 to 11 of tensor 1, which has 10"),
    "from far behind": ([(1, (1 << 64) - 1, b"x")], f"bytes {(1 << 64) - 1} to {1 << 64} of tensor 1, which has 10"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_refused_leaves_the_rest_and_the_channel_alone(tmp_path: Path, case: str) -> None:
    parts, words = REFUSED[case]
    tensors = Tensors(t1=10, t2=10)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        with pytest.raises(Refused, match=f"1 of 2 chunks were refused; .*{words}"):
            tunnel.upload([*parts, (2, 0, b"0123456789")])
        assert tensors.bytes[1] == bytes(10)
        assert tensors.bytes[2] == b"0123456789"
        with pytest.raises(Refused, match=words):
            tunnel.download([(2, 0, bytearray(10)), *((t, at, bytearray(len(data))) for t, at, data in parts)])
        back = bytearray(10)
        assert tunnel.download([(2, 0, back)]) == 10
        assert back == b"0123456789"


@pytest.mark.parametrize("error", [AccelError("it was freed"), KeyError("it was freed"), ValueError("it was freed")])
def test_a_place_that_says_no_for_any_reason(tmp_path: Path, error: Exception) -> None:
    tensors = Tensors(t1=10)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        tensors.fails = error
        with pytest.raises(Refused, match="it was freed"):
            tunnel.upload([(1, 0, b"x")])
        with pytest.raises(Refused, match="it was freed"):
            tunnel.download([(1, 0, bytearray(1))])
        tensors.fails = None
        assert tunnel.upload([(1, 0, b"x")]) == 1


def test_a_tensor_that_may_only_be_read(tmp_path: Path) -> None:
    door = Door(str(tmp_path / "data"), shape=SMALL)
    token = door.offer(Guest(SESSION, lambda tensor_id: (memoryview(b"0123456789"), 10)))
    with Tunnel(door.path, token) as tunnel:
        with pytest.raises(Refused, match="tensor 1 cannot be written from here"):
            tunnel.upload([(1, 0, b"x")])
        back = bytearray(2)
        tunnel.download([(1, 3, back)])
        assert back == b"34"
    door.close()


def test_a_place_that_promises_more_than_it_has() -> None:
    with pytest.raises(ValueError, match="tensor 3: 4 bytes can be reached, it has 5"):
        bytes_of(memoryview(bytearray(4)), 5, 3)
    assert bytes_of(memoryview(bytearray(4)), 3, 3).nbytes == 3
    assert flat(memoryview(bytearray(8)).cast("H")).nbytes == 8


def test_threads_share_a_tunnel(tmp_path: Path) -> None:
    size = 9 * PAGE
    tensors = Tensors(**{f"t{number}": size for number in range(6)})
    failed: list[int] = []

    def work(tunnel: Tunnel, number: int) -> None:
        for turn in range(5):
            data, back = pattern(size, number * 5 + turn), bytearray(size)
            tunnel.upload([(number, 0, data)])
            tunnel.download([(number, 0, back)])
            if back != data:
                failed.append(number)

    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        threads = [threading.Thread(target=work, args=(tunnel, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_tunnel_does_not_survive_a_fork(tmp_path: Path) -> None:
    tensors = Tensors(t1=10)
    with opened(tmp_path, tensors) as (door, token), Tunnel(door.path, token) as tunnel:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            try:
                tunnel.upload([(1, 0, b"x")])
            except UsageError as error:
                tunnel.close()
                os._exit(3 if "before the fork" in error.message else 4)
            finally:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert tunnel.upload([(1, 0, b"x")]) == 1


def test_a_closed_tunnel_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, Tensors(t1=1)) as (door, token):
        tunnel = Tunnel(door.path, token)
        tunnel.close()
        tunnel.close()
        with pytest.raises(ChannelError, match="it is closed; open a new one"):
            tunnel.upload([(1, 0, b"x")])


def test_large_chunks_and_few_slots(tmp_path: Path) -> None:
    size = 3 << 20
    for shape in (Shape(1, 64 << 10), Shape(2, 256 << 10), Shape(16, 256 << 10)):
        tensors = Tensors(t1=size)
        data = bytes(pattern(4096)) * (size // 4096)
        with opened(tmp_path, tensors, shape=shape) as (door, token), Tunnel(door.path, token) as tunnel:
            tunnel.upload([(1, 0, data)])
            assert tensors.bytes[1] == data
