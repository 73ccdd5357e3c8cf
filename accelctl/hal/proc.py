"""Processes: who has a device node open, and what the process that looks may do.

Text files are read through :class:`~accelctl.hal.root.SysRoot`, so that captured machines answer too. Open files of
other processes exist on the running machine only.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from accelctl.hal.fdinfo import may_be_device
from accelctl.hal.manifest import Process
from accelctl.hal.procfile import (
    Limit,
    Mount,
    Parameter,
    Stat,
    Status,
    mounted_at,
    parse_cmdline,
    parse_limits,
    parse_mountinfo,
    parse_names,
    parse_stat,
    parse_status,
)
from accelctl.hal.root import SysRoot
from accelctl.model.reading import Reading

T = TypeVar("T")

_LIMIT = 4 << 20  # bytes: a node of a big cluster has thousands of mounts and groups

# -- the process that looks --


def status(root: SysRoot) -> Status | None:
    """What /proc/self/status says; None where it cannot be read."""
    return _parsed(root, "proc/self/status", parse_status)


def credentials(root: SysRoot) -> Process | None:
    """Who is asking: this process, or the one that made the capture. None where a captured machine does not say."""
    if not root.live and root.manifest.process is not None:
        return root.manifest.process
    facts = status(root)
    return None if facts is None else Process(facts.uid, facts.gid, facts.groups, facts.capabilities)


def limits(root: SysRoot) -> dict[str, Limit]:
    """Resource limits by the kernel's names ("Max locked memory"); empty where they cannot be read."""
    return _parsed(root, "proc/self/limits", parse_limits) or {}


def memlock(root: SysRoot) -> Reading:
    """How much memory this process may pin, in bytes (soft limit); the text "unlimited" where nothing limits it."""

    def soft(text: str) -> int | str | None:
        limit = parse_limits(text).get("Max locked memory")
        if limit is None:
            return None
        return "unlimited" if limit.soft is None else limit.soft

    return root.read("proc/self/limits", soft, unit="bytes")


def kernel_parameters(root: SysRoot) -> list[Parameter]:
    """The kernel command line in words; empty where it cannot be read."""
    return _parsed(root, "proc/cmdline", parse_cmdline) or []


def mounts(root: SysRoot) -> list[Mount]:
    """What is mounted where; empty where it cannot be read."""
    return _parsed(root, "proc/self/mountinfo", parse_mountinfo) or []


def user_names(root: SysRoot) -> dict[int, str]:
    """uid -> name from /etc/passwd below the root (no name service is asked: it could hang)."""
    return _parsed(root, "etc/passwd", parse_names) or {}


def group_names(root: SysRoot) -> dict[int, str]:
    """gid -> name from /etc/group below the root (no name service is asked: it could hang)."""
    return _parsed(root, "etc/group", parse_names) or {}


def _parsed(root: SysRoot, path: str, parse: Callable[[str], T]) -> T | None:
    text = root.text(path, limit=_LIMIT)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError:
        return None


# -- who has a node open --


class Holder(NamedTuple):
    """A process with a device node open. (pid, start_ticks) names it for ever; ``files`` counts its descriptors.

    ``state`` is the letter of proc(5): D waits in the kernel and cannot be killed, Z has ended but for some threads.
    """

    pid: int
    start_ticks: int
    comm: str
    uid: int
    user: str | None
    node: str
    files: int
    state: str


class Holders(NamedTuple):
    """All holders that could be seen, and how much could not: processes whose files this user may not list."""

    found: tuple[Holder, ...]
    not_visible: int
    hidden: bool
    """True when the mount option hidepid keeps other users' processes out of sight altogether."""


_GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


def holders(root: SysRoot, nodes: Mapping[tuple[int, int], str], *, proc: str = "/proc") -> Holders | None:
    """Which processes have a character device of ``nodes`` ((major, minor) -> path) open; None on a captured machine.

    A link text alone does not decide: in another mount namespace the same text may be another device and the same
    device another text, and a removed node reads "(deleted)". So what looks like a device is compared by number.
    """
    if not root.live:
        return None
    found: list[Holder] = []
    not_visible = 0
    users = user_names(root)
    for name in sorted((name for name in os.listdir(proc) if name.isdecimal()), key=int):
        if root.slot is not None:
            root.slot.enter(f"{proc[1:]}/{name}/fd")
        try:
            with _opened(f"{proc}/{name}") as folder:
                try:
                    counts = _nodes_of(folder, nodes)
                except PermissionError:
                    not_visible += not parse_stat(_text(folder, "stat")).kernel_thread
                    continue
                if counts:
                    found.extend(_holders(folder, counts, users))
        except (*_GONE, PermissionError, ValueError):  # ended meanwhile, or out of sight after all
            continue
    return Holders(tuple(found), not_visible, hides_others(root))


@contextmanager
def _opened(path: str, at: int | None = None) -> Iterator[int]:
    """A folder of one process, and of no later one: after its end everything below fails, even if the pid returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


def _text(folder: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 8192).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _nodes_of(folder: int, nodes: Mapping[tuple[int, int], str]) -> dict[str, int]:
    """Node -> number of descriptors of one process; raises PermissionError where they may not be listed."""
    counts: dict[str, int] = {}
    try:
        if _count("fd", folder, nodes, counts):
            return counts
    except PermissionError:  # also of one's own zombie: it has no memory any more that would say whose it is
        if not _is_zombie(folder):
            raise
    if _is_zombie(folder):
        # The first thread has ended while others run on; the table of open files is found with them only.
        with _opened("task", folder) as tasks:
            for tid in os.listdir(tasks):
                with suppress(PermissionError):
                    if _count(f"{tid}/fd", tasks, nodes, counts):
                        break
    return counts


def _is_zombie(folder: int) -> bool:
    return parse_stat(_text(folder, "stat")).state == "Z"


def _count(path: str, folder: int, nodes: Mapping[tuple[int, int], str], counts: dict[str, int]) -> int:
    """Add what one fd folder holds to ``counts``; how many descriptors there are."""
    with _opened(path, folder) as fds:
        names = os.listdir(fds)
        for name in names:
            try:
                text = os.readlink(name, dir_fd=fds)
                if not may_be_device(text):
                    continue
                info = os.stat(name, dir_fd=fds)
            except _GONE:
                continue
            if modes.S_ISCHR(info.st_mode):
                node = nodes.get((os.major(info.st_rdev), os.minor(info.st_rdev)))
                if node is not None:
                    counts[node] = counts.get(node, 0) + 1
    return len(names)


def _holders(folder: int, counts: Mapping[str, int], users: Mapping[int, str]) -> Iterator[Holder]:
    stat: Stat = parse_stat(_text(folder, "stat"))
    uid = parse_status(_text(folder, "status")).uid
    for node, files in sorted(counts.items()):
        yield Holder(stat.pid, stat.start_ticks, stat.comm, uid, users.get(uid), node, files, stat.state)


def is_root() -> bool:
    """Whether sudo would change anything."""
    return os.geteuid() == 0


def hides_others(root: SysRoot) -> bool:
    """Does /proc keep other users' processes out of sight (hidepid=2 or 4; Documentation/filesystems/proc.rst)?"""
    mount = mounted_at(mounts(root), "/proc")
    words = () if mount is None else mount.super_options
    return not is_root() and any(f"hidepid={word}" in words for word in ("2", "4", "invisible", "ptraceable"))
