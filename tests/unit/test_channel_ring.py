"""The ring of slots: half-written, torn, replayed and corrupt records (cases RPC-04 a to e)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

pytest.importorskip("crc32c", reason="the data channel needs the extra umd: pip install 'accelctl[umd]'")
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from accelctl.hal.sharedmem import create
from accelctl.umd.channel.ring import BLOCK, Look, Reader, Shape, State, Writer, pieces
from tests.channelkit import HEADER, PAGE, VOID, Chunk, Memory, put, said
from tests.helpers import ROOT, environment

TURNS = 50_000
"""Of case RPC-04 c, which says a million: that many take half a minute. The test with two processes makes as many more
as fit into RACE_S."""
RACE_S = 1.0
CASE = Shape(1, 64)
"""The ring of the case: one slot of 64 bytes."""


def read(reader: Reader) -> tuple[Look, bytes]:
    """One look, and the payload into private memory when there is one."""
    found = reader.look()
    if found.chunk is None:
        return found, b""
    into = memoryview(bytearray(found.chunk.length))
    taken = reader.take(into)
    return (found, bytes(into)) if taken.state is State.READY else (taken, b"")


def test_records_come_out_as_they_went_in_round_after_round() -> None:
    memory = Memory(Shape(3, 64))
    writer, reader = memory.writer(), memory.reader()
    for number in range(20):
        data = bytes([number]) * (number * 3)
        put(writer, data, transfer=9, position=number, tensor_id=number << 40, offset=number << 33)
        found, got = read(reader)
        assert (found.chunk, got) == (Chunk(9, number, number << 40, number << 33, len(data)), data)
    assert reader.look().state is State.EMPTY
    assert reader.cursor == writer.head == 20


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 7])
def test_a_payload_that_the_reader_copies_in_blocks(size: int) -> None:
    memory, data = Memory(Shape(1, 3 * BLOCK)), os.urandom(size)
    writer, reader = memory.writer(), memory.reader()
    put(writer, data)
    assert read(reader)[1] == data
    for wrong in {0, size // 2, size - 1}:
        put(writer, data)
        memory.payload(0)[wrong] ^= 1
        assert read(reader)[0].state is State.CORRUPT


class Overtaking(Reader):
    """Something happens between the reader's first and second look at the sequence: RPC-04 a."""

    def __init__(self, memory: Memory, sequence: int, *, lossless: bool) -> None:
        super().__init__(memory.view, memory.shape, lossless=lossless)
        self._memory, self._sequence = memory, sequence

    def take(self, into: memoryview) -> Look:
        self._memory.sequence(0, self._sequence)
        return super().take(into)


@pytest.mark.parametrize("lossless", [True, False])
def test_a_sequence_that_changed_while_copying(lossless: bool) -> None:
    """RPC-04 a: it sees 4, copies, then sees 6: the copy is dropped, and the slot is read again."""
    memory = Memory(CASE)
    writer = memory.writer()
    put(writer, b"first")
    put(writer, b"second")
    reader = Overtaking(memory, 6, lossless=lossless)
    reader.cursor = 1  # the one with sequence 4
    found, got = read(reader)
    assert (found.state, found.records, got) == (State.TORN, 1, b"")
    memory.header(0, 2, Chunk(1, 2, 1, 0, 5), crc32c(b"third"))
    memory.payload(0)[:5] = b"third"
    assert read(reader) == (Look(State.READY, Chunk(1, 2, 1, 0, 5)), b"third")


def test_a_header_that_changed_while_it_was_read_is_read_again() -> None:
    memory = Memory(CASE)
    put(memory.writer(), b"x" * 64)
    reader = memory.reader()
    words = reader._words

    class Flicker:
        def __init__(self) -> None:
            self.answers = [2, 4]

        def __getitem__(self, index: int) -> int:
            return self.answers.pop(0) if self.answers else words[index]

        def __setitem__(self, index: int, value: int) -> None:
            words[index] = value

    reader._words = Flicker()  # type: ignore[assignment]
    assert reader.look() == Look(State.TORN)
    assert read(reader)[1] == b"x" * 64


def test_an_odd_sequence_is_never_returned() -> None:
    """RPC-04 b."""
    memory = Memory(CASE)
    writer, reader = memory.writer(), memory.reader()
    for _ in range(2):
        put(writer, b"old")
        assert read(reader)[1] == b"old"
    memory.sequence(0, 5)
    for _ in range(3):
        assert reader.look() == Look(State.WRITING)
    assert reader.cursor == 2


def overrun(writer: Writer, turns: int) -> None:
    for turn in range(turns):
        put(writer, bytes([65 + turn % 26]) * 64, position=turn)


