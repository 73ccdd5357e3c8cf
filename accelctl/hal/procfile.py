"""The formats of /proc, as pure functions from text (proc(5), kernel Documentation/filesystems/proc.rst).

They raise ValueError where the text is not what the format allows; who reads the file decides what that means.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNLIMITED = "unlimited"

PF_KTHREAD = 0x00200000  # include/linux/sched.h: a thread of the kernel, which has no files open


class Stat(NamedTuple):
    """What is used of /proc/PID/stat, in ticks of sysconf(_SC_CLK_TCK). ``start_ticks`` tells a reused pid apart."""

    pid: int
    comm: str
    state: str
    flags: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int

    @property
    def kernel_thread(self) -> bool:
        """True for a thread of the kernel itself."""
        return bool(self.flags & PF_KTHREAD)


def parse_stat(text: str) -> Stat:
    """Parse around the last ")": a command name may hold blanks, line breaks and parentheses."""
    head, bracket, tail = text.rpartition(")")
    number, opening, comm = head.partition("(")
    fields = tail.split()
    if not bracket or not opening or len(fields) < 20:
        raise ValueError("not a process state line")
    return Stat(
        int(number), comm, fields[0], int(fields[6]), int(fields[11]), int(fields[12]), int(fields[17]), int(fields[19])
    )


class Status(NamedTuple):
    """What is used of /proc/PID/status: the file-system credentials, which decide about opening files, and restraints.

    ``capabilities`` is the effective set as a bit mask; ``seccomp`` 0 off, 1 strict, 2 filter; None: not said.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int
    seccomp: int | None
    no_new_privs: bool | None
    threads: int


def parse_status(text: str) -> Status:
    """Parse /proc/PID/status; Uid and Gid lines are real, effective, saved and file-system ids."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name, value.strip())
    try:
        uids, gids = fields["Uid"].split(), fields["Gid"].split()
        seccomp, no_new = fields.get("Seccomp"), fields.get("NoNewPrivs")
        return Status(
            uid=int(uids[3]),
            gid=int(gids[3]),
            groups=tuple(int(word) for word in fields.get("Groups", "").split()),
            capabilities=int(fields.get("CapEff", "0"), 16),
            seccomp=None if seccomp is None else int(seccomp),
            no_new_privs=None if no_new is None else no_new != "0",
            threads=int(fields.get("Threads", "1")),
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"process status without {error}") from None


class Limit(NamedTuple):
    """One resource limit; None means unlimited."""

    soft: int | None
    hard: int | None
    unit: str


_LIMIT = re.compile(r"^(Max .+?) {2,}(\S+) +(\S+) *(\S*) *$", re.ASCII)


def parse_limits(text: str) -> dict[str, Limit]:
    """Parse /proc/PID/limits into name ("Max locked memory") -> limit."""
    limits: dict[str, Limit] = {}
    for line in text.splitlines()[1:]:
        match = _LIMIT.match(line)
        if match is None:
            raise ValueError(f"not a line of limits: {line[:60]!r}")
        limits[match[1]] = Limit(_limit(match[2]), _limit(match[3]), match[4])
    return limits


def _limit(word: str) -> int | None:
    return None if word == UNLIMITED else int(word)


class Parameter(NamedTuple):
    """One word of the kernel command line; ``value`` is None for a bare word."""

    name: str
    value: str | None


def parse_cmdline(text: str) -> list[Parameter]:
    """Split a kernel command line as the kernel does (next_arg in lib/cmdline.c).

    Double quotes keep blanks together and vanish around a whole word or value; what follows ``--`` is for init and is
    left out.
    """
    parameters: list[Parameter] = []
    for word in _words(text):
        quoted = word.startswith('"')
        body = word[1:] if quoted else word
        equals = body.find("=", 1)
        if equals < 0:
            name, value = _unquote(body, quoted), None
            if name == "--":
                break
        else:
            name, raw = body[:equals], body[equals + 1 :]
            inner = raw.startswith('"')
            value = _unquote(raw[1:] if inner else raw, quoted or inner)
        parameters.append(Parameter(name, value))
    return parameters


def _unquote(text: str, quoted: bool) -> str:
    return text[:-1] if quoted and text.endswith('"') else text


def _words(text: str) -> list[str]:
    words: list[str] = []
    word, inside = "", False
    for char in text:
        if char == '"':
            inside = not inside
        if char.isspace() and not inside:
            words.append(word)
            word = ""
        else:
            word += char
    words.append(word)
    return [word for word in words if word]


def parameter(parameters: list[Parameter], name: str) -> str | None:
    """The value that counts of a parameter: the last one; "" for a bare word, None where it is not there.

    The kernel takes "-" and "_" in names as the same (parameq in kernel/params.c).
    """
    wanted = name.replace("-", "_")
    found: str | None = None
    for entry in parameters:
        if entry.name.replace("-", "_") == wanted:
            found = entry.value or ""
    return found


class Mount(NamedTuple):
    """One line of /proc/PID/mountinfo. ``options`` are of this mount, ``super_options`` of the file system."""

    root: str
    point: str
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]


_OCTAL = re.compile(r"\\([0-7]{3})")


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse mountinfo; optional fields between the mount options and " - " are skipped, octal escapes undone."""
    mounts = []
    for line in text.splitlines():
        front, dash, back = line.partition(" - ")
        left, right = front.split(" "), back.split(" ")
        if not dash or len(left) < 6 or len(right) < 2:
            raise ValueError(f"not a line of mountinfo: {line[:60]!r}")
        over = tuple(right[2].split(",")) if len(right) > 2 else ()
        options = tuple(left[5].split(","))
        mounts.append(Mount(_unescape(left[3]), _unescape(left[4]), options, right[0], _unescape(right[1]), over))
    return mounts


def mounted_at(mounts: list[Mount], path: str) -> Mount | None:
    """The mount that serves ``path`` (absolute): the deepest mount point above it, of several at one point the last."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        above = path == point or path.startswith(point + "/")
        if above and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    return best


class CgroupLine(NamedTuple):
    """One line of /proc/PID/cgroup; hierarchy 0 without controllers is version 2."""

    hierarchy: int
    controllers: tuple[str, ...]
    path: str


def parse_cgroup(text: str) -> list[CgroupLine]:
    """Parse /proc/PID/cgroup; the path may hold colons."""
    lines = []
    for line in text.splitlines():
        hierarchy, colon, rest = line.partition(":")
        names, second, path = rest.partition(":")
        if not colon or not second:
            raise ValueError(f"not a line of cgroup: {line[:60]!r}")
        lines.append(CgroupLine(int(hierarchy), tuple(name for name in names.split(",") if name), path))
    return lines


class IdRange(NamedTuple):
    """A line of /proc/PID/uid_map: ``size`` ids from ``inside`` on stand for those from ``outside`` on."""

    inside: int
    outside: int
    size: int


def parse_id_map(text: str) -> list[IdRange]:
    """Parse /proc/PID/uid_map or gid_map."""
    ranges = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 3:
            raise ValueError("not a line of an id map")
        ranges.append(IdRange(int(words[0]), int(words[1]), int(words[2])))
    return ranges


def parse_names(text: str) -> dict[int, str]:
    """Number -> name from /etc/passwd or /etc/group (the number is the third field in both); the first entry wins."""
    names: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isascii() and fields[2].isdigit() and not line.startswith(("#", "+", "-")):
            names.setdefault(int(fields[2]), fields[0])
    return names
