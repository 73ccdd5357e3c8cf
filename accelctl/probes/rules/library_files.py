"""User-space libraries on the disk: where they are, and which version their file names carry. Names and links only."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cached_property

from accelctl.abi.rooms import Room
from accelctl.hal.root import SysRoot

#: ld.so's own folders; run/opengl-driver is NixOS's, wsl/lib that of WSL 2.
_LOADER = ("usr/lib64", "usr/lib", "lib64", "lib", "usr/local/lib64", "usr/local/lib")
_OTHERS = ("run/opengl-driver/lib", "usr/lib/wsl/lib")
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")


class Libraries:
    """Names in the library folders, each folder listed once: /usr/lib has thousands of them."""

    def __init__(self, root: SysRoot) -> None:
        self.root = root
        self._names: dict[str, list[str]] = {}

    @cached_property
    def folders(self) -> dict[str, str]:
        """Real path -> name of the folders that exist, without second names of one folder (merged /usr)."""
        names = [*_LOADER, *_OTHERS]
        for base in ("usr/lib", "lib"):
            names += [f"{base}/{name}" for name in self.root.listdir(base) if "-linux-" in name]
        return self._existing(names)

    def _existing(self, names: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in names:
            if self.root.exists(name):
                found.setdefault(self.root.resolve(name), name)
        return found

    def files(self, pattern: str, extra: Iterable[str] = ()) -> Iterator[str]:
        """Paths of files whose name fits the pattern, also below the ``extra`` folders."""
        stem = re.split(r"[*?\[]", pattern)[0]
        for folder in (self.folders | self._existing(name.strip("/") for name in extra)).values():
            if folder not in self._names:
                self._names[folder] = self.root.listdir(folder)
            names = self._names[folder]
            for index in range(bisect_left(names, stem), len(names)):
                if not names[index].startswith(stem):
                    break
                if fnmatch(names[index], pattern):
                    yield f"{folder}/{names[index]}"

    def by_role(self, room: Room, *roles: str) -> dict[str, str | None]:
        """The room's libraries of these roles: name pattern -> a path, None where there is none."""
        rows = (row for row in room.table("library") if row.get("role") in roles)
        return {row["name"]: next(self.files(row["name"], row.get("dirs", ())), None) for row in rows}


def version_of(root: SysRoot, path: str) -> str | None:
    """The version in the name of the file that a library's name stands for (libx.so.1 -> libx.so.550.107.02)."""
    match = _VERSION.search(root.resolve(path))
    return match.group(1) if match else None


def parts(version: str) -> tuple[int, ...]:
    """A version as numbers: 550.107 is newer than 550.90, which text order denies."""
    return tuple(int(part[:18]) for part in re.findall(r"[0-9]+", version))
