"""A device node, opened: the one place where nodes are opened, called and mapped, and the one way they are released.

All system calls go through :data:`SYSCALLS`, so that a test, a trace or a fault can stand in between. Everything opened
here is counted (:func:`open_files`), because a leaked descriptor keeps a GPU awake and its memory allocated.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, PermissionDenied, UsageError
from accelctl.hal.ioc import decode

_MORE: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_MMAP: Callable[..., mmap.mmap] = partial(mmap.mmap, **_MORE) if _MORE else mmap.mmap
"""mmap(2), shared, for reading and writing, which is what Python asks for when nothing is said."""
_RESTART_S = (
    10.0  # libdrm restarts without end; a driver that answers EAGAIN for ten seconds is not going to change its mind
)
PAGE = mmap.PAGESIZE
Mapped = mmap.mmap
"""What :meth:`File.map` returns."""
F_ADD_SEALS, F_GET_SEALS = 1033, 1034  # linux/fcntl.h; Python 3.10 has no name for them


class Syscalls:
    """The system calls themselves; a stand-in replaces them by overriding. They raise OSError."""

    def stat(self, path: str) -> os.stat_result:
        """stat(2)."""
        return os.stat(path)

    def open(self, path: str, flags: int) -> int:
        """open(2)."""
        return os.open(path, flags)

    def fstat(self, fd: int) -> os.stat_result:
        """fstat(2)."""
        return os.fstat(fd)

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ioctl(2) with a structure, into which the kernel's answer is written, or with a plain number (a C int)."""
        result: int = fcntl.ioctl(fd, number, argument, True)
        return result

    def map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        """mmap(2), shared, for reading and writing; fd -1: pages of our own. Before 3.13 Python keeps a duplicate of
        ``fd`` for each mapping, and so two more system calls and the device open."""
        return _MMAP(fd, size, offset=offset)

    def unmap(self, mapping: mmap.mmap) -> None:
        """munmap(2). Raises BufferError while a view of it is alive."""
        mapping.close()

    def memfd(self, name: str, size: int, seals: int) -> int:
        """memfd_create(2) of so many bytes, sealed (F_SEAL_*)."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, F_ADD_SEALS, seals)
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        """close(2)."""
        os.close(fd)


SYSCALLS = Syscalls()

_open: dict[int, str] = {}


def open_files() -> dict[int, str]:
    """Descriptor -> path, or what it is, of everything that is open now."""
    return dict(_open)


class _Sizes(dict[int, int]):
    """Bytes of the argument that an ioctl number says; decoded once per number, as loops make the same few calls."""

    def __missing__(self, number: int) -> int:
        size = self[number] = decode(number).size
        return size


_SIZES = _Sizes()


class Thing(Protocol):
    """What can be mapped (a block of a lifecycle)."""

    size: int
    offset: int
    serial: int
    map: mmap.mmap | None


class File:
    """An open descriptor that answers ioctls, and the mappings made of it, until :meth:`close` (or the end of
    ``with``).

    Made by :class:`DevFile` for nodes, and from descriptors that a driver hands out (a dma-buf, a sync file): whoever
    makes it owns the descriptor from then on.
    """

    def __init__(self, fd: int, path: str, syscalls: Syscalls | None = None) -> None:
        self.fd = fd
        self.path = path
        self._sys = calls = syscalls or SYSCALLS
        self._maps: dict[mmap.mmap, None] = {}
        real = type(calls) is Syscalls  # nothing stands in between: no Python function around what the interpreter has
        self._ioctl: Callable[..., int] = fcntl.ioctl if real else calls.ioctl
        self.call: Callable[[int, int, bytearray], int] = self._ioctl
        """ioctl(2) itself, for loops: the caller says the descriptor, answers for the length of the structure, and
        takes an OSError to :meth:`again`."""
        self._map: Callable[..., mmap.mmap] = _MMAP if real else calls.map
        self._unmap: Callable[[mmap.mmap], None] = mmap.mmap.close if real else calls.unmap
        _open[fd] = path

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ioctl(self, number: int, argument: bytearray | int = 0) -> int:
        """One call with a structure in ``argument`` (or a plain number), restarted on EINTR and EAGAIN as libdrm does.
        Raises OSError.

        A structure shorter than the number says is refused: the kernel would write behind its end. Where the number
        says nothing (size 0) the caller answers for the length. A number is taken as a C int.
        """
        if self.fd < 0:
            raise ValueError(f"{self.path}: closed")
        if not isinstance(argument, int) and len(argument) < _SIZES[number]:
            raise ValueError(f"ioctl {number:#x}: argument of {len(argument)} bytes, its number says {_SIZES[number]}")
        try:
            return self._ioctl(self.fd, number, argument)
        except OSError as error:
            return self.again(error, number, argument)

    def again(self, error: OSError, number: int, argument: bytearray | int) -> int:
        """The call after it failed with ``error``: restarted, where that is a reason to. Raises OSError."""
        if error.errno not in (errno.EINTR, errno.EAGAIN):
            raise error
        end = time.monotonic() + _RESTART_S
        while True:
            try:
                return self._ioctl(self.fd, number, argument)
            except OSError as again:
                if again.errno not in (errno.EINTR, errno.EAGAIN) or time.monotonic() > end:
                    raise
                if again.errno == errno.EAGAIN:
                    time.sleep(0.001)

    def map(self, size: int, offset: int = 0) -> mmap.mmap:
        """Map ``size`` bytes at the offset the driver named; released by :meth:`unmap` or with the file. Raises
        OSError."""
        if self.fd < 0:
            raise ValueError(f"{self.path}: closed")
        mapping = self._map(self.fd, size, offset=offset)
        self._maps[mapping] = None
        return mapping

    def map_thing(self, thing: Thing) -> int:
        """Map ``thing.size`` bytes at ``thing.offset`` into ``thing.map``; its serial number. Raises OSError."""
        if self.fd < 0:
            raise ValueError(f"{self.path}: closed")
        mapping = thing.map = self._map(self.fd, thing.size, offset=thing.offset)
        self._maps[mapping] = None
        return thing.serial

    def unmap_thing(self, thing: Thing) -> None:
        """Give ``thing.map`` back. After a failure it can be tried again."""
        mapping = thing.map
        assert mapping is not None
        self._unmap(mapping)
        del self._maps[mapping]
        thing.map = None

    def unmap(self, mapping: mmap.mmap) -> None:
        """Give one mapping back. Raises BufferError while a view of it is alive; then it stays accounted for."""
        self._unmap(mapping)
        del self._maps[mapping]

    @property
    def mappings(self) -> int:
        """How many mappings are alive."""
        return len(self._maps)

    def close(self) -> None:
        """Release the mappings, last one first, then the descriptor; safe to call twice.

        A mapping with a living view cannot be released (BufferError, raised at the end): the descriptor is closed all
        the same.
        """
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        try:
            self._unmap_all()
        finally:
            _open.pop(fd, None)
            self._sys.close(fd)

    def _unmap_all(self) -> None:
        failed: BufferError | None = None
        for mapping in reversed(tuple(self._maps)):
            try:
                self.unmap(mapping)
            except BufferError as error:
                failed = error
        if failed is not None:
            raise failed


class DevFile(File):
    """A character device, open for reading and writing.

    Raises UsageError for anything that is not a character device, NoDeviceError where there is none (ENOENT, ENODEV,
    ENXIO), PermissionDenied (EACCES, EPERM), DeviceUnusable otherwise.
    """

    def __init__(self, path: str, *, syscalls: Syscalls | None = None) -> None:
        self.fd = -1
        calls = syscalls or SYSCALLS
        try:
            before = calls.stat(path)
            if not stat.S_ISCHR(before.st_mode):  # opening a FIFO or a tape would wait or act
                raise UsageError(f"{path}: not a character device")
            fd = calls.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise _explained(path, error) from error
        try:
            same = calls.fstat(fd).st_rdev == before.st_rdev
        except OSError as error:
            calls.close(fd)
            raise _explained(path, error) from error
        if not same:
            calls.close(fd)
            raise DeviceUnusable(f"{path}: replaced by another device while it was opened")
        super().__init__(fd, path, calls)
        self.number = (os.major(before.st_rdev), os.minor(before.st_rdev))

    def __enter__(self) -> DevFile:
        return self


def _explained(path: str, error: OSError) -> AccelError:
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR):
        return NoDeviceError(f"{path}: {error.strerror}", hint="accelctl probe")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            f"{path}: {error.strerror}", hint="accelctl probe says which group or capability is missing"
        )
    return DeviceUnusable(f"{path}: {error.strerror}", hint="accelctl probe")
