"""What the two sides of a data channel say to each other: small fixed messages, one packet each.

    client                          service
    HELLO  token, version     ->
                              <-    WELCOME  slots, slot bytes; two descriptors: the ring up, the ring down
    PUT    chunks, bytes      ->              chunks follow in the ring up
    GET    list of parts      ->              chunks follow in the ring down
                              <-    DONE     bytes, refused chunks; why, of the first one
                              <-    FAIL     records that were written for it; why
    WAKE                     <->    WAKE     look into the rings again

Numbers are native: both sides are one machine. A message that is not one of these ends the channel.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from accelctl.errors import AccelError

VERSION = 1
LIMIT = 4096
"""Bytes of the longest message."""
_HEAD = struct.Struct("=BxxxIQQ")
_PART = struct.Struct("=QQQ")
MAX_PARTS = (LIMIT - _HEAD.size) // _PART.size
"""Parts of one GET."""
MAX_TEXT = 500


class ChannelError(AccelError):
    """The data channel could not do what was asked; its message says whether the channel is usable any longer."""

    default_kind = "communication"


class Refused(ChannelError):
    """The other side refused a transfer, or chunks of it; the channel can be used on."""


class Kind(IntEnum):
    """First byte of a message."""

    HELLO = 1
    WELCOME = 2
    PUT = 3
    GET = 4
    WAKE = 5
    DONE = 6
    FAIL = 7


class Message(NamedTuple):
    """One message. ``transfer`` counts the PUTs and GETs of a channel; ``a`` and ``b`` are what the table says."""

    kind: Kind
    transfer: int = 0
    a: int = 0
    b: int = 0
    rest: bytes = b""

    def pack(self) -> bytes:
        """The packet."""
        return _HEAD.pack(self.kind, self.transfer, self.a, self.b) + self.rest

    @property
    def text(self) -> str:
        """``rest`` as one line for people, whatever the other side put there."""
        return clean(self.rest.decode("utf-8", "replace"))


def clean(text: str) -> str:
    """One printable line of bounded length."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:MAX_TEXT])


def unpack(data: bytes) -> Message:
    """The message in a packet. Raises ChannelError."""
    try:
        kind, transfer, a, b = _HEAD.unpack_from(data)
        return Message(Kind(kind), transfer, a, b, data[_HEAD.size :])
    except (struct.error, ValueError):
        raise ChannelError(f"not a message of the data channel: {data[:16].hex()}") from None


class Part(NamedTuple):
    """Where bytes of a tensor are: ``length`` bytes at ``offset``."""

    tensor_id: int
    offset: int
    length: int


def pack_parts(parts: list[Part]) -> bytes:
    """The list of a GET."""
    if len(parts) > MAX_PARTS:
        raise ValueError(f"{len(parts)} parts, at most {MAX_PARTS}")
    return b"".join(_PART.pack(*part) for part in parts)


def unpack_parts(data: bytes) -> list[Part]:
    """The list of a GET. Raises ChannelError."""
    if not data or len(data) % _PART.size:
        raise ChannelError(f"a list of parts with {len(data)} bytes")
    return [Part(*numbers) for numbers in _PART.iter_unpack(data)]
