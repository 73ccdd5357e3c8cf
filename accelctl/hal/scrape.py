"""HTTP for one page: `GET /metrics` on a Unix socket or a loopback port, without a thread.

Whoever watches drivers forks, and forks badly beside threads; so this is attended to between two looks. Connections are
few, short and have a deadline: a client that says nothing costs nobody anything.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from accelctl.errors import AccelError

MOST_CONNECTIONS = 16
MOST_REQUEST = 8192
"""Bytes of a request with its headers; collectors send a few hundred."""
PATIENCE_S = 5.0
_BACKLOG = 16
_TYPE = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_END = (b"\r\n\r\n", b"\n\n")


class Page(NamedTuple):
    """What is answered: its media type, and its text. ``status`` as in "200 OK"."""

    status: str
    kind: str
    body: bytes


def plain(status: str, text: str) -> Page:
    """A line for whoever asked for something else."""
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class _Visit:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ends = time.monotonic() + PATIENCE_S
        self.heard = b""
        self.left: bytes | None = None
        """What is still to be sent; None while the request is not complete."""
        self.done = False
        """All is sent; what comes is not read for its sense, but closing before it would take the answer back (RST)."""


class Endpoint:
    """A listener; ``path`` of a Unix socket, or ``host`` and ``port`` (0: the system chooses). AccelError where it
    cannot be had."""

    def __init__(self, path: str = "", host: str = "", port: int = 0) -> None:
        where = path or f"{host}:{port}"
        family = socket.AF_UNIX if path else socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, _TYPE)
        try:
            if not path:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(path or (host, port))
            self._sock.listen(_BACKLOG)
        except OSError as error:
            self._sock.close()
            raise AccelError(f"{where}: cannot listen there ({error.strerror})", kind="already_exists") from None
        self.port = 0 if path else int(self._sock.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.place = f"unix:{path}" if path else f"http://{shown}:{self.port}/metrics"
        """How it is called from outside."""
        self._visits: dict[int, _Visit] = {}
        self._poller = select.poll()
        self._poller.register(self._sock, select.POLLIN)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def attend(self, timeout_s: float, produce: Callable[[], Page]) -> int:
        """Wait so long for something to do and do it; how many requests were answered. ``produce`` makes the page."""
        answered = 0
        for fd, event in self._poller.poll(max(0.0, timeout_s) * 1000):
            if fd == self._sock.fileno():
                self._accept()
            else:
                answered += self._serve(self._visits[fd], event, produce)
        now = time.monotonic()
        for visit in [one for one in self._visits.values() if one.ends < now]:
            self._leave(visit)
        return answered

    def _accept(self) -> None:
        with suppress(OSError):  # it went away again
            sock, _ = self._sock.accept()
            sock.setblocking(False)
            if len(self._visits) >= MOST_CONNECTIONS:
                sock.close()
                return
            self._visits[sock.fileno()] = _Visit(sock)
            self._poller.register(sock, select.POLLIN)

    def _serve(self, visit: _Visit, event: int, produce: Callable[[], Page]) -> int:
        try:
            if visit.left is None:
                return self._hear(visit, produce)
            if not visit.done:
                self._send(visit)
            elif not visit.sock.recv(MOST_REQUEST):
                self._leave(visit)
        except BlockingIOError:
            pass
        except OSError:
            self._leave(visit)
        return 0

    def _hear(self, visit: _Visit, produce: Callable[[], Page]) -> int:
        data = visit.sock.recv(MOST_REQUEST)
        visit.heard += data
        complete = any(end in visit.heard for end in _END)
        if not data and not complete:
            self._leave(visit)
            return 0
        if not complete and len(visit.heard) < MOST_REQUEST:
            return 0
        visit.left = _answer(visit.heard if complete else b"", produce)
        self._poller.modify(visit.sock, select.POLLOUT)
        self._send(visit)
        return 1

    def _send(self, visit: _Visit) -> None:
        assert visit.left is not None
        visit.left = visit.left[visit.sock.send(visit.left, socket.MSG_NOSIGNAL) :]
        if not visit.left:
            visit.done = True
            visit.sock.shutdown(socket.SHUT_WR)
            self._poller.modify(visit.sock, select.POLLIN)

    def _leave(self, visit: _Visit) -> None:
        self._visits.pop(visit.sock.fileno(), None)
        with suppress(KeyError, ValueError):
            self._poller.unregister(visit.sock)
        visit.sock.close()

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        for visit in list(self._visits.values()):
            self._leave(visit)
        if self._sock.fileno() >= 0:
            self._poller.unregister(self._sock)
            self._sock.close()


def _answer(request: bytes, produce: Callable[[], Page]) -> bytes:
    """The whole answer to a request; HTTP/1.1 without keeping the connection (RFC 9112)."""
    words = request.split(b"\r\n", 1)[0].split()
    method, target = (words[0], words[1]) if len(words) == 3 and words[2].startswith(b"HTTP/1.") else (b"", b"")
    if not method:
        page = plain("400 Bad Request", "not a request of HTTP/1.1")
    elif method not in (b"GET", b"HEAD"):
        page = plain("405 Method Not Allowed", "GET is all there is")
    elif target.partition(b"?")[0] != b"/metrics":
        page = plain("404 Not Found", "only /metrics is here")
    else:
        page = produce()
    head = (
        f"HTTP/1.1 {page.status}\r\nContent-Type: {page.kind}\r\nContent-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if method == b"HEAD" else page.body)
