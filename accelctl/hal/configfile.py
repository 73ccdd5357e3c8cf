"""Where configuration files lie, which of them may be trusted, and their bytes.

A file is trusted when nobody can have written it who may not act for this process anyway. For root: every folder, link
and file on the way belongs to root, and nobody else can write it; sudo in somebody's folder must not obey that person.
For others: the file, and links to it, belong to them or to root, and not everybody can write it; a file may wait in
/tmp for whoever comes by. ACLs are covered: their mask shows in the group bits of the mode (acl(5)).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TypeAlias

from accelctl.errors import UsageError
from accelctl.model.setting import ABSENT, REFUSED, TAKEN, ConfigFile

HERE = "accelctl.toml"
"""Name of the file in the current folder."""

MAX_BYTES = 64 << 10
"""A table of options is far smaller; a device, a log or a disk image is not."""

MAX_LINKS = 40
"""As the kernel itself follows at most (path_resolution(7))."""


Step: TypeAlias = tuple[str, os.stat_result]
"""A folder, link or file that opening a path passes through; no link in the path but its own last part."""


def find() -> tuple[tuple[ConfigFile, bytes], ...]:
    """Every place, highest precedence first, with the bytes of the files that were taken.

    Raises UsageError for a file that should be taken and cannot be read.
    """
    return tuple(look(path, os.geteuid()) for path in places())


def places() -> tuple[str, ...]:
    """Absolute paths, highest precedence first. The XDG base directory specification ignores relative folders."""
    found = []
    try:
        found.append(os.path.join(os.getcwd(), HERE))
    except FileNotFoundError:  # the current folder has been removed
        pass
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        base = os.path.expanduser("~/.config")
    if base.startswith("/"):
        found.append(os.path.join(base, "accelctl", "config.toml"))
    return tuple(found)


def look(path: str, euid: int) -> tuple[ConfigFile, bytes]:
    """One place, as user ``euid`` sees it. A file that is not there is no error, one that cannot be read is."""
    try:
        os.lstat(path)
        steps = passed(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == path:
            return ConfigFile(path, ABSENT, ""), b""
        raise UsageError(f"{path}: a link to nothing: {error.filename}") from None
    except PermissionError as error:
        return ConfigFile(path, REFUSED, f"{error.filename}: no permission to look there"), b""
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({_reason(error)})") from None
    reason = distrust(steps, euid)
    if reason:
        return ConfigFile(path, REFUSED, reason), b""
    return ConfigFile(path, TAKEN, ""), _read(path, steps[-1])


def passed(path: str) -> list[Step]:
    """Walk an absolute path as the kernel does, from the root on. Raises OSError where the walk ends early."""
    steps = [("/", os.lstat("/"))]
    pending, here, links = path.split("/")[::-1], "/", 0
    while pending:
        name = pending.pop()
        os.lstat(os.path.join(here, "."))  # an error where a file stands in the middle of a path
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        steps.append((step, os.lstat(step)))
        if not stat.S_ISLNK(steps[-1][1].st_mode):
            here = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(step)
        here = "/" if target.startswith("/") else here
        pending += target.split("/")[::-1]
    return steps


def distrust(steps: list[Step], euid: int) -> str:
    """Why a file that was reached over ``steps`` is not taken by user ``euid``; empty: it is."""
    for number, (path, status) in enumerate(steps, start=1):
        link = stat.S_ISLNK(status.st_mode)
        if euid != 0 and not link and number < len(steps):
            continue
        if status.st_uid not in (0, euid):
            wanted = "root" if euid == 0 else "you or root"
            return f"{path} belongs to user {status.st_uid}, not to {wanted}"
        if not link and status.st_mode & (0o022 if euid == 0 else 0o002):
            who = "everybody" if status.st_mode & 0o002 else f"group {status.st_gid}"
            return f"{path} can be written by {who}"
    return ""


def _read(path: str, last: Step) -> bytes:
    """The bytes. What is no plain file is not even opened: a pipe would wait, a device might start something."""
    place, status = last
    try:
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: {'a folder' if stat.S_ISDIR(status.st_mode) else 'no plain file'}")
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "rb") as source:
            if not os.path.samestat(os.fstat(handle), status):
                raise UsageError(f"{path}: was replaced while it was read")
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({_reason(error)})") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 10} KiB, so not a configuration of accelctl")
    return data


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
