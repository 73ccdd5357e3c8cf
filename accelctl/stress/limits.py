"""Real limits, so that stages fail as they do on other people's machines; for a worker's own process only.

Also the other way round: which limit made a call fail. Three error numbers mean the locked-memory limit (measured:
mmap with MAP_LOCKED gives EAGAIN, mlock and VFIO ENOMEM, a limit of 0 EPERM).
"""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from accelctl.errors import UsageError
from accelctl.hal import bookfile, fdinfo
from accelctl.hal.restraint import MemoryCgroup, cgroup_of_self, die_first, memory_parent
from accelctl.hal.root import SysRoot, open_root
from accelctl.memory import in_bytes

UNLIMITED = -1
"""As getrlimit gives it (resource.RLIM_INFINITY)."""
_RLIMITS = {"nofile": resource.RLIMIT_NOFILE, "as": resource.RLIMIT_AS, "memlock": resource.RLIMIT_MEMLOCK}
NAMES = (*_RLIMITS, "memory")
"""Descriptors, address space, locked memory; memory is the cgroup's memory.max."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_FORM = re.compile(r"([a-z]+)=(?:(\+?)(\d{1,15})([kmg](?:ib)?)?|(unlimited|-1))", re.ASCII | re.IGNORECASE)
OWN_FILES = 2
"""That a worker opens at least: the device's node, and one thing of it."""
_HINT = (
    f"NAME=VALUE with NAME one of {', '.join(NAMES)}; such as nofile=64, as=+256MiB, memlock=8MiB, memlock=unlimited"
)


class Limit(NamedTuple):
    """One limit: descriptors, or bytes; UNLIMITED. ``more``: so much more than what is in use now (nofile, as)."""

    name: str
    value: int
    more: bool = False

    def __call__(self) -> None:
        """Set it for this process for good: what a worker does first. Raises OSError, UsageError."""
        if self.name == "memory":
            _cgroup(self.value)
            return
        which = _RLIMITS[self.name]
        hard = resource.getrlimit(which)[1]
        value = self._absolute()
        if hard != UNLIMITED and (value == UNLIMITED or value > hard):
            raise UsageError(f"{self.name}={self.value}: the hard limit is {hard}", "ulimit -H; root may raise it")
        resource.setrlimit(which, (value, hard))

    def _absolute(self) -> int:
        if not self.more:
            return self.value
        root = open_root("/")
        return used_space(root) + self.value if self.name == "as" else first_free(root, self.value)


def parse_limit(text: str) -> Limit:
    """``nofile=64``, ``as=+256MiB``, ``memlock=8MiB``, ``memlock=unlimited``, ``memory=1GiB``. Without a unit it is
    bytes (not KiB as ulimit has it). Raises UsageError."""
    match = _FORM.fullmatch(text)
    name = match[1].lower() if match else ""
    if match is None or name not in NAMES:
        raise UsageError(f"not a limit: {text[:80]!r}", _HINT)
    unit = (match[4] or "")[:1].lower()
    if (unit and name == "nofile") or (match[2] and name not in ("nofile", "as")):
        raise UsageError(f"not a limit: {text[:80]!r}", _HINT)
    if match[5]:
        if name == "memory":
            raise UsageError("memory=unlimited: that is no limit", _HINT)
        return Limit(name, UNLIMITED)
    return Limit(name, int(match[3]) * _UNITS[unit], bool(match[2]))


@contextmanager
def held(limit: Limit) -> Iterator[None]:
    """The limit for the time of a ``with``. Raises as :class:`Limit` does."""
    if limit.name == "memory":
        group = _cgroup(limit.value)
        try:
            yield
        finally:
            group.leave()
        return
    which = _RLIMITS[limit.name]
    before = resource.getrlimit(which)
    limit()
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def worker(limits: tuple[Limit, ...] = ()) -> None:
    """What every worker does first: be what the OOM killer takes, then its limits. Raises OSError, UsageError."""
    die_first()
    root = open_root("/")
    for limit in limits:
        _check_room(limit, root)
        limit()


def _check_room(limit: Limit, root: SysRoot) -> None:
    """UsageError where a worker could not even begin, which would be blamed on the device."""
    if limit.more or limit.value == UNLIMITED or limit.name not in ("nofile", "as"):
        return
    if limit.name == "nofile" and limit.value < (least := first_free(root, OWN_FILES)):
        raise UsageError(
            f"--limit nofile={limit.value}: too low for the worker itself, which needs {least}",
            f"--limit nofile=+{max(OWN_FILES, limit.value)}: so many more than are open when it begins",
        )
    if limit.name == "as" and limit.value < (used := used_space(root)):
        size = in_bytes(limit.value)
        raise UsageError(
            f"--limit as={size}: less than the {used >> 20} MiB that a worker itself has mapped",
            f"--limit as=+{size.replace(' ', '')}: so much more than that",
        )


def _cgroup(value: int) -> MemoryCgroup:
    try:
        mount, own = cgroup_of_self()
        return MemoryCgroup(memory_parent(mount, own), own, value)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"memory={value}: {why}", "systemd-run --user --scope -p Delegate=yes ...") from error


def used_space(root: SysRoot) -> int:
    """Address space of this process in bytes (VmSize). Raises ValueError where the kernel does not say."""
    return bookfile.field(bookfile.kib_fields(root.text("proc/self/status") or ""), "VmSize")


def first_free(root: SysRoot, count: int) -> int:
    """The RLIMIT_NOFILE with which so many more files can be opened: numbers are given out lowest first."""
    taken = {int(number) for number, _ in fdinfo.links(root)}
    limit = 0
    while count or limit in taken:
        count -= limit not in taken
        limit += 1
    return limit


class Explanation(NamedTuple):
    """Why a call failed, and what to type."""

    cause: str
    fix: str


_MEMLOCK_FIX = (
    "ulimit -l, `memlock` in /etc/security/limits.conf, LimitMEMLOCK= of the service, or docker run --ulimit memlock=-1"
)


def explain(code: int, limit: int, wanted: int, *, locked: int = 0, capable: bool = False) -> Explanation | None:
    """Was it the locked-memory limit? None: no.

    ``code``: the errno (EAGAIN, ENOMEM, EPERM). ``limit``: RLIMIT_MEMLOCK's soft limit in bytes as getrlimit gives it
    (-1: unlimited; ``ulimit -l`` and VmLck count KiB). ``wanted``: bytes of the call, ``locked``: bytes locked before.
    ``capable``: CAP_IPC_LOCK is held, to which no limit applies.
    """
    if code not in (errno.EAGAIN, errno.ENOMEM, errno.EPERM) or capable or limit < 0:
        return None
    if locked + wanted <= limit:
        return None
    before = f", {in_bytes(locked)} locked before" if locked else ""
    return Explanation(
        f"locked-memory limit: {in_bytes(limit)} allowed, {in_bytes(wanted)} wanted{before}", _MEMLOCK_FIX
    )
