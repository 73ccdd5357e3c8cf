"""A tree whose sysfs files stay open and are read again in place: one system call a reading instead of three.

A read of a sysfs file at offset 0 makes its text anew (kernfs: fs/seq_file.c seq_read_iter starts over, fs/sysfs/file.c
sysfs_kf_read asks the driver), and an open file pins neither device nor driver: after either has gone, reading answers
ENODEV, and the file is looked up again.
"""

from __future__ import annotations

import errno

from accelctl.hal.keptfiles import KeptFile, KeptFiles
from accelctl.hal.tree import NodeStat, Tree

MOST = 512
"""Files that are kept: half of what a process may have open by default (RLIMIT_NOFILE 1024)."""


class KeptTree:
    """What is read of sysfs through it is kept; everything else is the tree beneath."""

    def __init__(self, tree: Tree, most: int = MOST) -> None:
        self.tree, self.name, self.live = tree, tree.name, tree.live
        self._store = KeptFiles(tree, most)
        self._files: dict[str, KeptFile] = {}
        self.opens = 0

    def read(self, path: str, limit: int) -> bytes:
        """Up to ``limit`` bytes of a file."""
        file = self._files.get(path)
        if file is None:
            if not path.startswith("sys/"):
                return self.tree.read(path, limit)
            return self._open(path).read()[:limit]
        try:
            return file.read()[:limit]
        except OSError as error:
            self._files.pop(path).close()
            if error.errno not in (errno.ENODEV, errno.ESTALE):
                raise
        return self._open(path).read()[:limit]

    def _open(self, path: str) -> KeptFile:
        self.opens += 1
        file = self._files[path] = self._store.open(path)
        return file

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        return self.tree.listdir(path)

    def readlink(self, path: str) -> str:
        """Target of a link as written."""
        return self.tree.readlink(path)

    def resolve(self, path: str) -> str:
        """The real path."""
        return self.tree.resolve(path)

    def stat(self, path: str) -> NodeStat:
        """stat(2), links followed."""
        return self.tree.stat(path)

    def close(self) -> None:
        """Close what is kept; safe to call twice."""
        while self._files:
            self._files.popitem()[1].close()
