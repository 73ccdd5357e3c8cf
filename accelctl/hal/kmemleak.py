"""The kernel's own search for memory that nothing points to (Documentation/dev-tools/kmemleak.rst)."""

from __future__ import annotations

import os

_FILE = "sys/kernel/debug/kmemleak"
_CHUNK = 1 << 16
_MOST = 64 << 20
"""Bytes of a report: some 100,000 objects. A kernel that lost more has another problem."""


def available(root: str = "/") -> str:
    """Why there is no search here; empty: there is."""
    try:
        os.close(os.open(os.path.join(root, _FILE), os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return "this kernel has no kmemleak (CONFIG_DEBUG_KMEMLEAK), or debugfs is not mounted"
    except OSError as error:
        return f"kmemleak: {error.strerror}; it is root's, and needs kmemleak=on on the kernel's command line"
    return ""


def scan(root: str = "/") -> None:
    """Search now; returns when done. Raises OSError (EPERM: switched off)."""
    fd = os.open(os.path.join(root, _FILE), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"scan")
    finally:
        os.close(fd)


def report(root: str = "/") -> str:
    """What was found so far: lost objects are listed in every report until they are freed. Raises OSError."""
    fd = os.open(os.path.join(root, _FILE), os.O_RDONLY | os.O_CLOEXEC)
    data = bytearray()
    try:
        while len(data) < _MOST:
            part = os.read(fd, _CHUNK)
            if not part:
                return data.decode("utf-8", "surrogateescape")
            data += part
    finally:
        os.close(fd)
    raise OSError(f"the report of kmemleak is longer than {_MOST} bytes")
