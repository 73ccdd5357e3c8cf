"""A ring of slots in shared memory: one writer, one reader, each with its own idea of where it is.

Record ``n`` goes to slot ``n % slots``. A slot's sequence number says what is in it: 0 nothing yet, odd: being
written, ``2 * (n // slots) + 2``: record ``n``, complete. The writer stores the odd number, payload, header, the even
number, in this order; the reader reads the sequence, copies, and reads it again. Nothing here waits or calls the
system: what to do about a slot that is not ready is the caller's business.

Memory order: x86-64 keeps the order of stores and of loads. Elsewhere a reader may see an even number before all of the
bytes; the checksums over header and payload find that, and the reader looks again (:data:`LOOKS`) before it says
corrupt. A sequence number is one aligned 64-bit store and load: ``memoryview.cast("Q")`` does that, ``struct`` with "<"
goes byte by byte.

Layout, native byte order (both sides are one machine): a page of control words, of which word 0 is the reader's cursor;
64 bytes of header per slot, filled up to a page; the payloads, from PHASE on. A header is: sequence, record, transfer,
position, tensor id, offset, length (eight bytes each), CRC32C of the payload, CRC32C of the header from the record on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

PAGE = 4096
HEADER = 64
LOOKS = 3
"""How often a record with a wrong checksum is copied before it counts as corrupt."""
PHASE = PAGE // 2
"""Where in a page payloads start. Device memory starts at a page, allocations of malloc 16 or 32 bytes behind one. A
copy to an address that is, modulo a page, less than 64 bytes above the source's runs at a fifteenth of the speed on AMD
Zen 3 and 4 ("rep movsb", glibc bug 30994; measured here: 2 instead of 30 GB/s)."""
BLOCK = 128 << 10
"""The reader copies and checks so many bytes at a time. Of a whole slot, what was copied, the copy, and what the writer
writes meanwhile push each other out of the caches: two thirds of the speed (measured, Zen 4, slots of 256 KiB)."""
VOID = (1 << 64) - 1
"""Length of a record that a dead writer did not finish and its successor closed."""
_BODY = struct.Struct("=6QI")
_CRC = struct.Struct("=I")
_LAST = 1 << 48  # nobody has counted further than that


class Shape(NamedTuple):
    """How many slots, and how many bytes of payload each has."""

    slots: int
    slot_bytes: int

    @property
    def payload_at(self) -> int:
        """Byte at which the first payload starts."""
        return PAGE + -(-self.slots * HEADER // PAGE) * PAGE + PHASE

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole ring, in whole pages."""
        return -(-(self.payload_at + self.slots * self.slot_bytes) // PAGE) * PAGE


class Chunk(NamedTuple):
    """The header of a record, copied and checked against the ring (not against any tensor)."""

    transfer: int
    position: int
    tensor_id: int
    offset: int
    length: int


class State(Enum):
    """What the reader found in its slot."""

    READY = "ready"
    EMPTY = "not written yet"
    WRITING = "being written"
    TORN = "was overwritten while it was read"
    LOST = "was overwritten before it was read"
    CORRUPT = "is corrupt"
    VOID = "was left unfinished by a writer that died"


class Look(NamedTuple):
    """One look at the next record. READY: ``chunk`` says what it is. CORRUPT, LOST and VOID are done with: the cursor
    has moved on, by ``records`` of them. EMPTY, WRITING, TORN: look again later."""

    state: State
    chunk: Chunk | None = None
    records: int = 0
    detail: str = ""


_EMPTY, _WRITING, _TORN = Look(State.EMPTY), Look(State.WRITING), Look(State.TORN)
_TAKEN, _OVERTAKEN = Look(State.READY, None, 1), Look(State.TORN, None, 1)
_BAD = Look(State.CORRUPT, None, 1, "the payload's checksum does not fit")


class _Ring:
    """The views that both sides need. ``region`` is the shared memory, or any writable bytes of the right size."""

    def __init__(self, region: memoryview, shape: Shape) -> None:
        if shape.slots < 1 or shape.slot_bytes < 1 or region.nbytes < shape.size_bytes:
            raise ValueError(f"{region.nbytes} bytes are too few for {shape}")
        self.shape = shape
        self._region = region.cast("B")
        self._words = self._region[: shape.payload_at].cast("Q")
        start, size = shape.payload_at, shape.slot_bytes
        self._payloads = [self._region[start + i * size : start + (i + 1) * size] for i in range(shape.slots)]
        self._headers = [PAGE + i * HEADER for i in range(shape.slots)]

    def release(self) -> None:
        """Let go of the memory, so that it can be unmapped."""
        for view in (*self._payloads, self._words, self._region):
            view.release()


class Writer(_Ring):
    """The writing side. ``head`` is the number of the next record."""

    def __init__(self, region: memoryview, shape: Shape) -> None:
        """Go on behind what was written before; a slot that a dead writer left odd is closed as void."""
        super().__init__(region, shape)
        self.repaired = 0
        self.head = max((self._resume(slot) for slot in range(shape.slots)), default=0)

    def _resume(self, slot: int) -> int:
        """The number behind the record in this slot; repairs it."""
        word = self._headers[slot] // 8
        sequence = self._words[word]
        if sequence > _LAST:
            raise ValueError(f"slot {slot}: nobody counted to sequence {sequence}")
        if sequence == 0:
            return 0
        number = (sequence - 1) // 2 * self.shape.slots + slot
        if sequence % 2:
            self._describe(slot, number, Chunk(0, 0, 0, 0, VOID), 0)
            self._words[word] = sequence + 1
            self.repaired += 1
        return number + 1

    def room(self) -> int:
        """How many records can be written before one is overwritten that the reader has not had.

        The cursor is the reader's word: ValueError where it cannot be true.
        """
        unread = self.head - self._words[0]
        if not 0 <= unread <= self.shape.slots:
            raise ValueError(f"the reader's cursor is at {self._words[0]}, the writer at {self.head}")
        return self.shape.slots - unread

    def put(self, chunk: Chunk, data: memoryview) -> None:
        """Write one record, whether or not there is room. ``chunk.length`` bytes. Their checksum is taken where they
        came from, so it covers the copying, and after that, because they are in the cache then."""
        if data.nbytes != chunk.length or chunk.length > self.shape.slot_bytes:
            raise ValueError(f"{data.nbytes} bytes for {chunk}, slots of {self.shape.slot_bytes}")
        slot, turn = self.head % self.shape.slots, self.head // self.shape.slots
        word = self._headers[slot] // 8
        self._words[word] = 2 * turn + 1
        self._payloads[slot][: chunk.length] = data
        self._describe(slot, self.head, chunk, crc32c(data))
        self._words[word] = 2 * turn + 2
        self.head += 1

    def _describe(self, slot: int, number: int, chunk: Chunk, checksum: int) -> None:
        body = _BODY.pack(number, *chunk, checksum)
        at = self._headers[slot] + 8
        self._region[at : at + HEADER - 8] = body + _CRC.pack(crc32c(body))


class Reader(_Ring):
    """The reading side. ``cursor`` is the number of the next record, and known to the writer.

    One record: :meth:`look` until it is READY, then :meth:`take` its payload or :meth:`skip` it. What is READY is a
    header that was copied, so what was checked stays so; nothing of the payload was looked at yet.
    lossless: the writer waits for room, so a record that was overwritten is a fault and not a matter of speed.
    """

    def __init__(self, region: memoryview, shape: Shape, *, lossless: bool = True) -> None:
        super().__init__(region, shape)
        self.cursor = 0
        self.lossless = lossless
        self._checksum = 0
        self._length = 0

    def ready(self) -> bool:
        """Is the next record's slot worth a look?"""
        turn, slot = divmod(self.cursor, self.shape.slots)
        return self._words[self._headers[slot] // 8] >= 2 * turn + 2

    def look(self) -> Look:
        """What is in the next record's slot. Never waits. Checked: sequence, record number, header checksum, length."""
        found = self._header()
        for _ in range(LOOKS - 1):
            if found.state is not State.CORRUPT:
                break
            found = self._header()
        if found.records:
            self._advance(found.records)
        return found

    def take(self, into: memoryview) -> Look:
        """Copy the payload of the record that was READY to ``into``, as long as the payload, and go on to the next.

        READY: ``into`` holds what was sent. TORN and CORRUPT: it holds anything, and the record is lost. The checksum
        is taken over ``into``, because the slot may be changed at any time.
        """
        turn, slot = divmod(self.cursor, self.shape.slots)
        word, payload = self._headers[slot] // 8, self._payloads[slot]
        found = _BAD
        for _ in range(LOOKS):
            checksum = 0
            for at in range(0, self._length, BLOCK):
                block = into[at : at + BLOCK]
                block[:] = payload[at : min(at + BLOCK, self._length)]
                checksum = crc32c(block, checksum)
            if self._words[word] != 2 * turn + 2:
                found = _OVERTAKEN
                break
            if checksum == self._checksum:
                found = _TAKEN
                break
        self._advance(1)
        return found

    def skip(self) -> None:
        """Leave the record that was READY and go on to the next."""
        self._advance(1)

    def _advance(self, records: int) -> None:
        self.cursor += records
        self._words[0] = self.cursor

    def _header(self) -> Look:
        turn, slot = divmod(self.cursor, self.shape.slots)
        at, wanted = self._headers[slot], 2 * turn + 2
        sequence = self._words[at // 8]
        if sequence != wanted:
            return self._other(sequence, wanted)
        header = self._region[at + 8 : at + HEADER].tobytes()
        if self._words[at // 8] != sequence:
            return _TORN
        number, transfer, position, tensor_id, offset, length, self._checksum = _BODY.unpack_from(header)
        if crc32c(header[: _BODY.size]) != _CRC.unpack_from(header, _BODY.size)[0]:
            return _corrupt("the header's checksum does not fit")
        if number != self.cursor:
            return _corrupt(f"it calls itself record {number}")
        if length == VOID:
            return Look(State.VOID, None, 1)
        if length > self.shape.slot_bytes:
            return _corrupt(f"length {length}, a slot has {self.shape.slot_bytes} bytes")
        self._length = length
        return Look(State.READY, Chunk(transfer, position, tensor_id, offset, length))

    def _other(self, sequence: int, wanted: int) -> Look:
        """The slot holds another record than the next one."""
        if sequence == wanted - 1:
            return _WRITING
        if sequence < wanted:
            return _EMPTY
        if self.lossless or sequence > _LAST:
            return _corrupt(f"sequence {sequence} instead of {wanted}")
        slots = self.shape.slots
        newest = (sequence - 1) // 2 * slots + self.cursor % slots  # perhaps unfinished: the ones before it are not
        return Look(State.LOST, None, max(1, newest - slots + 1 - self.cursor))


def _corrupt(detail: str) -> Look:
    return Look(State.CORRUPT, None, 1, detail)


def pieces(data: memoryview, slot_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """(offset, part) of a flat view in parts of a slot; one empty part where there are no bytes."""
    for at in range(0, max(1, data.nbytes), slot_bytes):
        yield at, data[at : at + slot_bytes]
