"""Files that are read again and again: kept open and read in place.

Opening a file of /proc costs several times what reading it does. A file of /proc that is kept open belongs to its
process for ever: after that one's end reading it gives ENOENT, even where the number lives on in another process.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress

from accelctl.hal.tree import Tree, fail

_ASKED = 16384
_SPARE = 64
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_PAGE = 4096
_LARGEST = 1 << 20


def _open(path: str) -> int:
    return os.open(path, _FLAGS)


_pread = os.pread


def room() -> int:
    """How many files this process may keep open: what RLIMIT_NOFILE leaves, less a quarter for everything else.

    The soft limit is raised first, as far as the hard one allows: 1024 is the usual soft one, for the sake of programs
    that call select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ASKED if hard == resource.RLIM_INFINITY else min(_ASKED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = _ASKED
    return max(0, soft - max(_SPARE, soft // 4))


class KeptFile:
    """One file. ``read`` gives all of it as it is now; OSError where it has gone."""

    __slots__ = ("_files", "data", "fd", "folder", "path", "size")

    def __init__(self, files: KeptFiles, path: str, fd: int | None) -> None:
        self._files = files
        self.fd = fd
        """None: it is opened for each read."""
        self.size = _PAGE
        """Of the buffer: what comes in one piece is of one moment."""
        self.path = path
        self.folder = path.rpartition("/")[0]
        self.data = b""
        """What it said last."""

    def read(self) -> bytes:
        """One pread at 0. A file that fills the buffer is read anew with a larger one, which is remembered."""
        fd = self.fd
        if fd is None:
            self.data = self._files.read(self.path)
            return self.data
        data = _pread(fd, self.size, 0)
        while len(data) == self.size < _LARGEST:
            self.size *= 2
            data = _pread(fd, self.size, 0)
        self.data = data
        return data

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        if self.fd is not None:
            self._files.closed(self.fd)
            self.fd = None


def news(files: Iterable[KeptFile], enter: Callable[[str], None]) -> tuple[list[KeptFile], list[KeptFile]]:
    """Read all of them: those that say something new (``data``), and those that have gone.

    Thousands of files, most of which say what they said before: for these nothing is done but one pread. ``enter`` is
    told the folder whenever it changes.
    """
    new: list[KeptFile] = []
    gone: list[KeptFile] = []
    pread = _pread
    folder = ""
    for file in files:
        if file.folder != folder:
            folder = file.folder
            enter(folder)
        fd, before = file.fd, file.data
        try:
            data = file.read() if fd is None else pread(fd, file.size, 0)
            if data == before:
                continue
            if len(data) >= file.size:
                data = file.read()
        except OSError:
            gone.append(file)
            continue
        file.data = data
        new.append(file)
    return new, gone


class KeptFiles:
    """Opens files below a tree and keeps as many of them open as ``limit`` says (None: :func:`room`)."""

    def __init__(self, tree: Tree, limit: int | None = None) -> None:
        self._tree = tree
        self._prefix: str | None = None
        if tree.live:
            self._prefix = "/"
        elif os.path.isdir(tree.name):
            self._prefix = tree.name.rstrip("/") + "/"
        self._left = room() if limit is None else limit

    def open(self, path: str) -> KeptFile:
        """A file (below the root); beyond the limit, and of an archive, one that is opened for each read."""
        if self._prefix is None or self._left <= 0:
            return KeptFile(self, path, None)
        fd = self._opened(path)
        self._left -= 1
        return KeptFile(self, path, fd)

    def read(self, path: str) -> bytes:
        """A file that is not kept: opened, read and closed."""
        if self._prefix is None:
            return self._tree.read(path, _LARGEST)
        file = KeptFile(self, path, self._opened(path))
        self._left -= 1
        try:
            return file.read()
        finally:
            file.close()

    def closed(self, fd: int) -> None:
        """A descriptor that its file gave back."""
        os.close(fd)
        self._left += 1

    def _opened(self, path: str) -> int:
        """No link of a captured tree leads out of it, and nothing but a plain file of it is opened."""
        if self._prefix == "/":
            return _open("/" + path)
        place = f"{self._prefix}{self._tree.resolve(path)}"
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise fail(errno.EINVAL, path)
        return _open(place)
