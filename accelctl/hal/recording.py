"""A Tree that remembers everything it was asked: what ``accelctl capture`` packs.

Whatever the machine answered to the scan is kept under its real path, with every link that was followed on the way, so
that a tree made of it answers the same questions alike. What was only listed is entered by its kind, without content.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from accelctl.hal.tree import ConfinedTree, NodeStat, Tree

#: Links that name the process that looks: what stands below belongs to the link's name, not to a number.
_OWN = frozenset({"proc/self", "proc/thread-self"})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


@dataclass
class Record:
    """What was seen. Paths are real ones below the root; ``errors`` and ``nodes`` are keyed as they were asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: dict[str, list[str]] = field(default_factory=dict)
    stats: dict[str, NodeStat] = field(default_factory=dict)
    nodes: dict[str, NodeStat] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


class RecordingTree(ConfinedTree):
    """Wraps another tree; all answers are that tree's own, the confined walk only finds the links to keep."""

    def __init__(self, inner: Tree) -> None:
        super().__init__()
        self.inner = inner
        self.live = inner.live
        self.name = inner.name
        self.record = Record()
        self._asked: dict[str, str | None] = {}

    def _link(self, path: str) -> str | None:
        """Target if ``path`` is a link; asked once, kept for the capture."""
        if path not in self._asked:
            self._asked[path] = None if path in _OWN else self._target(path)
        return self._asked[path]

    def _target(self, path: str) -> str | None:
        try:
            target = self.inner.readlink(path)
        except OSError:
            return None  # no link, or nothing there: whoever asks next is told
        self.record.links[path] = target
        return target

    def _real(self, path: str) -> str:
        """The real path, its links recorded; a loop of links is left to the wrapped tree to complain about."""
        try:
            return super().resolve(path)
        except OSError:
            return path

    def read(self, path: str, limit: int) -> bytes:
        """The wrapped tree's bytes; of two reads the longer one is kept."""
        real = self._real(path)
        try:
            data = self.inner.read(path, limit)
        except OSError as error:
            self._failed(path, error)
            raise
        if len(data) >= len(self.record.files.get(real, b"")):
            self.record.files[real] = data
        return data

    def _failed(self, path: str, error: OSError) -> None:
        """Remember a refusal; what is missing needs no entry, it will be missing again."""
        code = error.errno or errno.EIO
        if code not in _MISSING:
            self.record.errors[path] = errno.errorcode.get(code, "EIO")

    def listdir(self, path: str) -> list[str]:
        """Names in a folder."""
        names = self.inner.listdir(path)
        self.record.folders[self._real(path)] = names
        return names

    def readlink(self, path: str) -> str:
        """Target of a link."""
        folder, _, name = path.rpartition("/")
        base = self._real(folder) if folder else ""
        real = f"{base}/{name}" if base else name
        try:
            target = self.inner.readlink(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self._remember(path, real)
            raise
        self.record.links[real] = target
        return target

    def resolve(self, path: str) -> str:
        """The real path as the wrapped tree finds it."""
        self._real(path)
        return self.inner.resolve(path)

    def stat(self, path: str) -> NodeStat:
        """stat(2)."""
        found = self.inner.stat(path)
        self.record.stats[self._real(path)] = found
        if found.kind in "cb":
            self.record.nodes[path] = found
        return found

    def _remember(self, path: str, real: str) -> None:
        try:
            self.record.stats[real] = self.inner.stat(path)
        except OSError:
            pass

    def complete(self) -> Record:
        """Enter what was listed but never touched, by kind; names outside sysfs only where the scan touched them (a
        library folder's list of files is nobody's business)."""
        for folder, names in sorted(self.record.folders.items()):
            if folder.split("/")[0] == "sys":
                for name in names:
                    self._enter(f"{folder}/{name}" if folder else name)
        return self.record

    def _enter(self, path: str) -> None:
        record = self.record
        if path in record.files or path in record.folders or path in record.links or self._link(path) is not None:
            return
        try:
            found = self.inner.stat(path)
        except OSError:
            return
        record.stats.setdefault(path, found)
        if found.kind == "f":
            record.unread.add(path)
