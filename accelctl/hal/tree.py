"""Where files come from: the running kernel, a folder, or a tar archive, behind one small interface.

A captured machine is full of absolute links ("/sys/devices/...") and may come from a stranger. So the folder and the
archive resolve every link themselves, as chroot(2) would: nothing outside is ever reached. An archive is read into
memory and never extracted.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Protocol

MAX_STEPS = 1024  # names on the way of one path, those of its links included
MAX_HOPS = 40  # the kernel's own limit for links in one path (MAXSYMLINKS)


class NodeStat(NamedTuple):
    """What stat(2) says of a node. ``kind`` is one of f d l c b p s; ``acl`` the raw POSIX ACL
    (system.posix_acl_access) if any.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    major: int = 0
    minor: int = 0
    acl: bytes | None = None


class Tree(Protocol):
    """All methods take paths below the root without a leading slash and raise OSError like the system calls they stand
    for.
    """

    name: str
    live: bool

    def read(self, path: str, limit: int) -> bytes:
        """Up to ``limit`` bytes of a file."""

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def readlink(self, path: str) -> str:
        """Target of a link as written."""

    def resolve(self, path: str) -> str:
        """The real path."""

    def stat(self, path: str) -> NodeStat:
        """stat(2), links followed."""


def fail(code: int, path: str) -> OSError:
    """The OSError the kernel would raise."""
    return OSError(code, os.strerror(code), path)


PAGE = 4096


def read_fd(fd: int, limit: int, *, short_is_end: bool) -> bytes:
    """Read up to ``limit`` bytes.

    ``short_is_end``: less than a page means the end, which holds for sysfs and for plain files and saves every second
    system call; files of /proc may answer in pieces and are read until they say so. The first piece is a page: nearly
    every file fits, sysfs gives no more at a time, and Python makes a buffer of the size asked for (256 KiB: 30 us).
    """
    chunk = os.read(fd, PAGE if limit > PAGE else limit)
    if short_is_end and len(chunk) < PAGE:
        return chunk
    chunks, total = [chunk], len(chunk)
    while chunk and total < limit:
        chunk = os.read(fd, limit - total)
        chunks.append(chunk)
        total += len(chunk)
    return b"".join(chunks)


_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OPEN_PLAIN = _OPEN | os.O_NOFOLLOW
_KINDS = {
    stat.S_IFREG: "f",
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "l",
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "s",
}


def node_stat(path: str, *, follow: bool = True) -> NodeStat:
    """stat(2) plus the ACL, of a path on the running system."""
    info = os.stat(path, follow_symlinks=follow)
    kind = _KINDS.get(stat.S_IFMT(info.st_mode), "?")
    acl = None
    if kind in "cb":
        try:
            acl = os.getxattr(path, "system.posix_acl_access")
        except OSError:  # no ACL, or a file system without them: the mode bits are all there is
            acl = None
    return NodeStat(
        kind, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, os.major(info.st_rdev), os.minor(info.st_rdev), acl
    )


class LiveTree:
    """The running kernel. Links are the kernel's own business here."""

    live = True
    name = "/"

    def read(self, path: str, limit: int) -> bytes:
        """Open, read and close one file."""
        fd = os.open("/" + path, _OPEN)
        try:
            return read_fd(fd, limit, short_is_end=path.startswith("sys/"))
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(os.listdir("/" + path))

    def readlink(self, path: str) -> str:
        """Target of a link as written."""
        return os.readlink("/" + path)

    def resolve(self, path: str) -> str:
        """The real path, without the leading slash."""
        return os.path.realpath("/" + path)[1:]

    def stat(self, path: str) -> NodeStat:
        """stat(2), links followed."""
        return node_stat("/" + path)


class ConfinedTree:
    """Link resolution below a root for trees that are not the running system. Captured trees do not change, so real
    paths are remembered.
    """

    live = False

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def _link(self, path: str) -> str | None:
        """Target if ``path`` (its folders already resolved) is a link."""
        raise NotImplementedError

    def resolve(self, path: str) -> str:
        """The real path below the root; ``..`` stops at the root as in a chroot; raises ELOOP for a loop of links."""
        known = self._paths.get(path)
        if known is None:
            folder, _, name = path.rpartition("/")
            base = self._paths.get(folder)
            if base is None:
                base = self._paths[folder] = self._walk(folder)
            known = self._paths[path] = self._walk(f"{base}/{name}" if base else name, trusted=base)
        return known

    def _walk(self, path: str, trusted: str = "") -> str:
        if "\0" in path:  # no name holds one; the system calls would not even be made (ValueError)
            raise fail(errno.ENOENT, path)
        here = trusted
        todo = path[len(trusted) :].split("/")[::-1]
        hops = 0
        steps = len(todo)
        while todo:
            if steps > MAX_STEPS:  # no real path has as many, and every further one costs as much as all before
                raise fail(errno.ENAMETOOLONG, path[:100])
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            place = f"{here}/{part}" if here else part
            target = self._link(place)
            if target is None:
                here = place
                continue
            hops += 1
            if hops > MAX_HOPS:
                raise fail(errno.ELOOP, path)
            if target.startswith("/"):
                here = ""
            parts = target.split("/")[::-1]
            steps += len(parts)
            todo.extend(parts)
        return here


