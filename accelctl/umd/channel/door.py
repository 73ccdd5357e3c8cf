"""The service's side of the data channels: who may come in, and one thread for each channel.

A client asks over gRPC, gets this socket's path and a token, connects, shows the token, and receives the descriptors of
two rings. A token is random, for one session, good once and for a short time; the kernel says besides that the client
is this user (or root). Everything is bounded: tokens, channels, their memory, what a silent client can hold up.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from accelctl.errors import AccelError
from accelctl.hal.sharedmem import SharedMemory, create
from accelctl.hal.sidesocket import Gone, SideListener, SideSocket
from accelctl.umd.channel.link import PATIENCE_S, Link
from accelctl.umd.channel.messages import LIMIT, VERSION, ChannelError, Kind, Message, clean, unpack, unpack_parts
from accelctl.umd.channel.ring import Reader, Shape, Writer
from accelctl.umd.channel.transfer import Place, Placed, Placing, Receiver, Sender, Source, sources_of

SHAPE = Shape(slots=16, slot_bytes=256 << 10)
"""Each direction of a channel. With half of the slots a core writes to what the other core still has in its own cache,
and takes up to three times as long for it (measured); many more do not fit into a share of the L3 cache."""
TOKEN_BYTES = 32
TOKEN_LIFE_S = 10.0
HELLO_S = 2.0
"""How long a new connection may take to show its token."""
MAX_CHANNELS = 256
MAX_OF_ONE = 32
"""Channels of one session, and tokens that it has not used yet: no session shuts out the others."""
_JOIN_S = 5.0


class Guest(NamedTuple):
    """Whom a token lets in: its session, how the session's tensors are found (see transfer.Place, Placed), whether
    their memory is slow to read back (transfer.Receiver), and who is told of bytes that came (in) and went (out)."""

    session: int
    place: Place
    done: Placed | None = None
    staged: bool = False
    moved: Callable[[str, int], None] = lambda direction, count: None


class Door:
    """Listens on ``path`` (in a private folder) until :meth:`close`.

    ``counters``: channels opened, refused and lost, chunks, bytes and refused chunks of the ones that have ended.
    """

    def __init__(
        self, path: str, *, shape: Shape = SHAPE, max_channels: int = MAX_CHANNELS, patience_s: float = PATIENCE_S
    ) -> None:
        self.path, self.shape = path, shape
        self.counters = dict.fromkeys(("opened", "refused_clients", "lost", "chunks", "bytes", "refused"), 0)
        self._patience_s = patience_s
        self._max = max_channels
        self._lock = threading.Lock()
        self._tokens: dict[bytes, tuple[float, Guest]] = {}
        self._threads: dict[threading.Thread, tuple[SideSocket, int | None]] = {}
        self._closed = False
        self._listener = SideListener(path)
        self._porter = threading.Thread(target=self._accept, name="data-door", daemon=True)
        self._porter.start()

    def offer(self, guest: Guest) -> bytes:
        """A token for one connection within TOKEN_LIFE_S. Raises AccelError of kind out_of_resources."""
        token, now = secrets.token_bytes(TOKEN_BYTES), time.monotonic()
        with self._lock:
            self._tokens = {key: entry for key, entry in self._tokens.items() if entry[0] > now}
            if self._closed or len(self._tokens) + len(self._threads) >= self._max:
                raise AccelError(f"{self._max} data channels are open already", kind="out_of_resources")
            owners = [one.session for _, one in self._tokens.values()] + [whose for _, whose in self._threads.values()]
            if owners.count(guest.session) >= MAX_OF_ONE:
                text = f"{MAX_OF_ONE} data channels of this session are open or were asked for already"
                raise AccelError(text, kind="out_of_resources")
            self._tokens[token] = (now + TOKEN_LIFE_S, guest)
        return token

    @property
    def channels(self) -> int:
        """How many are open now."""
        with self._lock:
            return sum(session is not None for _, session in self._threads.values())

    def end(self, session: int) -> None:
        """Close this session's channels and forget its tokens; back when none of its memory is used any longer."""
        with self._lock:
            self._tokens = {key: entry for key, entry in self._tokens.items() if entry[1].session != session}
        self._stop(lambda whose: whose == session)

    def close(self) -> None:
        """Close everything; safe to call twice."""
        with self._lock:
            self._closed = True
            self._tokens.clear()
        self._listener.stop()
        self._porter.join(_JOIN_S)
        self._listener.close()
        self._stop(lambda whose: True)

    def _stop(self, chosen: Callable[[int | None], bool]) -> None:
        with self._lock:
            found = [(thread, sock) for thread, (sock, whose) in self._threads.items() if chosen(whose)]
            for _, sock in found:
                sock.stop()
        for thread, _ in found:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)
                if thread.is_alive():  # pragma: no cover - it would be copying one chunk for five seconds
                    raise AccelError(f"{thread.name} does not end", kind="timeout")

    # -- one thread per connection

    def _accept(self) -> None:
        number = 0
        while True:
            sock = self._listener.accept()
            if sock is None:
                return
            number += 1
            thread = threading.Thread(target=self._serve, args=(sock,), name=f"data-channel-{number}", daemon=True)
            with self._lock:
                full = self._closed or len(self._threads) >= self._max
                if not full:
                    self._threads[thread] = (sock, None)
            if full:
                sock.close()
            else:
                thread.start()

    def _serve(self, sock: SideSocket) -> None:
        """From the first word to the end of a channel."""
        link = Link(sock, self._patience_s)
        try:
            with sock:
                guest = self._greet(link)
                if guest is not None:
                    self._channel(link, guest)
        finally:
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _greet(self, link: Link) -> Guest | None:
        """Who it is; None (and a word why not) for everybody who may not come in."""
        try:
            link.sock.require_friend()
            hello = unpack(link.sock.receive(LIMIT, timeout_s=HELLO_S).data)
            if hello.kind is not Kind.HELLO or hello.a != VERSION:
                raise ChannelError(f"this service speaks version {VERSION} of the data channel")
            return self._guest(hello.rest)
        except AccelError as error:
            with self._lock:
                self.counters["refused_clients"] += 1
            with suppress(AccelError):
                link.send(_fail(0, 0, error.message))
            return None

    def _guest(self, token: bytes) -> Guest:
        """Whose token it is; it is spent. Compared in constant time, one by one: they are few."""
        now = time.monotonic()
        with self._lock:
            known = next((key for key in self._tokens if hmac.compare_digest(key, token)), None)
            entry = None if known is None else self._tokens.pop(known)
            if entry is None or entry[0] <= now:
                raise ChannelError("the token is not valid, or not any longer; ask the service for a new channel")
            me = threading.current_thread()
            self._threads[me] = (self._threads[me][0], entry[1].session)
        return entry[1]

    def _channel(self, link: Link, guest: Guest) -> None:
        try:
            host = Host(link, self.shape, guest)
        except AccelError as error:  # no memory for the rings
            with suppress(AccelError):
                link.send(_fail(0, 0, error.message))
            return
        lost = 0
        with self._lock:
            self.counters["opened"] += 1
        try:
            host.run()
        except Gone:
            pass
        except AccelError as error:
            lost = 1
            with suppress(AccelError):
                link.send(_fail(host.transfer, 1, error.message))
        finally:
            host.close()
            with self._lock:
                self.counters["lost"] += lost
                for name, count in host.counters.items():
                    self.counters[name] += count


