"""One process per address: a private folder, and a lock in it that says who holds it.

A lock is a flock(2) on a file: the kernel gives it back when its holder ends, however that ends, so no lock is ever
stale and none is taken from a living process. What is written in the file (pid and start time, because pids come back)
is only for the refusal of the second one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from accelctl.errors import AccelError, PermissionDenied, UsageError
from accelctl.hal.procfile import parse_stat
from accelctl.hal.sidesocket import listening

_TRIES = 100
"""How often a lock file may vanish between opening and locking it before that is somebody's doing."""
_WRITE_S = 0.2
"""A holder writes its name right after it has the lock."""


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
    why = _not_private(path)
    if why:
        raise PermissionDenied(f"{path} {why}", "name a socket elsewhere: --listen unix:/path")
    return path


def _not_private(path: str) -> str:
    """Why others could have a hand in this folder; empty: they cannot."""
    if not _ours(path):
        return "is not a folder of this user's"
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & 0o077:
        return f"can be entered by others: its mode is {mode:04o}, not 0700"
    above = os.stat(os.path.dirname(path)).st_mode
    if above & 0o002 and not above & stat.S_ISVTX:
        return "can be renamed by everybody: the folder above it is writable for all, and not sticky"
    return ""


def _ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextmanager
def private_mask() -> Iterator[None]:
    """What this process makes in between is its user's alone, from the first moment, whoever makes it: gRPC binds its
    socket with whatever the umask leaves."""
    old = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(old)


class Claim:
    """The only holder of ``path`` (a lock file), until :meth:`close`."""

    def __init__(self, path: str, what: str) -> None:
        """``what`` is what is claimed, for people. AccelError of kind already_exists naming the pid of who has it."""
        self.path = path
        for _ in range(_TRIES):
            self._fd = _opened(path)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(self._fd, path):
                    break
                os.close(self._fd)  # its last holder has just removed it: locked by us, and by nobody found
            except BlockingIOError:
                try:
                    raise _taken(self._fd, path, what) from None
                finally:
                    os.close(self._fd)
            except OSError as error:
                os.close(self._fd)
                raise AccelError(f"{path} cannot be locked: {error.strerror}", kind="os_error") from error
        else:
            raise AccelError(f"{path} is removed again and again; nothing can be locked there", kind="busy")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()} {_started(os.getpid())}\n".encode(), 0)

    def remove_socket(self, path: str) -> None:
        """Take away what an earlier holder left at ``path``. UsageError where something else than a socket is there,
        AccelError where another program, which knows nothing of our lock, listens on it."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise PermissionDenied(f"{path}: {error.strerror}") from error
        if not stat.S_ISSOCK(mode):
            raise UsageError(f"{path} is there already, and is no socket")
        other = listening(path)
        if other is not None:
            who = f"process {other.pid}" if other.pid > 0 else "another process"
            raise AccelError(f"{path}: {who} listens there, which is no accelctl serve", kind="already_exists")
        with suppress(FileNotFoundError):
            os.unlink(path)

    def sweep(self, path: str) -> None:
        """At the end: take our own socket away. What is not a dead socket is somebody else's and stays."""
        with suppress(AccelError, OSError):
            self.remove_socket(path)

    def close(self) -> None:
        """Give it back; safe to call twice. The file goes first: who gets the lock of a removed file looks again."""
        if self._fd >= 0:
            with suppress(OSError):
                if _is_at(self._fd, self.path):
                    os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _opened(path: str) -> int:
    """The lock file, which is this user's alone. PermissionDenied, UsageError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise UsageError(f"{os.path.dirname(path)}: there is no such folder") from error
        kind = PermissionDenied if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP) else UsageError
        raise kind(f"{path}: {error.strerror}") from error
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        os.fchmod(fd, 0o600)
        return fd
    os.close(fd)
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is there already, and is no plain file")
    raise PermissionDenied(f"{path} belongs to user {found.st_uid}: what it says is not to be trusted")


def _is_at(fd: int, path: str) -> bool:
    """Is this open file still the one with that name?"""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _taken(fd: int, path: str, what: str) -> AccelError:
    """The refusal, with the holder's pid if the process that wrote it is still the one that has this pid."""
    end = time.monotonic() + _WRITE_S
    said = _said(fd)
    while not said and time.monotonic() < end:
        time.sleep(0.005)
        said = _said(fd)
    if said and _started(said[0]) == said[1]:
        return AccelError(f"{what} is taken: process {said[0]} serves it", f"kill {said[0]}", kind="already_exists")
    who = f"; process {said[0]}, which took it, has ended" if said else ""
    return AccelError(f"{what} is taken by a process that cannot be named{who}", f"fuser {path}", kind="already_exists")


def _said(fd: int) -> tuple[int, int] | None:
    """(pid, start time in ticks since boot) in a lock file; None: nothing that makes sense."""
    words = os.pread(fd, 64, 0).split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 20 for word in words):
        return None
    return int(words[0]), int(words[1])


def _started(pid: int) -> int:
    """When a process started, in ticks since boot (proc(5), field 22); -1: there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read()).start_ticks
    except (OSError, ValueError):
        return -1
