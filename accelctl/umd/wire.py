"""The few pieces of protobuf's wire format that the hot path reads and writes itself (protobuf.dev, "Encoding").

A translated op is kept as the bytes of its answer, and found again by the bytes of its request: no objects are made on
the way. What does not look as expected is left to the protobuf library, so nothing depends on these shortcuts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

_ONE = [bytes([n]) for n in range(128)]
_TWO = _ONE + [bytes([n & 127 | 128, n >> 7]) for n in range(128, 1 << 14)]
"""Numbers below 16,384, written out."""
_MORE = [bytes([n & 127 | 128, n >> 7 | 128]) for n in range(1 << 14)]
"""The lowest 14 bits of a number that goes on."""


def varint(value: int) -> bytes:
    """An unsigned number of at most 64 bits."""
    return _TWO[value] if value < 16384 else _long(value)


def _long(value: int) -> bytes:
    """One that needs more than two bytes."""
    found, left = _MORE[value & 16383], value >> 14
    while left >= 16384:
        found += _MORE[left & 16383]
        left >>= 14
    return found + _TWO[left]


address = lru_cache(maxsize=4096)(varint)
"""The same for device addresses, of which a session has few."""


def number(field: int, value: int) -> bytes:
    """A number's field (below 16); nothing for 0, as proto3 writes it."""
    if value < 16384:
        return _ONE[field << 3] + _TWO[value] if value else b""
    return _ONE[field << 3] + _long(value)


def chunk(field: int, data: bytes) -> bytes:
    """A field of bytes or of another message (below 16)."""
    return _ONE[field << 3 | 2] + varint(len(data)) + data


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated number (field below 16)."""
    data = b"".join([_TWO[value] if value < 16384 else _long(value) for value in values])
    return _ONE[field << 3 | 2] + varint(len(data)) + data if data else b""


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next byte is. IndexError at the end of the bytes, ValueError for more than 64 bits."""
    byte = raw[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = raw[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                raise ValueError("a number of more than 64 bits")
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


class Head(NamedTuple):
    """The start of an OpRequest: its two numbers, and everything behind them."""

    session_id: int
    request_id: int
    rest: bytes


def head_of(raw: bytes) -> Head:
    """Take session_id and request_id off the front, where every library writes them. What is not there is 0; the rest
    may hold them again, and then wins."""
    session = request = at = 0
    try:
        if raw[0] == 0x08:
            session, at = read_varint(raw, 1)
        if raw[at] == 0x10:
            request, at = read_varint(raw, at + 1)
    except (IndexError, ValueError):
        if at >= len(raw) and raw:
            return Head(session, request, b"")
        return Head(0, 0, raw)
    return Head(session, request, raw[at:])


NAMED = 10
"""Bytes of the field session_id, for numbers that begin with a second of the years 2004 to 2038."""


def request_of(raw: bytes, at: int) -> tuple[int, bytes]:
    """request_id, if it is what comes there, and everything behind it."""
    if raw[at : at + 1] != b"\x10":
        return 0, raw[at:]
    try:
        request, end = read_varint(raw, at + 1)
    except (IndexError, ValueError):
        return 0, raw[at:]
    return request, raw[end:]


def batch_of(raw: bytes, most: int) -> tuple[int, list[bytes]] | None:
    """session_id and the ops of a BatchOpRequest, still as bytes; None where it looks unusual. Of more than ``most``
    ops one more is taken off, and the rest left alone."""
    session = at = 0
    ops: list[bytes] = []
    end = len(raw)
    try:
        if end and raw[0] == 0x08:
            session, at = read_varint(raw, 1)
        while at < end and len(ops) <= most:
            if raw[at] != 0x12:
                return None
            length, at = read_varint(raw, at + 1)
            if at + length > end:
                return None
            ops.append(raw[at : at + length])
            at += length
    except (IndexError, ValueError):
        return None
    return session, ops
