"""The kernel's device events: the NETLINK_KOBJECT_UEVENT socket and the two kinds of message on it.

Group 1 is the kernel itself, ``add@/devices/...`` and then ``KEY=value`` texts, ended by NUL (lib/kobject_uevent.c).
Group 2 is udevd, which sends an event on when its rules have run: a binary header and the same kind of texts (systemd,
src/libsystemd/sd-device/sd-device-monitor.c). Any process may send to this socket, so a message counts only with
credentials that the kernel attests.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h; the socket module has no name for it before Python 3.14
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h; another number only on parisc and sparc
GROUPS = {"kernel": 1, "udev": 2}

MAGIC = 0xFEEDCAFE  # big endian, whatever the machine
PREFIX = b"libudev\0"
_MAGIC_AT = struct.Struct(">I")
_HEADER = struct.Struct("=III")  # header_size, properties_off, properties_len
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid
LARGEST = 64 * 1024  # the kernel's own buffer is 2 KiB (UEVENT_BUFFER_SIZE); udevd adds its properties


class Message(NamedTuple):
    """One event as sent: ``origin`` is "kernel" or "udev"."""

    origin: str
    properties: dict[str, str]


class Sender(NamedTuple):
    """Who sent a datagram: credentials that the kernel checked (None: not attached), and the netlink address."""

    pid: int | None
    uid: int | None
    port: int
    groups: int


class Overflow(Exception):
    """The receive buffer was full and the kernel dropped events: what is known of the devices is out of date."""


@dataclass
class Counters:
    """What arrived: only ``accepted`` messages become events."""

    accepted: int = 0
    untrusted: int = 0
    malformed: int = 0
    overflows: int = 0


def _texts(data: bytes) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in data.split(b"\0"):
        key, equals, value = text.partition(b"=")
        if key and equals:
            pairs[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return pairs


def _udev_texts(data: bytes) -> dict[str, str]:
    """The properties of a udevd message, at the offset that its header names: the header has grown before."""
    if len(data) < len(PREFIX) + 16:
        raise ValueError("shorter than its header")
    (magic,) = _MAGIC_AT.unpack_from(data, 8)
    if magic != MAGIC:
        raise ValueError(f"magic {magic:#010x} is not {MAGIC:#010x}")
    header_size, offset, length = _HEADER.unpack_from(data, 12)
    if offset < 24 or offset < header_size or offset + length > len(data):
        raise ValueError("properties lie outside the message")
    return _texts(data[offset : offset + length])


def _kernel_texts(data: bytes) -> dict[str, str]:
    head, nul, rest = data.partition(b"\0")
    action, at, path = head.partition(b"@")
    if not nul or not action or at != b"@" or path[:1] != b"/":
        raise ValueError("does not start with ACTION@DEVPATH")
    return _texts(rest)


def parse(data: bytes) -> Message:
    """Take one datagram apart; ValueError, with the reason, for anything but a whole event of one of the two kinds."""
    udev = data.startswith(PREFIX)
    properties = _udev_texts(data) if udev else _kernel_texts(data)
    path = properties.get("DEVPATH", "")
    if not properties.get("ACTION") or not path.startswith("/"):
        raise ValueError("lacks ACTION or DEVPATH")
    if ".." in path.split("/"):
        raise ValueError("DEVPATH leaves sysfs")
    return Message("udev" if udev else "kernel", properties)


def trusted(sender: Sender) -> bool:
    """True for the kernel (port 0, pid 0, uid 0, group 1) and for udevd (root, group 2), never for unicast."""
    if sender.uid != 0:
        return False
    if sender.groups == GROUPS["kernel"]:
        return sender.port == 0 and sender.pid == 0
    return sender.groups == GROUPS["udev"]


def _sender(ancillary: list[tuple[int, int, bytes]], address: Any) -> Sender:
    port, groups = address if isinstance(address, tuple) and len(address) == 2 else (-1, 0)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _UCRED.size:
            pid, uid, _gid = _UCRED.unpack_from(data)
            return Sender(pid, uid, port, groups)
    return Sender(None, None, port, groups)


class UeventSocket:
    """A non-blocking datagram socket that yields trusted, whole messages and counts the rest."""

    def __init__(self, sock: socket.socket, trust: Callable[[Sender], bool] = trusted) -> None:
        self.sock = sock
        self.counters = Counters()
        self._trust = trust
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    @classmethod
    def open(cls, source: str) -> UeventSocket:
        """Subscribe to "kernel" or "udev" events. Needs no privilege; OSError where the kernel has no such socket."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT)
        try:
            made = cls(sock)
            sock.bind((0, GROUPS[source]))
        except BaseException:
            sock.close()
            raise
        return made

    def receive(self) -> Message | None:
        """The next event, None when no more are waiting; Overflow when the kernel had to drop some."""
        while True:
            try:
                data, ancillary, flags, address = self.sock.recvmsg(LARGEST, socket.CMSG_SPACE(_UCRED.size))
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self.counters.overflows += 1
                    raise Overflow from None
                raise
            message = self._accept(data, flags, _sender(ancillary, address))
            if message is not None:
                return message

    def _accept(self, data: bytes, flags: int, sender: Sender) -> Message | None:
        if not self._trust(sender):
            self.counters.untrusted += 1
            return None
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("longer than the largest event")
            message = parse(data)
        except ValueError:
            self.counters.malformed += 1
            return None
        self.counters.accepted += 1
        return message

    def set_receive_buffer_size(self, size: int) -> int:
        """Ask for ``size`` bytes and return what the kernel gave; beyond net.core.rmem_max only with CAP_NET_ADMIN."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
        except PermissionError:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        # The kernel doubles what it was asked for, for its own book-keeping (socket(7)).
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    def fileno(self) -> int:
        """For select and poll."""
        return self.sock.fileno()

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()