def test_a_writer_that_does_not_wait() -> None:
    """RPC-04 c: every record that is returned is whole, and the lost ones are counted."""
    memory = Memory(CASE)
    writer, reader = memory.writer(), memory.reader(lossless=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=overrun, args=(writer, TURNS))
    thread.start()
    try:
        whole, lost = gather(reader, TURNS)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert whole + lost == TURNS
    assert whole > 0
    assert lost > 0


def gather(reader: Reader, turns: int) -> tuple[int, int]:
    """(whole records, lost ones), until so many have gone by; every whole one is 64 equal letters."""
    whole = lost = 0
    while reader.cursor < turns:
        more, missed = once(reader)
        whole, lost = whole + more, lost + missed
    return whole, lost


def once(reader: Reader) -> tuple[int, int]:
    found, got = read(reader)
    assert found.state is not State.CORRUPT, found
    if found.state is not State.READY:
        return 0, found.records
    assert found.chunk is not None
    assert got == bytes([65 + found.chunk.position % 26]) * 64
    return 1, 0


RACER = """
import sys, time
from accelctl.hal.sharedmem import adopt
from accelctl.umd.channel.ring import Shape, Writer
from tests.channelkit import put
memory = adopt(int(sys.argv[1]), Shape(1, 64).size_bytes, "race")
writer, end = Writer(memory.view, Shape(1, 64)), time.monotonic() + float(sys.argv[2])
print("go", flush=True)
while time.monotonic() < end:
    for turn in range(writer.head, writer.head + 20):
        put(writer, bytes([65 + turn % 26]) * 64, position=turn)
    time.sleep(1e-5)  # the reader needs longer for a record than the writer: without a pause it would never get one
print(writer.head, flush=True)
"""


def test_a_writer_in_another_process_that_does_not_wait() -> None:
    """RPC-04 c with two processes, which really run at one time."""
    with create("race", CASE.size_bytes) as memory:
        reader = Reader(memory.view, CASE, lossless=False)
        os.set_inheritable(memory.fd, True)
        command = [sys.executable, "-c", RACER, str(memory.fd), str(RACE_S)]
        writing = subprocess.Popen(
            command, pass_fds=[memory.fd], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert said(writing) == "go"
            whole = lost = 0
            while writing.poll() is None:
                more, missed = once(reader)
                whole, lost = whole + more, lost + missed
        finally:
            writing.kill()
            turns = int(said(writing) or -1)
            writing.communicate()
        more, missed = gather(reader, turns)
        reader.release()
    assert whole + lost + more + missed == turns
    assert whole > 0
    assert lost > 0


@pytest.mark.parametrize(
    ("length", "words"),
    [(0xFFFFFFFF, "length 4294967295, a slot has 64 bytes"), (65, "length 65, a slot has 64 bytes")],
)
def test_a_length_that_no_slot_has(length: int, words: str) -> None:
    """RPC-04 d: reported, and the reader goes on at the next slot."""
    memory = Memory(Shape(2, 64))
    writer, reader = memory.writer(), memory.reader()
    put(writer, b"one")
    put(writer, b"two")
    memory.header(0, 0, Chunk(1, 0, 1, 0, length), crc32c(b"one"))
    assert read(reader)[0] == Look(State.CORRUPT, None, 1, words)
    assert read(reader)[1] == b"two"


def test_a_length_of_zero_is_legal() -> None:
    """RPC-04 d."""
    memory = Memory(CASE)
    put(memory.writer(), b"")
    assert read(memory.reader()) == (Look(State.READY, Chunk(1, 0, 1, 0, 0)), b"")


CHANGES = {
    "a bit of the payload": lambda memory: memory.payload(0).__setitem__(1, 0xFF),
    "a bit of the header": lambda memory: memory.view.__setitem__(PAGE + 8 + 24, 0xFF),
    "the header's checksum": lambda memory: memory.view.__setitem__(PAGE + HEADER - 1, 0x55),
    "a record of another number": lambda memory: memory.header(0, 2, Chunk(1, 0, 1, 0, 3), crc32c(b"one")),
    "a sequence from the future": lambda memory: memory.sequence(0, 4),
    "a sequence that nobody counted to": lambda memory: memory.sequence(0, (1 << 64) - 2),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_record_that_was_changed_is_reported_and_the_next_one_read(change: str) -> None:
    memory = Memory(Shape(2, 64))
    writer, reader = memory.writer(), memory.reader()
    put(writer, b"one")
    put(writer, b"two")
    CHANGES[change](memory)
    assert read(reader)[0].state is State.CORRUPT
    assert read(reader)[1] == b"two"


def test_a_record_written_again_with_an_old_sequence_is_not_there() -> None:
    """Replay: the whole slot as it was one round before."""
    memory = Memory(Shape(2, 64))
    writer, reader = memory.writer(), memory.reader()
    put(writer, b"one")
    before = bytes(memory.view[PAGE : PAGE + HEADER])
    read(reader)
    put(writer, b"two")
    read(reader)
    memory.view[PAGE : PAGE + HEADER] = before
    assert reader.look() == Look(State.EMPTY)
    memory.sequence(0, 4)  # and with the sequence that is due
    assert reader.look().detail == "it calls itself record 0"


def test_a_dead_writers_slot_is_repaired_by_the_next_one() -> None:
    """RPC-04 e: killed between 5 and 6."""
    memory = Memory(Shape(2, 64))
    writer, reader = memory.writer(), memory.reader()
    for number in range(5):
        put(writer, bytes([number]))
        if number < 4:
            assert read(reader)[1] == bytes([number])
    memory.sequence(0, 5)
    memory.payload(0)[:4] = b"half"
    assert reader.look() == Look(State.WRITING)
    successor = memory.writer()
    assert (successor.repaired, successor.head) == (1, 5)
    assert read(reader)[0] == Look(State.VOID, None, 1)
    put(successor, b"next")
    assert read(reader)[1] == b"next"
    assert memory.writer().repaired == 0


def test_the_next_writer_goes_on_where_nothing_is_to_be_repaired() -> None:
    memory = Memory(Shape(3, 64))
    for number in range(7):
        put(memory.writer(), bytes([number]))
    reader = memory.reader(lossless=False)
    assert read(reader)[0] == Look(State.LOST, None, 4)
    assert [read(reader)[1] for _ in range(3)] == [b"\4", b"\5", b"\6"]


def test_a_ring_that_nobody_can_have_written_is_refused_by_a_writer() -> None:
    memory = Memory(CASE)
    memory.sequence(0, VOID)
    with pytest.raises(ValueError, match="nobody counted"):
        memory.writer()


@pytest.mark.parametrize(("cursor", "room"), [(0, 1), (2, 3), (3, 4), (4, None), (1 << 63, None)])
def test_room_and_a_cursor_that_cannot_be_true(cursor: int, room: int | None) -> None:
    memory = Memory(Shape(4, 64))
    writer = memory.writer()
    for _ in range(3):
        put(writer, b"x")
    memory.words[0] = cursor
    if room is None:
        with pytest.raises(ValueError, match="cursor"):
            writer.room()
    else:
        assert writer.room() == room


def test_what_does_not_fit_into_a_slot_is_not_written() -> None:
    memory = Memory(CASE)
    writer = memory.writer()
    for data, length in ((b"x" * 65, 65), (b"xy", 1)):
        with pytest.raises(ValueError, match="bytes for"):
            writer.put(Chunk(1, 0, 1, 0, length), memoryview(data))
    assert memory.reader().look().state is State.EMPTY


def test_memory_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="too few"):
        Writer(memoryview(bytearray(CASE.size_bytes - 1)), CASE)


WORDS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 5, 64, 65, 0xFFFFFFFF, 1 << 48, VOID, VOID - 1]), st.integers(0, VOID)
)


