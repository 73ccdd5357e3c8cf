"""An initramfs writer: the cpio "newc" format, in Python, so that no tool and no root is needed.

Format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
"""

from __future__ import annotations

import gzip
import stat
from pathlib import Path


class Initramfs:
    """Collects entries in the order they are to be made; a folder must come before what lies in it."""

    def __init__(self) -> None:
        """Start with the console that the kernel opens for init before devtmpfs exists (character device 5:1)."""
        self._out = bytearray()
        self._inode = 0
        self.folder("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1))

    def _entry(self, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        raw = name.encode() + b"\0"
        numbers = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        self._out += b"070701" + b"".join(b"%08x" % number for number in numbers) + raw
        self._pad()
        self._out += data
        self._pad()

    def _pad(self) -> None:
        self._out += b"\0" * (-len(self._out) % 4)

    def folder(self, name: str) -> None:
        """Add an empty folder."""
        self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        """Add a regular file."""
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def write(self, path: Path) -> None:
        """Write the archive, compressed for speed: the guest unpacks it under software emulation."""
        self._entry("TRAILER!!!", 0, b"")
        path.write_bytes(gzip.compress(bytes(self._out), compresslevel=1, mtime=0))
