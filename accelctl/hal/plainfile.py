"""The bytes of a file that somebody else put there: a plain one, and no more of it than that."""

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
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path}: no plain file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path}: more than {most} bytes")
    return data
