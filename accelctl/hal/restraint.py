"""What a worker puts on itself: it dies first when memory runs out, and a memory cgroup where one may be made."""

from __future__ import annotations

import errno
import os

from accelctl.hal.procfile import Mount, parse_cgroup, parse_mountinfo


def die_first(path: str = "/proc/self/oom_score_adj") -> None:
    """Let the OOM killer take this process before any other (oom_score_adj 1000, inherited by children). Raising it
    needs no privilege, lowering it again does. Raises OSError."""
    _write(path, "1000")


def cgroup_of_self(proc: str = "/proc/self") -> tuple[str, str]:
    """(mount point, own folder) of cgroup version 2. Raises OSError that says why there is none."""
    mounts = [mount for mount in parse_mountinfo(_read(f"{proc}/mountinfo")) if mount.fstype == "cgroup2"]
    own = [line.path for line in parse_cgroup(_read(f"{proc}/cgroup")) if line.hierarchy == 0]
    if not mounts or not own:
        raise OSError(errno.ENOENT, "no cgroup version 2 is mounted")
    mount: Mount = mounts[-1]
    below = own[0] if mount.root == "/" else own[0].removeprefix(mount.root)
    return mount.point, os.path.normpath(f"{mount.point}/{below}")


def memory_parent(mount: str, own: str) -> str:
    """The folder in which this process may make a memory cgroup for itself: its own, or the one above. Raises OSError
    (EACCES) that says why not."""
    why = []
    for folder in dict.fromkeys((own, os.path.dirname(own))):
        if not f"{folder}/".startswith(f"{mount}/"):
            continue
        if "memory" not in _read(f"{folder}/cgroup.subtree_control").split():
            why.append(f"{folder} gives its children no memory controller")
        elif not os.access(folder, os.W_OK) or not os.access(f"{folder}/cgroup.procs", os.W_OK):
            why.append(f"{folder} is not delegated to this user")
        else:
            return folder
    raise OSError(errno.EACCES, "; ".join(why))


class MemoryCgroup:
    """A cgroup with a limit that this process moves into. ``folder`` is gone again after :meth:`leave`."""

    def __init__(self, parent: str, own: str, limit: int) -> None:
        self.folder, self._own = f"{parent}/accelctl-{os.getpid()}", own
        os.mkdir(self.folder)
        try:
            _write(f"{self.folder}/memory.max", str(limit))
            _write(f"{self.folder}/cgroup.procs", str(os.getpid()))
        except OSError:
            os.rmdir(self.folder)
            raise

    def leave(self) -> None:
        """Back to where it was; the folder goes. Raises OSError (EBUSY while children are still in it)."""
        _write(f"{self._own}/cgroup.procs", str(os.getpid()))
        os.rmdir(self.folder)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)
