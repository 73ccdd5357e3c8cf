"""A device node, opened: the one place where nodes are opened, called and mapped, and the one way they are released.

All system calls go through :data:`SYSCALLS`, so that a test or a trace can stand in between. Everything opened here is
counted (:func:`open_files`), because a leaked descriptor keeps a GPU awake and its memory allocated.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from types import TracebackType

from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, PermissionDenied, UsageError
from accelctl.hal.ioc import decode

_RESTART_S = (
    10.0  # libdrm restarts without end; a driver that answers EAGAIN for ten seconds is not going to change its mind
)


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

    def ioctl(self, fd: int, number: int, argument: bytearray) -> int:
        """ioctl(2) with a structure; the kernel's answer is written into ``argument``."""
        result: int = fcntl.ioctl(fd, number, argument, True)
        return result

    def map(self, fd: int, size: int, offset: int) -> mmap.mmap:
        """mmap(2), shared, for reading and writing. Python keeps a duplicate of ``fd`` for each mapping (before
        3.13)."""
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)

    def close(self, fd: int) -> None:
        """close(2)."""
        os.close(fd)


SYSCALLS = Syscalls()

_open: dict[int, str] = {}


def open_files() -> dict[int, str]:
    """Descriptor -> path of the nodes that are open now."""
    return dict(_open)


class DevFile:
    """A character device, open for reading and writing until :meth:`close` (or the end of ``with``).

    Raises UsageError for anything that is not a character device, NoDeviceError where there is none (ENOENT, ENODEV,
    ENXIO), PermissionDenied (EACCES, EPERM), DeviceUnusable otherwise.
    """

    def __init__(self, path: str, *, syscalls: Syscalls | None = None) -> None:
        self.path = path
        self.fd = -1
        self._sys = syscalls or SYSCALLS
        self._maps: list[mmap.mmap] = []
        try:
            before = self._sys.stat(path)
            if not stat.S_ISCHR(before.st_mode):  # opening a FIFO or a tape would wait or act
                raise UsageError(f"{path}: not a character device")
            fd = self._sys.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise _explained(path, error) from error
        if self._sys.fstat(fd).st_rdev != before.st_rdev:
            self._sys.close(fd)
            raise DeviceUnusable(f"{path}: replaced by another device while it was opened")
        self.fd = fd
        self.number = (os.major(before.st_rdev), os.minor(before.st_rdev))
        _open[fd] = path

    def __enter__(self) -> DevFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ioctl(self, number: int, argument: bytearray) -> int:
        """One call with a structure in ``argument``, restarted on EINTR and EAGAIN as libdrm does. Raises OSError.

        An argument shorter than the number says is refused: the kernel would write behind its end. Where the number
        says nothing (size 0) the caller answers for the length.
        """
        if self.fd < 0:
            raise ValueError(f"{self.path}: closed")
        if len(argument) < decode(number).size:
            raise ValueError(
                f"ioctl {number:#x}: argument of {len(argument)} bytes, its number says {decode(number).size}"
            )
        end = time.monotonic() + _RESTART_S
        while True:
            try:
                return self._sys.ioctl(self.fd, number, argument)
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN) or time.monotonic() > end:
                    raise
                if error.errno == errno.EAGAIN:
                    time.sleep(0.001)

    def map(self, size: int, offset: int) -> mmap.mmap:
        """Map ``size`` bytes at the offset the driver named; released by :meth:`unmap` or with the file. Raises
        OSError."""
        if self.fd < 0:
            raise ValueError(f"{self.path}: closed")
        mapping = self._sys.map(self.fd, size, offset)
        self._maps.append(mapping)
        return mapping

    def unmap(self, mapping: mmap.mmap) -> None:
        """Give one mapping back. Raises BufferError while a view of it is alive; then it stays accounted for."""
        mapping.close()
        self._maps.remove(mapping)

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


def _explained(path: str, error: OSError) -> AccelError:
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR):
        return NoDeviceError(f"{path}: {error.strerror}", hint="accelctl probe")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            f"{path}: {error.strerror}", hint="accelctl probe says which group or capability is missing"
        )
    return DeviceUnusable(f"{path}: {error.strerror}", hint="accelctl probe")
