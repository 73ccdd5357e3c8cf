"""Bytes of tensors in and out over the control connection: the way for a client that shares no memory with us."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from accelctl.memory import in_bytes
from accelctl.umd.memory import Allocation
from accelctl.umd.proto import umd_pb2 as pb
from accelctl.umd.refusal import Refusal
from accelctl.umd.session import Session

CHUNK, MOST_CHUNK = 256 << 10, 4 << 20
"""Bytes of one piece: usual, and at most."""


def write(session: Session, found: Allocation, offset: int, data: bytes, patience_s: float) -> None:
    """Put bytes into a tensor, when the queue does not use it any more. Refusal; nothing is written then."""
    if offset + len(data) > found.size:
        text = f"{offset} + {len(data)} bytes: the tensor has {found.size}"
        raise Refusal("offset", text)
    session.settled(found, patience_s)
    with session.lock:
        _alive(found)
        block = session.mapped(found)
        session.sync(block, True)
        try:
            assert block.map is not None
            block.map[offset : offset + len(data)] = data
        finally:
            session.sync(block, False)


def read(session: Session, found: Allocation, offset: int, length: int, patience_s: float) -> bytes:
    """Bytes of a tensor, when the queue does not use it any more. Refusal."""
    session.settled(found, patience_s)
    with session.lock:
        _alive(found)
        block = session.mapped(found)
        session.sync(block, True)
        try:
            assert block.map is not None
            return bytes(block.map[offset : offset + length])
        finally:
            session.sync(block, False)


def _alive(found: Allocation) -> None:
    if not found.alive:
        raise Refusal("tensor_id", "this tensor was freed", "invalid_handle")


class Inbox:
    """One stream of pieces. Those of a tensor come one behind the other; a piece that is torn, repeated or out of
    order is refused, and those before it stand."""

    def __init__(self) -> None:
        self.bytes = self.chunks = 0
        self.session: Session | None = None
        self.done = False
        self._next: dict[int, int] = {}
        self._tensor = 0

    def check(self, piece: pb.TensorChunk) -> None:
        """Before a piece is used. Refusal."""
        if self.done:
            raise Refusal("last", "a piece came after the last one", "invalid_state")
        if crc32c(piece.data) != piece.crc32c:
            raise Refusal("crc32c", f"piece {self.chunks} at offset {piece.offset} is torn", "communication")
        number = piece.tensor_id or self._tensor
        expected = self._next.get(number)
        if expected is not None and piece.offset != expected:
            what = "was there already" if piece.offset < expected else f"leaves out {piece.offset - expected} bytes"
            raise Refusal("offset", f"{piece.offset}: this piece {what}, {expected} comes next", "invalid_state")
        self._tensor = number

    def put(self, session: Session, piece: pb.TensorChunk, patience_s: float) -> int:
        """A checked piece; its bytes. Refusal."""
        with session.lock:
            found = session.memory.get(self._tensor)
        write(session, found, piece.offset, piece.data, patience_s)
        self.session = session
        self._next[self._tensor] = piece.offset + len(piece.data)
        self.bytes += len(piece.data)
        self.chunks += 1
        self.done = piece.last
        return len(piece.data)

    def end(self) -> None:
        """The stream is over. Refusal where its last piece did not come."""
        if not self.done:
            text = f"the stream ended without its last piece, after {in_bytes(self.bytes)}"
            raise Refusal("last", text, "communication")


def pieces(session: Session, request: pb.ReadTensorRequest, patience_s: float) -> Iterator[pb.TensorChunk]:
    """A tensor's bytes, piece by piece; at least one piece. Refusal."""
    with session.lock:
        found = session.memory.get(request.tensor_id)
    size = request.chunk_bytes or CHUNK
    if size > MOST_CHUNK:
        raise Refusal("chunk_bytes", f"{size}: at most {MOST_CHUNK}")
    if request.offset > found.size:
        raise Refusal("offset", f"{request.offset}: the tensor has {found.size} bytes")
    length = request.length or found.size - request.offset
    if request.offset + length > found.size:
        raise Refusal("length", f"{request.offset} + {length} bytes: the tensor has {found.size}")
    at, end = request.offset, request.offset + length
    while True:
        data = read(session, found, at, min(size, end - at), patience_s)
        last = at + len(data) >= end
        yield pb.TensorChunk(
            session_id=session.number,
            tensor_id=found.number,
            offset=at,
            data=data,
            crc32c=crc32c(data),
            last=last,
        )
        if last:
            return
        session.touch()
        at += len(data)
