"""A file that several processes change: one at a time, each by replacing it as a whole.

The lock is a flock(2) on a file beside it, which the kernel gives back when its holder ends, however that ends. The
lock file stays: to remove it would let two of them hold "the" lock, one on the old file and one on the new.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from accelctl.errors import AccelError, UsageError, unwritable
from accelctl.hal.configfile import distrust, passed

PATIENCE_S = 10.0
"""For whoever has the lock; a change takes milliseconds."""
_POLL_S = 0.005


def data_home() -> str:
    """$XDG_DATA_HOME, or ~/.local/share; the XDG base directory specification ignores relative folders."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return base if base.startswith("/") else os.path.expanduser("~/.local/share")


def made_folder(path: str) -> str:
    """A folder, made where it is not there. UsageError, one line, where that is impossible."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be made ({_reason(error)})") from None
    return path


def content(path: str, most: int) -> bytes | None:
    """The bytes of a file, at most one more than ``most``; None where there is none. UsageError, one line, for
    what cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            return file.read(most + 1) or b""
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({_reason(error)})") from None


def distrusted(path: str) -> str:
    """Why a file that nobody named is not taken by this user, as configuration would not be; empty: it is, or there is
    none."""
    try:
        return distrust(passed(path), os.geteuid())
    except OSError:
        return ""


def replaceable(path: str) -> str:
    """Where the file lies that is replaced for this path: over links, so that they stay. UsageError for what is there
    and is no plain file: a device node of that name would be gone for the whole machine."""
    try:
        place = os.path.realpath(path)
        if stat.S_ISREG(os.stat(place).st_mode):
            return place
    except FileNotFoundError:
        return place
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None
    raise UsageError(f"{path}: cannot be written (it is there, and no plain file)")


@contextmanager
def locked(path: str, patience_s: float = PATIENCE_S) -> Iterator[str]:
    """The only holder of the lock of ``path`` for as long as it lasts; gives the path that it leads to over links.
    UsageError where the lock file cannot be made, AccelError (busy) where somebody keeps the lock."""
    place = replaceable(path)
    try:
        lock = os.path.join(os.path.dirname(place), f".{os.path.basename(place)}.lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None
    try:
        _take(fd, path, patience_s)
        yield place
    finally:
        os.close(fd)


def _take(fd: int, path: str, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                text = f"{path}: another process has held its lock for {patience_s:g} s"
                raise AccelError(text, f"fuser {path}", kind="busy") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be locked ({_reason(error)})") from None
        time.sleep(_POLL_S)


def replaced(path: str, data: bytes) -> None:
    """Write a file as a whole, under another name first. Who may read and write it stays as it was; a new one is its
    owner's to write, as what others can write is not trusted later (distrusted), and others read it as the umask says.
    UsageError where that is impossible; what was there stays then."""
    temporary, path = "", replaceable(path)
    try:
        mode = _mode(path)
        name = os.path.join(os.path.dirname(path), f".accelctl-{os.urandom(8).hex()}")
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644 if mode is None else mode)
        temporary = name
        with open(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise unwritable(path, error) from None


def _mode(path: str) -> int | None:
    """Of a file that is there."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()
