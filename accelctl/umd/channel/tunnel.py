"""The client's side of a data channel."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from accelctl.errors import UsageError
from accelctl.hal.sharedmem import SharedMemory, adopt
from accelctl.hal.sidesocket import connect
from accelctl.umd.channel.link import PATIENCE_S, Link
from accelctl.umd.channel.messages import (
    LIMIT,
    MAX_PARTS,
    VERSION,
    ChannelError,
    Kind,
    Message,
    Part,
    Refused,
    pack_parts,
    unpack,
)
from accelctl.umd.channel.ring import PAGE, Reader, Shape, Writer
from accelctl.umd.channel.transfer import Receiver, Sender, Source, Wanted, count_chunks, flat

_MAX_SLOTS, _MAX_SLOT_BYTES = 1024, 1 << 20
_COUNT = 0xFFFFFFFF
"""Transfers are numbered in 32 bits; after the last one the channel is opened anew by whoever owns it."""


class Tunnel:
    """Moves bytes of tensors to the service and back. Safe to share between threads: one transfer runs at a time.

    After an error that says so the tunnel is closed; open another. It does not survive a fork: the child opens its own.
    """

    def __init__(self, path: str, token: bytes, *, patience_s: float = PATIENCE_S) -> None:
        """Connect to what OpenDataChannel answered. Raises ChannelError, Gone, PermissionDenied, TimeoutFailure."""
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._memory: list[SharedMemory] = []
        self._transfer = 0
        self._closed = False
        self._link = Link(connect(path, timeout_s=patience_s), patience_s)
        try:
            self._link.sock.require_friend()
            self._link.send(Message(Kind.HELLO, 0, VERSION, 0, token))
            self.shape = self._welcome()
            self._writer = Writer(self._memory[0].view, self.shape)
            self._reader = Reader(self._memory[1].view, self.shape)
        except BaseException as error:
            self.close()
            if isinstance(error, ValueError):
                raise ChannelError(f"data channel: the ring is not new: {error}") from None
            raise
        self._sender, self._receiver = Sender(self._writer, self._link), Receiver(self._reader, self._link)

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _welcome(self) -> Shape:
        """Map the rings; what the service says about them is checked against what they are."""
        packet = self._link.sock.receive(LIMIT, timeout_s=self._link.patience_s, max_fds=2)
        try:
            message = unpack(packet.data)
            if message.kind is Kind.FAIL:
                raise ChannelError(f"data channel: {message.text}")
            shape = Shape(message.a, message.b)
            fits = 1 <= shape.slots <= _MAX_SLOTS and PAGE <= shape.slot_bytes <= _MAX_SLOT_BYTES
            if message.kind is not Kind.WELCOME or len(packet.fds) != 2 or not fits:
                raise ChannelError("data channel: the service's welcome makes no sense")
            for name in ("up", "down"):
                self._memory.append(adopt(packet.fds.pop(0), shape.size_bytes, f"accelctl-{name}"))
            return shape
        finally:
            packet.close()

    def upload(self, parts: Sequence[tuple[int, int, object]]) -> int:
        """Copy buffers into tensors: (tensor id, offset, buffer) each; returns the bytes.

        Raises Refused when the service did not take all of it (the tensors then hold a part), ChannelError, Gone or
        TimeoutFailure when the tunnel is broken, ValueError for a buffer that does not lie in one piece.
        """
        sources = [Source(tensor_id, offset, flat(data)) for tensor_id, offset, data in parts]
        total = sum(source.data.nbytes for source in sources)
        chunks = count_chunks((source.data.nbytes for source in sources), self.shape.slot_bytes)
        if not sources:
            return 0
        with self._step() as transfer:
            self._sender.send(transfer, sources, first=Message(Kind.PUT, transfer, chunks, total))
            answer = self._answer(transfer)
        if answer.b or answer.a != total:
            raise Refused(f"data channel: {answer.b} of {chunks} chunks were refused; {answer.text}")
        return total

    def download(self, parts: Sequence[tuple[int, int, object]]) -> int:
        """Copy from tensors into writable buffers: (tensor id, offset, buffer) each; returns the bytes. Raises as
        :meth:`upload` does. More than MAX_PARTS parts are several transfers."""
        sources = [Source(tensor_id, offset, flat(data)) for tensor_id, offset, data in parts]
        if any(source.data.readonly and source.data.nbytes for source in sources):
            raise ValueError("a buffer to download to cannot be written")
        return sum(self._download(sources[at : at + MAX_PARTS]) for at in range(0, len(sources), MAX_PARTS))

    def _download(self, sources: list[Source]) -> int:
        lengths = [Part(tensor_id, offset, data.nbytes) for tensor_id, offset, data in sources]
        total = sum(part.length for part in lengths)
        with self._step() as transfer:
            self._link.send(Message(Kind.GET, transfer, 0, 0, pack_parts(lengths)))
            wanted = Wanted(transfer, sources, self.shape.slot_bytes)
            chunks = len(wanted)
            got = self._receiver.receive(wanted, chunks)
            self._answer(transfer)
        if got.refused or got.bytes != total:
            raise Refused(f"data channel: {got.refused} of {chunks} chunks were refused; {got.why}")
        return total

    def _answer(self, transfer: int) -> Message:
        """The DONE of a transfer."""
        answer = self._link.next(self._link.patience_s)
        if answer.kind is not Kind.DONE or answer.transfer != transfer:
            raise ChannelError(f"data channel: {answer.text or answer.kind.name}; it is closed")
        return answer

    @contextmanager
    def _step(self) -> Iterator[int]:
        """One transfer: its number, and the end of the tunnel if it breaks off in the middle."""
        if self._owner != os.getpid():  # before the lock: nobody in this process would ever release it
            raise UsageError("data channel: it was opened before the fork; the child opens its own")
        with self._lock:
            if self._closed or self._transfer == _COUNT:
                raise ChannelError("data channel: it is closed; open a new one")
            self._transfer += 1
            try:
                yield self._transfer
            except Refused:
                raise
            except BaseException:
                self._give_back()
                raise

    @property
    def closed(self) -> bool:
        """No transfer is possible any longer."""
        return self._closed

    def close(self) -> None:
        """Give everything back; safe to call twice. A transfer of another thread may end first, for its patience."""
        if self._owner != os.getpid():
            self._give_back()
            return
        if not self._lock.acquire(timeout=self._link.patience_s):
            self._link.sock.stop()
            self._lock.acquire()
        try:
            self._give_back()
        finally:
            self._lock.release()

    def _give_back(self) -> None:
        self._closed = True
        for ring in (getattr(self, "_writer", None), getattr(self, "_reader", None)):
            if ring is not None:
                ring.release()
        for memory in self._memory:
            memory.close()
        self._link.sock.close()
