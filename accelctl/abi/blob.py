"""The instruction blob: what a translated op is for the device (little-endian).

    0-3    magic 0x5A5A5A5A
    4-11   kernel_id
    12-19  instruction_size: bytes of the body
    20-27  param_count
    28-35  launch_config (abi.launch)
    36-    param_count device addresses of 8 bytes: inputs, then outputs
    then   the body (abi.call)

Nothing else is accepted: no byte more or less, no other magic.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from accelctl.abi import launch
from accelctl.abi.launch import Launch
from accelctl.errors import AccelError, UsageError

MAGIC = 0x5A5A5A5A
HEADER = struct.Struct("<IQQQQ")
MOST_PARAMS = 16
MOST_BODY = 1 << 16
"""Bytes; the largest description of an op needs some 2,000."""


class Instruction(NamedTuple):
    """A blob, taken apart."""

    kernel_id: int
    launch: Launch
    params: tuple[int, ...]
    body: bytes


def encode(kernel_id: int, launch_config: int, params: Sequence[int], body: bytes) -> bytes:
    """The blob. UsageError for what the fields do not hold, or decode would refuse for its size."""
    if len(params) > MOST_PARAMS or len(body) > MOST_BODY:
        raise UsageError(_too_much(len(params), len(body)))
    try:
        head = HEADER.pack(MAGIC, kernel_id, len(body), len(params), launch_config)
        return head + struct.pack(f"<{len(params)}Q", *params) + body
    except struct.error as error:
        raise UsageError(f"instruction: a number does not fit its 64 bits ({error})") from None


def _too_much(params: int, body: int) -> str:
    return f"instruction: {params} parameters and {body} bytes of body are more than any op needs"


def decode(blob: bytes | bytearray | memoryview) -> Instruction:
    """Take a blob apart. UsageError naming what is wrong with it."""
    size = len(blob)
    if size < HEADER.size:
        raise UsageError(f"instruction: {size} bytes, the header alone has {HEADER.size}")
    magic, kernel_id, body, count, config = HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise UsageError(f"instruction: it begins with {magic:#010x}, not {MAGIC:#010x}")
    if count > MOST_PARAMS or body > MOST_BODY:
        raise UsageError(_too_much(count, body))
    start = HEADER.size + 8 * count
    if size != start + body:
        raise UsageError(f"instruction: {size} bytes, its header says {start + body}")
    try:
        shape = launch.decode(config)
    except AccelError as error:
        raise UsageError(f"instruction: {error.message}") from None
    return Instruction(kernel_id, shape, struct.unpack_from(f"<{count}Q", blob, HEADER.size), bytes(blob[start:]))
