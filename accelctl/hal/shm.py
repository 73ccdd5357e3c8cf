"""Files in /dev/shm that processes left behind when they were killed: whose, how large, and why nobody wants them back.

Only names are looked at whose makers are known, and only on the running machine: what a captured one should say about
the files of its users is nothing, so this goes past the recorder. Nothing is ever opened there, and nothing deleted.

A file is left behind when no process has it mapped and, where its name says which process made it, that one has ended.
Where the name says nothing, every process must have let us look: a missing right is no evidence.
"""

from __future__ import annotations

import os
import re
import stat as modes
from typing import NamedTuple

from accelctl.hal.procfile import parse_stat
from accelctl.hal.root import SysRoot

_NAMES = (
    re.compile(r"torch_([0-9]{1,10})_[0-9]+_[0-9]+"),  # PyTorch, ATen/MapAllocator.cpp: pid, random, counter
    re.compile(r"sem\.loky-([0-9]{1,10})-[a-z0-9_]+"),  # joblib's loky, backend/synchronize.py: pid, random
    re.compile(
        r"joblib_memmapping_folder_([0-9]{1,10})_[0-9a-f]+_[0-9a-f]+"
    ),  # joblib/_memmapping_reducer.py: a folder
    re.compile(r"psm_[0-9a-f]{8}()"),  # CPython, multiprocessing/shared_memory.py: random
    re.compile(r"nccl-[A-Za-z0-9]{6}()"),  # NCCL and RCCL, misc/shmutils.cc: mkstemp
)
"""Group 1 is the pid of the maker, or empty where the name has none."""
_MAPPED = re.compile(r" /dev/shm/([^/\n]+)")
_MAX_PROCESSES = 4096
_MAX_FILES = 10_000
_MAPS_BYTES = 16 << 20
_GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


class Leftover(NamedTuple):
    """``size_bytes`` are allocated ones; ``pid`` is 0 where the name has none. ``sure``: all processes could be looked
    into."""

    name: str
    size_bytes: int
    uid: int
    pid: int
    sure: bool

    @property
    def path(self) -> str:
        """For commands to type; the names that are looked at need no quotes."""
        return f"/dev/shm/{self.name}"


def leftovers(root: SysRoot, *, shm: str = "/dev/shm", proc: str = "/proc") -> list[Leftover]:
    """By size, the largest first; none on a captured machine. Files first, then processes: so the maker of a file is
    seen if it is alive."""
    found = _candidates(shm) if root.live else []
    if not found:
        return []
    try:
        pids = {name for name in os.listdir(proc) if name.isdecimal()}
    except OSError:
        return []
    mapped, blind = _mapped(root, proc, pids)
    hidden = "1" not in pids  # mount option hidepid: then only one's own processes can be known to have ended
    left = [
        file._replace(sure=not blind)
        for file in found
        if str(file.pid) not in pids
        and file.name not in mapped
        and not (blind and not file.pid)
        and not (hidden and file.uid != os.geteuid())
    ]
    return sorted(left, key=lambda file: (-file.size_bytes, file.name))


def _candidates(shm: str) -> list[Leftover]:
    found: list[Leftover] = []
    try:
        with os.scandir(shm) as entries:
            for entry in entries:
                match = next((m for pattern in _NAMES if (m := pattern.fullmatch(entry.name))), None)
                if match is not None and len(found) < _MAX_FILES:
                    size = _size(entry)
                    if size is not None:
                        found.append(Leftover(entry.name, *size, int(match.group(1) or 0), False))
    except OSError:  # no such folder here, or it went away
        return []
    return found


def _size(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """(allocated bytes, owner) of a plain file, or of a folder with plain files; None for anything else."""
    try:
        info = entry.stat(follow_symlinks=False)
        if modes.S_ISREG(info.st_mode):
            return info.st_blocks * 512, info.st_uid
        if not modes.S_ISDIR(info.st_mode):
            return None
        with os.scandir(entry.path) as inner:
            return sum(one.stat(follow_symlinks=False).st_blocks * 512 for one in inner), info.st_uid
    except PermissionError:  # the folder's owner alone may look
        return 0, info.st_uid
    except OSError:
        return None


def _mapped(root: SysRoot, proc: str, pids: set[str]) -> tuple[set[str], bool]:
    """Names in /dev/shm that processes have mapped, and whether some process could not be looked into."""
    names: set[str] = set()
    blind = len(pids) > _MAX_PROCESSES
    for pid in sorted(pids, key=int)[:_MAX_PROCESSES]:
        if root.slot is not None:
            root.slot.enter(f"{proc[1:]}/{pid}/maps")
        try:
            state = parse_stat(_text(f"{proc}/{pid}/stat", 8192))
            if state.kernel_thread:
                continue
            if state.state == "D":  # may hold the lock that reading its maps would wait for
                blind = True
                continue
            maps = _text(f"{proc}/{pid}/maps", _MAPS_BYTES)
        except _GONE:
            continue
        except (OSError, ValueError):
            blind = True
            continue
        blind = blind or len(maps) >= _MAPS_BYTES
        if "/dev/shm/" in maps:
            names.update(_MAPPED.findall(maps))
    return names, blind


def _text(path: str, limit: int) -> str:
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace")