class DirTree(ConfinedTree):
    """A folder that holds a captured machine.

    A folder that was listed has told which of its entries are plain files: to ask for each again what it is would take
    as long as to read it.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.name = folder
        self._prefix = folder.rstrip("/") + "/"
        self._links: dict[str, str | None] = {}
        self._listed: dict[str, list[str]] = {}
        self._plain: dict[str, set[str]] = {}

    def _link(self, path: str) -> str | None:
        if path in self._links:
            return self._links[path]
        folder, _, name = path.rpartition("/")
        target = None
        if name not in self._plain.get(folder, ()):
            try:
                target = os.readlink(self._prefix + path)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    raise
        self._links[path] = target  # None: not a link, or nothing there: the operation that follows reports it
        return target

    def read(self, path: str, limit: int) -> bytes:
        """Read one regular file; anything else there (FIFO, device, folder) is refused instead of waited for."""
        folder, _, name = path.rpartition("/")
        place = self._paths.get(folder)
        if place is None:
            place = self.resolve(folder)
        real = f"{self._prefix}{place}/{name}"
        if name not in self._plain.get(place, ()):  # asked before opening: opening a device is an act of its own
            info = os.lstat(real)
            if stat.S_ISLNK(info.st_mode):
                real = self._prefix + self.resolve(path)
                info = os.lstat(real)
            if not stat.S_ISREG(info.st_mode):
                raise fail(errno.EINVAL, path)
        fd = os.open(real, _OPEN_PLAIN)
        try:
            return read_fd(fd, limit, short_is_end=True)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        real = self.resolve(path)
        if real not in self._listed:
            with os.scandir(self._prefix + real) as found:
                entries = list(found)
            self._plain[real] = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
            self._listed[real] = sorted([entry.name for entry in entries])
        return self._listed[real].copy()

    def readlink(self, path: str) -> str:
        """Target of a link as written; the folders above it are resolved below the root."""
        folder, _, name = path.rpartition("/")
        base = self.resolve(folder) if folder else ""
        if "\0" in name:
            raise fail(errno.ENOENT, path)
        return os.readlink(f"{self._prefix}{base}/{name}")

    def stat(self, path: str) -> NodeStat:
        """stat(2) of what is there."""
        folder, _, name = path.rpartition("/")
        if name in ("", ".", "..") or "\0" in name:
            return node_stat(self._prefix + self.resolve(path), follow=False)
        found = node_stat(f"{self._prefix}{self.resolve(folder)}/{name}", follow=False)
        return node_stat(self._prefix + self.resolve(path), follow=False) if found.kind == "l" else found


class MemoryTree(ConfinedTree):
    """A machine held in memory: what an archive becomes, and what tests build."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.nodes: dict[str, NodeStat] = {}
        self.folders: dict[str, set[str]] = {"": set()}

    def add_folder(self, path: str) -> None:
        """Make a folder and those above it; a file of that name gives way."""
        if path not in self.folders:
            self.files.pop(path, None)
            self.nodes.pop(path, None)
            self.folders[path] = set()
            self._enter(path)

    def _enter(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self.add_folder(folder)
        self.folders[folder].add(name)

    def _replace(self, path: str) -> None:
        """Of two things under one name the later one wins, as with tar."""
        for kind in (self.files, self.links, self.nodes):
            kind.pop(path, None)
        self._enter(path)

    def add_file(self, path: str, data: bytes) -> None:
        """Put a file."""
        self._replace(path)
        self.files[path] = data

    def add_link(self, path: str, target: str) -> None:
        """Put a symbolic link."""
        self._replace(path)
        self.links[path] = target

    def add_node(self, path: str, node: NodeStat) -> None:
        """Put the metadata of a node that cannot be read (device, FIFO, socket)."""
        self._replace(path)
        self.nodes[path] = node

    def _link(self, path: str) -> str | None:
        return self.links.get(path)

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a file."""
        real = self.resolve(path)
        data = self.files.get(real)
        if data is not None:
            return data[:limit]
        if real in self.folders:
            raise fail(errno.EISDIR, path)
        raise fail(errno.EINVAL if real in self.nodes else errno.ENOENT, path)

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        real = self.resolve(path)
        names = self.folders.get(real)
        if names is None:
            raise fail(errno.ENOTDIR if real in self.files else errno.ENOENT, path)
        return sorted(names)

    def readlink(self, path: str) -> str:
        """Target of a link as written."""
        folder, _, name = path.rpartition("/")
        base = self.resolve(folder) if folder else ""
        target = self.links.get(f"{base}/{name}" if base else name)
        if target is None:
            raise fail(errno.EINVAL if self._exists(path) else errno.ENOENT, path)
        return target

    def _exists(self, path: str) -> bool:
        real = self.resolve(path)
        return real in self.files or real in self.folders or real in self.nodes

    def stat(self, path: str) -> NodeStat:
        """What the archive says of the node; plain files and folders are root's, as in sysfs."""
        real = self.resolve(path)
        if real in self.nodes:
            return self.nodes[real]
        if real in self.folders:
            return NodeStat("d", 0o755, 0, 0)
        if real in self.files:
            return NodeStat("f", 0o444, 0, 0)
        raise fail(errno.ENOENT, path)
