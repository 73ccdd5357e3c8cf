"""Numbers of ioctls: direction, size of the argument, type letter and command in 32 bits.

The encoding is that of include/uapi/asm-generic/ioctl.h, which x86, arm, arm64, riscv, s390 and loongarch use.
powerpc, mips, sparc, alpha and parisc put other values into the direction bits (and all but parisc have 3 of them and
13 for the size): numbers made here are wrong there, which is why :func:`encoding_known` exists.
"""

from __future__ import annotations

import os
from typing import NamedTuple

NONE, WRITE, READ = 0, 1, 2  # seen from user space: WRITE hands the argument to the kernel
MAX_SIZE = (1 << 14) - 1
_TYPE_SHIFT, _SIZE_SHIFT, _DIR_SHIFT = 8, 16, 30
_OTHER_ENCODING = ("ppc", "powerpc", "mips", "sparc", "alpha", "parisc")


class Ioc(NamedTuple):
    """The parts of an ioctl number. ``size`` is that of the argument in bytes, 0 where the number does not say."""

    direction: int
    type: str
    command: int
    size: int


def encode(direction: int, type_: str, command: int, size: int = 0) -> int:
    """_IOC(): raises ValueError for parts that do not fit."""
    if not 0 <= direction <= READ | WRITE or not 0 <= command <= 0xFF or not 0 <= size <= MAX_SIZE or len(type_) != 1:
        raise ValueError(f"not the parts of an ioctl number: {direction}, {type_!r}, {command:#x}, {size}")
    return direction << _DIR_SHIFT | size << _SIZE_SHIFT | ord(type_) << _TYPE_SHIFT | command


def io(type_: str, command: int) -> int:
    """_IO(): no argument, or one whose size the number does not say."""
    return encode(NONE, type_, command)


def ior(type_: str, command: int, size: int) -> int:
    """_IOR(): the kernel fills an argument of ``size`` bytes."""
    return encode(READ, type_, command, size)


def iow(type_: str, command: int, size: int) -> int:
    """_IOW(): the kernel reads an argument of ``size`` bytes."""
    return encode(WRITE, type_, command, size)


def iowr(type_: str, command: int, size: int) -> int:
    """_IOWR(): the kernel reads and fills an argument of ``size`` bytes."""
    return encode(READ | WRITE, type_, command, size)


def decode(number: int) -> Ioc:
    """The parts of a number; raises ValueError for one that is wider than 32 bits."""
    if not 0 <= number < 1 << 32:
        raise ValueError(f"not an ioctl number: {number:#x}")
    return Ioc(number >> _DIR_SHIFT, chr(number >> _TYPE_SHIFT & 0xFF), number & 0xFF, number >> _SIZE_SHIFT & MAX_SIZE)


def encoding_known(machine: str | None = None) -> bool:
    """True where the kernel of this machine (uname -m) uses the encoding above."""
    return not (machine or os.uname().machine).startswith(_OTHER_ENCODING)
