"""Limits of this process: setrlimit(2), a memory cgroup of its own, and what the OOM killer thinks of it.

Only workers call these, never the process that the user started: a soft limit can be raised again, a cgroup not left.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from contextlib import suppress

from accelctl.hal.procfile import parse_cgroup

UNLIMITED = -1
"""RLIM_INFINITY as getrlimit(2) gives it to Python."""
LIMITS = {"NOFILE": resource.RLIMIT_NOFILE, "AS": resource.RLIMIT_AS, "MEMLOCK": resource.RLIMIT_MEMLOCK}
"""Name -> resource. NOFILE counts descriptors; AS and MEMLOCK are bytes here (``ulimit -v`` and ``-l`` print KiB)."""
CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_GROUP = re.compile(r"accelctl-(\d+)")


def soft_limit(name: str) -> int:
    """The soft limit, or UNLIMITED."""
    return resource.getrlimit(LIMITS[name])[0]


def set_soft_limit(name: str, value: int) -> None:
    """Set the soft limit and leave the hard one. Raises OSError (EPERM: above the hard limit)."""
    hard = resource.getrlimit(LIMITS[name])[1]
    if hard != UNLIMITED and not 0 <= value <= hard:
        raise OSError(errno.EPERM, f"{name}: above the hard limit of {hard}")
    resource.setrlimit(LIMITS[name], (value, hard))


def has_cap_ipc_lock() -> bool:
    """May this process lock memory without limit? Its effective set in /proc/self/status says so."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        line = next(line for line in file if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> CAP_IPC_LOCK & 1)


def prefer_oom(root: str = "/") -> None:
    """Let the OOM killer take this process first. Raises OSError."""
    _write(os.path.join(root, "proc/self/oom_score_adj"), "1000")


# -- cgroup version 2 --


def memory_parent(root: str = "/") -> tuple[str, str]:
    """A cgroup below which this process may make one with memory.max: (its folder, "") or ("", why there is none).

    Looked at: its own and its parent. That one must be writable and give the memory controller to its children
    (cgroup.subtree_control), which no group with processes in it does, except the root (no internal processes).
    """
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            own = next((line.path for line in parse_cgroup(file.read()) if not line.hierarchy), None)
    except (OSError, ValueError) as error:
        return "", f"/proc/self/cgroup: {error}"
    top = os.path.join(root, "sys/fs/cgroup")
    if own is None or not os.path.exists(os.path.join(top, "cgroup.controllers")):
        return "", "/sys/fs/cgroup is no cgroup version 2"
    reasons = []
    for path in dict.fromkeys((own, os.path.dirname(own))):
        folder = os.path.normpath(f"{top}/{path}")
        why = _why_not_below(folder)
        if not why:
            return folder, ""
        reasons.append(f"{path}: {why}")
    return "", "no delegated cgroup: " + "; ".join(reasons)


def _why_not_below(folder: str) -> str:
    try:
        with open(os.path.join(folder, "cgroup.subtree_control"), encoding="ascii") as file:
            if "memory" not in file.read().split():
                return "its cgroup.subtree_control has no memory"
    except OSError as error:
        return error.strerror or "unreadable"
    return "" if os.access(folder, os.W_OK) else "not writable"


def join_memory_group(limit: int, root: str = "/") -> str:
    """Move this process into a new cgroup with so many bytes and no swap; its folder. Raises OSError.

    It cannot be removed by who is in it: :func:`remove_memory_groups` does that later.
    """
    parent, why = memory_parent(root)
    if why:
        raise OSError(errno.EOPNOTSUPP, why)
    remove_memory_groups(root)
    folder = os.path.join(parent, f"accelctl-{os.getpid()}")
    _make(folder)
    try:
        _write(os.path.join(folder, "memory.max"), str(limit))
        with suppress(FileNotFoundError):  # a kernel without swap
            _write(os.path.join(folder, "memory.swap.max"), "0")
        _write(os.path.join(folder, "cgroup.procs"), str(os.getpid()))
    except OSError:
        with suppress(OSError):
            os.rmdir(folder)
        raise
    return folder


def remove_memory_groups(root: str = "/") -> int:
    """Remove groups made here whose process is gone; how many."""
    parent, why = memory_parent(root)
    count = 0
    for name in [] if why else os.listdir(parent):
        match = _GROUP.fullmatch(name)
        if match and not os.path.exists(os.path.join(root, "proc", match[1])):
            with suppress(OSError):  # EBUSY: a child of that process lives in it
                os.rmdir(os.path.join(parent, name))
                count += 1
    return count


def _make(folder: str) -> None:
    os.mkdir(folder)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