@given(
    st.lists(st.tuples(st.integers(0, 15), WORDS), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_no_header_makes_the_reader_return_what_was_not_sent(
    changes: list[tuple[int, int]], honest_checksum: bool, lossless: bool
) -> None:
    """Any words in any place of two headers, with and without a checksum that fits them: what comes out as READY has
    the checksum that its header says, in at most a slot; the reader ends, and reads the third slot if it gets there."""
    memory = Memory(Shape(3, 64))
    writer, reader = memory.writer(), memory.reader(lossless=lossless)
    for data in (b"one", b"two", b"three"):
        put(writer, data)
    for place, value in changes:
        memory.words[PAGE // 8 + place] = value
        if honest_checksum:
            at = PAGE + place // 8 * HEADER + 8
            _seal(memory, at)
    came = []
    for _ in range(5):
        found, got = read(reader)
        if found.state is State.READY:
            assert found.chunk is not None
            assert found.chunk.length == len(got) <= 64
            came.append(got)
        assert reader.cursor == memory.words[0]
    if lossless and not any(word % 8 == 0 for word, _ in changes):
        assert came[-1] == b"three"
    if not honest_checksum:
        assert set(came) <= {b"one", b"two", b"three"}


def _seal(memory: Memory, at: int) -> None:
    """Give the header at ``at`` a checksum that fits."""
    body = memory.view[at : at + HEADER - 12]
    memory.view[at + HEADER - 12 : at + HEADER - 8] = crc32c(body).to_bytes(4, sys.byteorder)


@given(st.integers(0, 1000), st.integers(1, 300))
def test_pieces_are_the_whole(size: int, slot_bytes: int) -> None:
    data = memoryview(bytes(range(256)) * 4)[:size]
    found = list(pieces(data, slot_bytes))
    assert b"".join(piece for _, piece in found) == data
    assert [at for at, _ in found] == list(range(0, max(1, size), slot_bytes))
    assert all(piece.nbytes == slot_bytes for _, piece in found[:-1])
