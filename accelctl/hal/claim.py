"""One process per address: a private folder, and a lock in it that says who holds it.

A lock is a flock(2) on a file: the kernel gives it back when its holder ends, however that ends, so no lock is ever
stale. What is written in the file is only for the refusal of the second one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from types import TracebackType

from accelctl.errors import AccelError, PermissionDenied, UsageError


def private_folder() -> str:
    """The user's own folder for sockets: $XDG_RUNTIME_DIR/accelctl, else /tmp/accelctl-UID. Made with mode 0700 where
    it is not there. PermissionDenied where it is not only ours: a folder of somebody else's, a link, a looser mode."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    path = f"{base}/accelctl" if base.startswith("/") and _ours(base) else f"/tmp/accelctl-{os.geteuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise PermissionDenied(f"{path} cannot be made: {error.strerror}") from error
    if not _ours(path) or stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
        raise PermissionDenied(
            f"{path} is not a folder of this user's with mode 0700", "name a socket elsewhere: --listen unix:/path"
        )
    return path


def _ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


class Claim:
    """The only holder of ``path`` (a lock file), until :meth:`close`."""

    def __init__(self, path: str, what: str) -> None:
        """``what`` is what is claimed, for people. AccelError of kind already_exists naming the pid of who has it."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            kind = PermissionDenied if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP) else UsageError
            raise kind(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            who = f"pid {said}" if said.isdigit() else "another process"
            raise AccelError(f"{what} is taken by {who}", f"kill {said}" if said.isdigit() else None,
                             kind="already_exists") from None  # fmt: skip
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def remove_socket(self, path: str) -> None:
        """Take away what an earlier holder left at ``path``. UsageError where something else than a socket is there."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise UsageError(f"{path} is there already, and is no socket")
            os.unlink(path)

    def close(self) -> None:
        """Give it back. The file goes first: who waits for the lock of a removed file would hold nothing."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
