"""Sender and Receiver: bytes of tensors in chunks through a ring, each chunk with its checksum.

One copy in (source to slot), one copy out (slot to target), and one checksum on either side, over bytes that the copy
next to it has in the cache. The sender's is taken over the source, so it covers both copies. The receiver's is taken
over what it copied, never over the slot, which the peer can change at any time: a checksum there says nothing about the
copy. So a chunk with a wrong header is refused before anything is copied; of one with wrong bytes the target's range
holds anything, and the transfer is reported as refused. Where that must not be, or where reading the target back is
slow, the receiver is staged: see Receiver.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from accelctl.errors import AccelError
from accelctl.hal.sharedmem import scratch
from accelctl.umd.channel.link import Link
from accelctl.umd.channel.messages import ChannelError, Message, Part, clean
from accelctl.umd.channel.ring import Chunk, Look, Reader, State, Writer, pieces

Place = Callable[[int], tuple[memoryview, int]]
"""tensor id -> its bytes, and how many of them belong to it. Raises AccelError or LookupError for a tensor that is not
this session's. Asked once per tensor and transfer."""
Placed = Callable[[int], None]
"""Told, once for every tensor that was placed, that the transfer does not use its bytes any longer."""


class Source(NamedTuple):
    """Bytes of a tensor from ``offset`` on. ``data`` is a flat view of them, or of where they are wanted."""

    tensor_id: int
    offset: int
    data: memoryview


class Received(NamedTuple):
    """What became of a transfer. ``bytes`` were put in place; ``refused`` chunks were not, and ``why`` is the first
    one's reason."""

    bytes: int
    refused: int
    why: str


def flat(data: object) -> memoryview:
    """The bytes of a buffer, without a copy. Raises ValueError where they do not lie in one piece."""
    view = memoryview(data)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise ValueError("the buffer does not lie in one piece; copy it first")
    if view.nbytes == 0:
        return memoryview(b"")  # a shape with a zero in it cannot be cast
    return view.cast("B")


