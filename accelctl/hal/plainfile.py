"""Folders and files that somebody else put there: names, and the bytes of a plain file and no more of it than that."""

from __future__ import annotations

import os
import stat


def read(path: str, most: int) -> bytes | None:
    """None where there is no such file. OSError; ValueError for what is no plain file (to open a pipe would wait for
    its other end) or holds more than ``most``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: no plain file")
        # Not read(most + 1): that makes room for all of it, for each of many small files.
        data = file.readall() if status.st_size <= most else b""
    if max(len(data), status.st_size) > most:
        raise ValueError(f"{path}: more than {most} bytes")
    return data


def names(folder: str) -> list[str]:
    """What is in a folder, in no order. OSError; ValueError for a NUL in its name."""
    return os.listdir(folder)
