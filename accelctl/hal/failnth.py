"""The kernel's own fault injection for one thread: /proc/self/task/TID/fail-nth.

Kernel Documentation/fault-injection/fault-injection.rst: after writing N the N-th fault point that this thread passes
fails; reading gives what is left, 0 once it has struck. Every copy from and to user space is a fault point too, those
of this file included, so reading and writing it can themselves be what fails (as in the iommufd_fail_nth selftest).
"""

from __future__ import annotations

import errno
import os
import threading

_TRIES = 8


def path_of_thread() -> str:
    """The file of the calling thread."""
    return f"/proc/self/task/{threading.get_native_id()}/fail-nth"


class FailNth:
    """The file, open until :meth:`close`. It belongs to the thread that made it; another one that used it (a child
    after fork included) would fail calls of the first."""

    def __init__(self, path: str = "") -> None:
        self._fd = os.open(path or path_of_thread(), os.O_RDWR | os.O_CLOEXEC)
        self._thread = threading.get_native_id()

    def arm(self, n: int) -> None:
        """The ``n``-th fault point from here on fails. Raises OSError."""
        if threading.get_native_id() != self._thread:
            raise ValueError("fail-nth of another thread")
        if n < 1:
            raise ValueError(f"fault point {n}: they are counted from 1")
        os.pwrite(self._fd, b"%d" % n, 0)

    def stop(self) -> bool:
        """Disarm; whether it had struck. Raises OSError.

        A read that fails with EFAULT was the victim itself: the calls before it had not got that far.
        """
        struck = False
        try:
            struck = int(os.pread(self._fd, 32, 0)) == 0
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
        return not self._disarm() and struck

    def _disarm(self) -> bool:
        """Write 0; whether that was struck."""
        for attempt in range(_TRIES):
            try:
                os.pwrite(self._fd, b"0", 0)
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                continue
            return attempt > 0
        raise OSError(errno.EFAULT, "fail-nth could not be disarmed")

    def close(self) -> None:
        """Disarm and close; safe to call twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.pwrite(fd, b"0", 0)
            finally:
                os.close(fd)
