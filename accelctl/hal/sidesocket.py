"""A Unix socket beside a service: whole messages with descriptors, between processes of one user.

SOCK_SEQPACKET keeps messages apart, in order, and tells the end of a peer at once, also of a killed one. The kernel
says who connected (SO_PEERCRED): only the same user, or root, is spoken to. Nothing here waits longer than it was told.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from accelctl.errors import AccelError, PermissionDenied, TimeoutFailure, UsageError

MAX_PATH = 107
"""Bytes of a path: sun_path of struct sockaddr_un has 108 with the closing NUL (unix(7))."""
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TYPE = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_INT = struct.calcsize("i")
_RETRY_S = 0.002


class Gone(AccelError):
    """The other side has closed its end, or died."""

    default_kind = "communication"


class Peer(NamedTuple):
    """Who is at the other end, as the kernel saw it when the connection (or the listener) was made."""

    pid: int
    uid: int
    gid: int


class Packet(NamedTuple):
    """One message and the descriptors that came with it: the receiver takes them out of ``fds``, or closes them."""

    data: bytes
    fds: list[int]

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.pop())


class SideSocket:
    """One end of a connection. One thread sends or receives at a time; :meth:`stop` may come from any."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self._sock = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def __enter__(self) -> SideSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def peer(self) -> Peer:
        """The other side's process."""
        return _peer(self._sock)

    def require_friend(self) -> Peer:
        """The other side, if it is this user or root. Raises PermissionDenied otherwise."""
        who = self.peer()
        if who.uid not in (os.geteuid(), 0):
            raise PermissionDenied(f"{self.name}: process {who.pid} of user {who.uid} is at the other end, not yours")
        return who

    def send(self, data: bytes, fds: Sequence[int] = (), *, timeout_s: float) -> None:
        """Send one message. Raises Gone, or TimeoutFailure when the other side does not take its messages."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                if fds:
                    socket.send_fds(self._sock, [data], list(fds), socket.MSG_NOSIGNAL)
                else:
                    self._sock.send(data, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                _poll(self._writable, end, f"{self.name}: the other side takes no messages")
            except OSError as error:
                raise self._failed(error) from error

    def hint(self, data: bytes) -> bool:
        """Send a message that need not arrive. False: the peer has so many unread ones that it will wake up anyway."""
        try:
            self._sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failed(error) from error
        return True

    def receive(self, limit: int, *, timeout_s: float | None, max_fds: int = 0) -> Packet:
        """The next message, of at most ``limit`` bytes. timeout_s: None waits until there is one; 0 does not wait.

        Raises Gone at the end of the connection, TimeoutFailure, and AccelError of kind communication for a message
        that is too long or carries more descriptors than asked for; those are closed.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                return self._take(limit, max_fds)
            except BlockingIOError:
                _poll(self._readable, end, f"{self.name}: no message")
            except ConnectionResetError:  # told once, by a peer that did not read all; its last words are still there
                continue
            except OSError as error:
                raise self._failed(error) from error

    def pending(self) -> bool:
        """Is there a message, or the end of the connection, to be received?"""
        return bool(self._readable.poll(0))

    def _take(self, limit: int, max_fds: int) -> Packet:
        # Descriptors without room for them are closed by the kernel, and flagged. Python's own recv_fds drops the flag
        # that makes them close-on-exec (3.10 to 3.12).
        space = socket.CMSG_LEN(max_fds * _INT) if max_fds else 0
        data, extra, flags, _ = self._sock.recvmsg(limit, space, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, raw in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += memoryview(raw[: len(raw) // _INT * _INT]).cast("i")
        cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if cut or not data:
            for fd in fds:
                os.close(fd)
        if cut:
            what = "longer than allowed" if flags & socket.MSG_TRUNC else "with descriptors nobody asked for"
            raise AccelError(f"{self.name}: a message {what}", kind="communication")
        if not data:
            raise Gone(f"{self.name}: the other side has closed the connection")
        return Packet(data, fds)

    def _failed(self, error: OSError) -> AccelError:
        if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF):
            return Gone(f"{self.name}: the other side has closed the connection")
        return AccelError(f"{self.name}: {error.strerror}", kind="os_error")

    def stop(self) -> None:
        """End the connection for both sides now; whoever waits in :meth:`receive` gets Gone. :meth:`close` is still
        due."""
        with suppress(OSError):  # closed, or the peer is gone already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        self._sock.close()


class SideListener:
    """A listening socket in the file system with mode 0600, until :meth:`close`."""

    def __init__(self, path: str, *, backlog: int = 64) -> None:
        """Raises UsageError for a path that is too long, AccelError of kind already_exists where something is there."""
        self.path = check_path(path)
        self._stopped = False
        self._sock = socket.socket(socket.AF_UNIX, _TYPE)
        try:
            os.fchmod(self._sock.fileno(), 0o600)  # bind(2) makes the file with the socket's own mode (af_unix.c)
            self._sock.bind(path)
            self._sock.listen(backlog)
            self._made = _identity(path)
        except OSError as error:
            self._sock.close()
            kind = "already_exists" if error.errno == errno.EADDRINUSE else "os_error"
            raise AccelError(f"{path}: {error.strerror}", kind=kind) from error
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)

    def accept(self, timeout_s: float | None = None) -> SideSocket | None:
        """The next connection of whoever; None after :meth:`stop`. Raises TimeoutFailure."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopped:  # accept(2) would say EAGAIN, and poll(2) "go on", for ever
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                _poll(self._readable, end, f"{self.path}: nobody connected")
            except OSError as error:
                if self._stopped:  # by another thread, meanwhile
                    return None  # type: ignore[unreachable]
                if error.errno not in (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    raise
                time.sleep(_RETRY_S)  # descriptors or memory may come back; the connection waits in the backlog
            else:
                sock.setblocking(False)
                return SideSocket(sock, self.path)
        return None

    def stop(self) -> None:
        """Wake whoever waits in :meth:`accept`; nobody can connect any more."""
        self._stopped = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop, and remove the file if it is still the one that was made here; safe to call twice."""
        if self._sock.fileno() < 0:
            return
        self.stop()
        if _identity(self.path) == self._made:
            with suppress(FileNotFoundError):
                os.unlink(self.path)
        self._sock.close()


def pair(name: str = "pair") -> tuple[SideSocket, SideSocket]:
    """Two connected ends in one process."""
    one, other = socket.socketpair(socket.AF_UNIX, _TYPE)
    return SideSocket(one, name), SideSocket(other, name)


def connect(path: str, *, timeout_s: float) -> SideSocket:
    """Connect to a listener. Raises Gone where nobody listens, PermissionDenied, TimeoutFailure, UsageError."""
    end = time.monotonic() + timeout_s
    sock = socket.socket(socket.AF_UNIX, _TYPE)
    try:
        while True:
            try:
                sock.connect(check_path(path))
                return SideSocket(sock, path)
            except BlockingIOError:  # the backlog is full
                if time.monotonic() > end:
                    raise TimeoutFailure(f"{path}: no answer within {timeout_s:g} s") from None
                time.sleep(_RETRY_S)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise _explained(path, error) from error
        raise


def listening(path: str) -> Peer | None:
    """Who listens on a Unix socket of whatever type; None where nobody does. pid 0: somebody who takes no connection
    now, or a datagram socket's owner. Raises AccelError where that cannot be told."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.connect(check_path(path))
            except (ConnectionRefusedError, FileNotFoundError):
                return None
            except OSError as error:
                if error.errno == errno.EPROTOTYPE:  # it is alive, and of another type
                    continue
                if not isinstance(error, BlockingIOError):
                    raise _explained(path, error) from error
            else:
                return _peer(sock)
        break
    return Peer(0, -1, -1)


def check_path(path: str) -> str:
    """The path, if a Unix socket can have it; raises UsageError."""
    size = len(os.fsencode(path))
    if size > MAX_PATH or "\0" in path or not path:
        raise UsageError(
            f"{path}: {size} bytes are too long for the path of a Unix socket, at most {MAX_PATH} are possible"
            if size > MAX_PATH
            else f"{path!r}: not a path",
            hint="choose a shorter one",
        )
    return path


def _peer(sock: socket.socket) -> Peer:
    return Peer(*_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a socket's file; None where there is no socket."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None


def _poll(poll: select.poll, end: float | None, why: str) -> None:
    """Wait for an event. Raises TimeoutFailure at ``end`` (time.monotonic)."""
    left = None if end is None else end - time.monotonic()
    if left is None:
        poll.poll(None)
    elif left <= 0 or not poll.poll(left * 1e3):
        raise TimeoutFailure(why)


def _explained(path: str, error: OSError) -> AccelError:
    if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
        return Gone(f"{path}: nobody listens there")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{path}: {error.strerror}")
    return AccelError(f"{path}: {error.strerror}", kind="communication")