class Host:
    """One channel on the service's side: two rings, and what the client asks for, one thing at a time."""

    def __init__(self, link: Link, shape: Shape, guest: Guest) -> None:
        """Make the rings and pass them on. Raises AccelError; nothing is left then."""
        self._link, self._guest, self.transfer = link, guest, 0
        self._memory: list[SharedMemory] = []
        try:
            for way in ("up", "down"):
                self._memory.append(create(f"accelctl-{way}", shape.size_bytes))
            self._reader, self._writer = Reader(self._memory[0].view, shape), Writer(self._memory[1].view, shape)
            welcome = Message(Kind.WELCOME, 0, shape.slots, shape.slot_bytes).pack()
            link.sock.send(welcome, [memory.fd for memory in self._memory], timeout_s=link.patience_s)
        except BaseException:
            self.close()
            raise
        self._receiver, self._sender = Receiver(self._reader, link, staged=guest.staged), Sender(self._writer, link)

    @property
    def counters(self) -> dict[str, int]:
        """See Receiver."""
        return self._receiver.counters

    def run(self) -> None:
        """Serve until the client goes. Raises Gone then, and AccelError when the channel cannot go on."""
        while True:
            message = self._link.next(None)
            self.transfer = message.transfer
            if message.kind is Kind.PUT:
                self._put(message)
            elif message.kind is Kind.GET:
                self._get(message)
            else:
                raise ChannelError(f"data channel: {message.kind.name} makes no sense here; it is closed")

    def _put(self, message: Message) -> None:
        got = self._receiver.receive(Placing(message.transfer, self._guest.place, self._guest.done), message.a)
        self._guest.moved("in", got.bytes)
        why = got.why
        if not got.refused and got.bytes != message.b:
            why = f"{got.bytes} bytes came, {message.b} were announced"
        self._link.send(Message(Kind.DONE, message.transfer, got.bytes, got.refused, why.encode()))

    def _get(self, message: Message) -> None:
        """The answer goes last, when nothing of the tensors is held any longer: the client may free them then."""
        views: dict[int, memoryview] = {}
        sources: list[Source] = []
        try:
            sources = sources_of(unpack_parts(message.rest), self._guest.place, views)
            answer = Message(Kind.DONE, message.transfer, sum(source.data.nbytes for source in sources))
        except (AccelError, LookupError, ValueError) as error:
            answer = _fail(message.transfer, 0, str(error))
        try:
            if answer.kind is Kind.DONE:
                self._sender.send(message.transfer, sources)
                self._guest.moved("out", answer.a)
        finally:
            for view in (*(source.data for source in sources), *views.values()):
                view.release()
            if self._guest.done is not None:
                for tensor_id in views:
                    self._guest.done(tensor_id)
        self._link.send(answer)

    def close(self) -> None:
        """Unmap the rings."""
        for ring in (getattr(self, "_reader", None), getattr(self, "_writer", None)):
            if ring is not None:
                ring.release()
        for memory in self._memory:
            memory.close()


def _fail(transfer: int, records: int, why: str) -> Message:
    return Message(Kind.FAIL, transfer, records, 0, clean(why).encode())
