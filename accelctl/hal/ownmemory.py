"""How much memory our own processes take: proportional set size, in which a page that n processes share counts 1/n."""

from __future__ import annotations

import os
import re

_PSS = re.compile(rb"^Pss:\s+(\d{1,15}) kB$", re.MULTILINE)


def pss_bytes(pid: int) -> int:
    """PSS of a process of ours (Documentation/filesystems/proc.rst, smaps_rollup, since 4.14); 0 where it has gone or
    the kernel does not say. The kernel walks all pages for it: a millisecond or more."""
    try:
        fd = os.open(f"/proc/{pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        match = _PSS.search(os.read(fd, 4096))
    except OSError:
        return 0
    finally:
        os.close(fd)
    return 0 if match is None else int(match.group(1)) * 1024
