"""Which files root may take as code, or as what says where code is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from accelctl.errors import UsageError

_OTHERS = 0o022
"""Group and others may write."""


def require_trusted(path: Path) -> None:
    """As root, use only files that nobody else can change: the file and every folder above it."""
    if os.geteuid() != 0:
        return
    for part in (path, *path.parents):
        info = part.stat()
        if info.st_uid != 0 or (info.st_mode & _OTHERS and not info.st_mode & 0o1000):
            raise UsageError(f"not used as root: {part} can be changed by other users")


def require_tree(folder: Path) -> None:
    """As root: a folder of which everything can be imported. Nothing below it can be changed by others, or be added to
    (so no sticky folder either), or leads elsewhere."""
    if os.geteuid() != 0:
        return
    require_trusted(folder)
    for part in (folder, *folder.rglob("*")):
        info = part.lstat()
        if stat.S_ISLNK(info.st_mode):
            raise UsageError(f"not used as root: {part} is a symbolic link")
        if info.st_uid != 0 or info.st_mode & _OTHERS:
            raise UsageError(f"not used as root: {part} can be changed by other users")