def count_chunks(lengths: Iterable[int], slot_bytes: int) -> int:
    """How many chunks parts of these lengths make; one of no bytes makes one."""
    return sum(max(1, -(-length // slot_bytes)) for length in lengths)


class Sender:
    """Puts parts of tensors into a ring, never faster than the other side takes them out."""

    def __init__(self, writer: Writer, link: Link) -> None:
        self._writer, self._link = writer, link
        self._batch = max(1, writer.shape.slots // 4)

    def send(
        self, transfer: int, sources: Sequence[Source], *, first: Message | None = None, last: Message | None = None
    ) -> int:
        """Send them in order; returns the records written. The last chunks may not have been read yet.

        ``first`` is sent when the first chunk is in the ring, ``last`` behind all of it; both wake the other side as a
        bell does, which comes once per batch: a quarter of the ring. Raises Gone, TimeoutFailure when nothing is taken
        out for the link's patience, ChannelError for a peer whose cursor cannot be true.
        """
        writer, slot_bytes, index, room, unsaid = self._writer, self._writer.shape.slot_bytes, 0, 0, 0
        for tensor_id, offset, data in sources:
            for at, piece in pieces(data, slot_bytes):
                if unsaid >= self._batch or index == 1:
                    self._tell(first)
                    first, unsaid = None, 0
                if room == 0:
                    room = self._room(transfer, f"no chunk before {index} was taken out")
                chunk = Chunk(transfer, index, tensor_id, offset + at, piece.nbytes)
                writer.put(chunk, piece)
                index, room, unsaid = index + 1, room - 1, unsaid + 1
        if unsaid and (first is not None or last is None):
            self._tell(first)
        if last is not None:
            self._link.send(last)
        return index

    def _tell(self, first: Message | None) -> None:
        if first is None:
            self._link.ring()
        else:
            self._link.send(first)

    def _room(self, transfer: int, what: str) -> int:
        """Wait until at least one slot is free; how many are."""
        try:
            room = self._writer.room()
            until = time.monotonic() + self._link.patience_s
            while room == 0:
                self._link.progress(transfer, what, until, lambda: self._writer.room() > 0)
                room = self._writer.room()
        except ValueError as error:
            raise ChannelError(f"data channel: {error}; it is closed") from None
        return room


class Receiver:
    """Takes chunks out of a ring and puts their bytes in place.

    ``staged``: through a private buffer, so that a target only sees whole, checked chunks, and is only written. For
    memory that is slow to read back (write-combined: a device's BAR); it costs a copy inside the cache.
    ``counters``: chunks, bytes and refused chunks over all transfers.
    """

    def __init__(self, reader: Reader, link: Link, *, staged: bool = False) -> None:
        self._reader, self._link, self._staged = reader, link, staged
        self._batch = max(1, reader.shape.slots // 4)
        self._private = scratch(reader.shape.slot_bytes) if staged else memoryview(bytearray())
        self.counters = {"chunks": 0, "bytes": 0, "refused": 0}

    def receive(self, sink: Sink, chunks: int) -> Received:
        """Take exactly so many records out. One that is corrupt, replayed or not wanted by ``sink`` is refused, and the
        next one is looked at. The sink is closed at the end, however that comes.

        Raises Refused when the other side says so before it wrote anything; Gone, TimeoutFailure, ChannelError: then
        the ring is not in step any more, and the channel is of no use.
        """
        try:
            for index in range(chunks):
                self._one(index, sink)
                if index % self._batch == self._batch - 1:
                    self._link.ring()
        finally:
            sink.close()
            self._count(sink)
        return Received(sink.bytes, sink.refused, sink.why)

    def _one(self, index: int, sink: Sink) -> None:
        """Handle the next record, waiting for it."""
        chunk = self._next(index, sink)
        if chunk is None:
            return
        target = sink.accept(index, chunk)
        if target is None:
            self._reader.skip()
            return
        into = self._private[: chunk.length] if self._staged or not chunk.length else target
        found = self._reader.take(into)
        if found.state is not State.READY:
            sink.refuse(index, _words(found))
            return
        if into is not target and chunk.length:
            target[:] = into
        sink.chunks += 1
        sink.bytes += chunk.length

    def _next(self, index: int, sink: Sink) -> Chunk | None:
        """The next record's header; None for one that was refused and is done with."""
        until = 0.0
        while True:
            found = self._reader.look()
            if found.chunk is not None:
                return found.chunk
            if found.records:
                sink.refuse(index, _words(found))
                return None
            until = until or time.monotonic() + self._link.patience_s
            self._link.progress(sink.transfer, f"chunk {index} did not come", until, self._reader.ready)

    def _count(self, sink: Sink) -> None:
        self.counters["chunks"] += sink.chunks
        self.counters["bytes"] += sink.bytes
        self.counters["refused"] += sink.refused


class Sink(ABC):
    """Where the chunks of one transfer go, and what became of them."""

    def __init__(self, transfer: int) -> None:
        self.transfer = transfer
        self.chunks = self.bytes = self.refused = 0
        self.why = ""

    @abstractmethod
    def target(self, chunk: Chunk) -> memoryview:
        """Where the bytes of this chunk belong, as many as it has. Raises AccelError, LookupError or ValueError to
        refuse it."""

    @abstractmethod
    def close(self) -> None:
        """No more chunks will come: let go of all views."""

    def accept(self, index: int, chunk: Chunk) -> memoryview | None:
        """Where a chunk goes; None where it was refused."""
        if chunk.transfer != self.transfer or chunk.position != index:
            self.refuse(index, f"it is chunk {chunk.position} of transfer {chunk.transfer}, sent before or out of turn")
            return None
        try:
            return self.target(chunk)
        except (AccelError, LookupError, ValueError) as error:
            self.refuse(index, str(error))
            return None

    def refuse(self, index: int, why: str) -> None:
        """Count it; the first reason is kept."""
        self.refused += 1
        if not self.why:
            self.why = clean(f"chunk {index}: {why}")


class Placing(Sink):
    """The service's: any chunk of any tensor that ``place`` gives, inside its bytes."""

    def __init__(self, transfer: int, place: Place, done: Placed | None = None) -> None:
        super().__init__(transfer)
        self._place, self._done = place, done
        self._views: dict[int, memoryview] = {}
        self._placed: list[int] = []
        self._unplaced: dict[int, str] = {}
        """Tensors that could not be had, and why: finding that out can take a while, so it is found out once."""

    def target(self, chunk: Chunk) -> memoryview:
        """Inside the tensor."""
        view = self._views.get(chunk.tensor_id)
        if view is None:
            view = self._new(chunk.tensor_id)
        return within(view, chunk.tensor_id, chunk.offset, chunk.length)

    def _new(self, tensor_id: int) -> memoryview:
        if tensor_id in self._unplaced:
            raise ValueError(self._unplaced[tensor_id])
        try:
            whole, size = self._place(tensor_id)
        except (AccelError, LookupError) as error:
            self._unplaced[tensor_id] = str(error)
            raise
        self._placed.append(tensor_id)
        view = bytes_of(whole, size, tensor_id)
        if view.readonly and size:
            raise ValueError(f"tensor {tensor_id} cannot be written from here")
        self._views[tensor_id] = view
        return view

    def close(self) -> None:
        """Release the views, and say so."""
        for view in self._views.values():
            view.release()
        if self._done is not None:
            for tensor_id in self._placed:
                self._done(tensor_id)


class Wanted(Sink):
    """The client's: exactly the chunks that it asked for, in that order."""

    def __init__(self, transfer: int, wanted: Sequence[Source], slot_bytes: int) -> None:
        super().__init__(transfer)
        self._pieces = [
            (tensor_id, offset + at, piece)
            for tensor_id, offset, data in wanted
            for at, piece in pieces(data, slot_bytes)
        ]

    def __len__(self) -> int:
        return len(self._pieces)

    def target(self, chunk: Chunk) -> memoryview:
        """The piece of the buffers that this chunk was asked for."""
        tensor_id, offset, piece = self._pieces[chunk.position]
        if (chunk.tensor_id, chunk.offset, chunk.length) != (tensor_id, offset, piece.nbytes):
            raise ValueError(
                f"{chunk.length} bytes at {chunk.offset} of tensor {chunk.tensor_id} came instead of "
                f"{piece.nbytes} at {offset} of tensor {tensor_id}"
            )
        return piece

    def close(self) -> None:
        """Let go of the buffers."""
        for _, _, piece in self._pieces:
            piece.release()


def _words(found: Look) -> str:
    return f"it {found.state.value}{': ' if found.detail else ''}{found.detail}"


def bytes_of(whole: memoryview, size: int, tensor_id: int) -> memoryview:
    """The first ``size`` bytes of what a service's ``place`` gave. Raises ValueError where there are fewer."""
    view = flat(whole)
    if not 0 <= size <= view.nbytes:
        raise ValueError(f"tensor {tensor_id}: {view.nbytes} bytes can be reached, it has {size}")
    return view[:size]


def within(view: memoryview, tensor_id: int, offset: int, length: int) -> memoryview:
    """A range of a tensor's bytes. Raises ValueError for one that is not inside."""
    if offset + length > view.nbytes:
        raise ValueError(f"bytes {offset} to {offset + length} of tensor {tensor_id}, which has {view.nbytes}")
    return view[offset : offset + length]


def sources_of(parts: Sequence[Part], place: Place, views: dict[int, memoryview]) -> list[Source]:
    """What a GET asks for, as sources. ``views`` collects what was placed. Raises what ``place`` raises, and ValueError
    for a range that is not the tensor's."""
    found = []
    for tensor_id, offset, length in parts:
        if tensor_id not in views:
            views[tensor_id] = bytes_of(*place(tensor_id), tensor_id)
        found.append(Source(tensor_id, offset, within(views[tensor_id], tensor_id, offset, length)))
    return found
