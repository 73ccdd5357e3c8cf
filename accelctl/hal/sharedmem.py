"""Memory that two processes share without a name: a memfd that is fully allocated and can change its size no more.

Nothing lies in /dev/shm, so a killed process leaves nothing behind. posix_fallocate takes the pages at once: a full
machine is an error at the start, not a SIGBUS in the middle of a copy. The seals (F_SEAL_SHRINK, F_SEAL_GROW, and
F_SEAL_SEAL against further ones) keep a peer from cutting the file off below our mapping, which would be a SIGBUS too.
What a seal does not stop, a peer that writes anything anywhere or punches holes (they read as zeros), is the business
of whoever interprets the bytes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from types import TracebackType

from accelctl.errors import AccelError
from accelctl.hal.devfile import F_ADD_SEALS, F_GET_SEALS, PAGE, File

F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4  # linux/fcntl.h; the fcntl module has no names for them in 3.10
SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
_NEEDED = F_SEAL_SHRINK | F_SEAL_GROW
_NOEXEC_SEAL = 8  # linux/memfd.h, since Linux 6.3: no code in it, as vm.memfd_noexec=2 demands
_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING


class SharedMemory:
    """Pages mapped for reading and writing, until :meth:`close` or the end of ``with``.

    ``view`` is all of it; whoever slices it releases the slices before :meth:`close`. ``fd`` is what
    a side socket passes on.
    """

    def __init__(self, fd: int, size_bytes: int, name: str) -> None:
        """Take over a descriptor whose seals and size are known to be right."""
        self._file = File(fd, f"memfd:{name}")
        self.size_bytes = size_bytes
        try:
            self.view = memoryview(self._file.map(size_bytes))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fd(self) -> int:
        """The descriptor; -1 after :meth:`close`."""
        return self._file.fd

    def close(self) -> None:
        """Release the mapping and the descriptor; safe to call twice. BufferError while a slice of ``view`` is
        alive: the descriptor is closed all the same."""
        self.view.release()
        self._file.close()


def create(name: str, size_bytes: int) -> SharedMemory:
    """New pages, zeroed, all of them there. ``name`` is only what /proc/PID/maps shows.

    Raises AccelError of kind out_of_memory where there is no room for them, os_error otherwise.
    """
    if size_bytes <= 0 or size_bytes % PAGE:
        raise ValueError(f"{size_bytes} bytes: not a whole number of pages")
    try:
        return SharedMemory(_sealed(name, size_bytes), size_bytes, name)
    except OSError as error:
        kind = "out_of_memory" if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT) else "os_error"
        raise AccelError(f"no shared memory of {size_bytes} bytes: {error.strerror}", kind=kind) from error


def adopt(fd: int, size_bytes: int, name: str) -> SharedMemory:
    """Map what a peer sent; the descriptor is ours from here on, also when this fails.

    Raises AccelError of kind communication unless it is a memfd, sealed against shrinking and growing, of exactly that
    size. The order matters: only after the seals were seen does the size stay what it is.
    """
    try:
        try:
            seals = fcntl.fcntl(fd, F_GET_SEALS)
        except OSError:  # EINVAL: no file that can have seals
            raise _refused("is no memfd") from None
        if seals & _NEEDED != _NEEDED:
            raise _refused("could be cut off by its owner: it is not sealed")
        found = os.fstat(fd).st_size
        if found != size_bytes:
            raise _refused(f"has {found} bytes, not {size_bytes}")
    except BaseException:
        os.close(fd)
        raise
    try:
        return SharedMemory(fd, size_bytes, name)
    except OSError as error:
        raise AccelError(f"shared memory cannot be mapped: {error.strerror}", kind="os_error") from error


def scratch(size_bytes: int) -> memoryview:
    """Private pages of this process that no malloc has a hand in, as long as the view lives.

    They start a quarter into a page: see PHASE in umd/channel/ring.py for what the place in a page does to copies.
    """
    at = PAGE // 4
    pages = mmap.mmap(-1, at + size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(pages)[at:]


def _sealed(name: str, size_bytes: int) -> int:
    fd = _memfd(name)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def _memfd(name: str) -> int:
    try:
        return os.memfd_create(name, _FLAGS | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, _FLAGS)  # a kernel before 6.3


def _refused(why: str) -> AccelError:
    return AccelError(f"the shared memory offered {why}", kind="communication")
