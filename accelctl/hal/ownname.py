"""The name of this process, as ps and top show it."""

from __future__ import annotations

import os
from contextlib import suppress

LONGEST = 15
"""Bytes: TASK_COMM_LEN of linux/sched.h with the closing NUL is 16."""


def rename(name: str) -> None:
    """Give the main thread, and so the process, another name (proc(5): /proc/self/comm may be written by its own
    process). Where that is not possible it keeps the old one."""
    with suppress(OSError):
        fd = os.open(f"/proc/self/task/{os.getpid()}/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, name.encode()[:LONGEST])
        finally:
            os.close(fd)
