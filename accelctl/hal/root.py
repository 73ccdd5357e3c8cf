"""SysRoot: every read below a prefix, with evidence.

The same calls serve the running machine and a captured one. A read never raises: it gives a Reading that is either a
value or an absence with its reason. Whatever the path, the list of what may be opened is asked first, and a sleeping
device is left asleep.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any, Protocol

from accelctl.errors import UsageError
from accelctl.hal.allowlist import BLOCKS, WAKES, AllowList
from accelctl.hal.manifest import MANIFEST, Manifest
from accelctl.hal.tree import DirTree, LiveTree, NodeStat, Tree
from accelctl.model.convert import CONVERTERS
from accelctl.model.reading import STABLE, VOLATILE, Absence, Reading

READ_LIMIT = 256 * 1024

_NOT_OFFERED = frozenset({errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS, errno.ENOTTY})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_BROKEN = frozenset({errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG})

#: What a converter raises for a text that is not what its format allows.
_NOT_UNDERSTOOD = (ValueError, ArithmeticError, LookupError)

Converter = Callable[[str], Any]


_ODD = re.compile(r"[^A-Za-z0-9_.:,!@+=#%/-]")


class Slot(Protocol):
    """Where the path about to be touched is written, so that a parent can name it when this process hangs."""

    def enter(self, path: str) -> None:
        """Note the path."""


def clean(data: bytes) -> str:
    """Text of a kernel file: NUL bytes out (some drivers pad or write holes), outer white space off."""
    text = data.decode("utf-8", "replace")
    if "\0" in text:
        text = text.replace("\0", "")
    return text.strip()


class SysRoot:
    """Reads below one root. ``allow_wake`` also reads files that wake a device or block; ``quarantine`` holds paths
    that hung before.
    """

    def __init__(self, tree: Tree, *, allow_wake: bool = False, manifest: Manifest | None = None) -> None:
        self.tree = tree
        self.live = tree.live
        self.manifest = manifest or Manifest()
        self.allow = AllowList()
        self.allow_wake = allow_wake or not tree.live
        self.asleep: list[
            str
        ] = []  # "/<device folder>/" of sleeping devices: their files stand below it in /sys and in /proc
        self.quarantine: frozenset[str] = frozenset()
        self.slot: Slot | None = None
        self.opened: dict[str, int] = {}

    # -- facts
    # -----------------------------------------------------------------------------------------------------------------

    def read(
        self,
        path: str,
        conv: str | Converter = "text",
        *,
        unit: str | None = None,
        scope: str = STABLE,
        limit: int = READ_LIMIT,
    ) -> Reading:
        """One file as a fact. ``conv`` names a converter of model.convert or is one."""
        try:
            data = self._bytes(path, limit)
        except _Refused as refused:
            return Reading(None, path, None, unit, refused.absence, scope)
        except OSError as error:
            return Reading(None, path, None, unit, self.absence(path, error), scope)
        raw = clean(data)
        convert = CONVERTERS[conv] if isinstance(conv, str) else conv
        try:
            value = convert(raw)
        except _NOT_UNDERSTOOD as error:
            return Reading(
                None, path, raw, unit, Absence("malformed", None, None, str(error)[:120] or "not understood"), scope
            )
        if value is None:
            return Reading(None, path, raw, unit, Absence("empty"), scope)
        return Reading(value, path, raw, unit, None, scope)

    def text(self, path: str, limit: int = READ_LIMIT) -> str | None:
        """Text of a file, None where it cannot be read (use :meth:`read` wherever the reason matters)."""
        reading = self.read(path, str, limit=limit)
        return reading.value if isinstance(reading.value, str) else None

    def data(self, path: str, limit: int = READ_LIMIT) -> bytes | None:
        """Bytes of a binary file, None where it cannot be read."""
        try:
            return self._bytes(path, limit)
        except (_Refused, OSError):
            return None

    def link(self, path: str, conv: Converter | None = None, *, scope: str = STABLE) -> Reading:
        """A link as a fact: the raw text is the target as written, the value its last component unless ``conv`` says
        otherwise.
        """
        try:
            self._touch(path)
            target = self.tree.readlink(path)
        except _Refused as refused:
            return Reading(None, path, None, None, refused.absence, scope)
        except OSError as error:
            return Reading(None, path, None, None, self.absence(path, error), scope)
        name = target.rstrip("/").rpartition("/")[2]
        try:
            value = conv(target) if conv else name
        except _NOT_UNDERSTOOD as error:
            return Reading(None, path, target, None, Absence("malformed", None, None, str(error)[:120]), scope)
        if name in ("", ".", "..") or self._odd(name):  # no name of anything that a path may be built from
            return Reading(None, path, target, None, Absence("malformed", None, None, "no name in it"), scope)
        return Reading(value, path, target, None, None, scope)

    # -- structure
    # -------------------------------------------------------------------------------------------------------------

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty where it is absent or unreadable."""
        try:
            self._touch(path)
            names = self.tree.listdir(path)
        except (_Refused, OSError):
            return []
        if self.live or not self._odd("/".join(names)):  # one look for all of them
            return names
        return [name for name in names if not self._odd(name)]

    def resolve(self, path: str) -> str:
        """The real path below the root; the path itself where it does not resolve."""
        try:
            self._touch(path)
            real = self.tree.resolve(path)
        except (_Refused, OSError):
            return path
        return path if self._odd(real) else real

    def _odd(self, name: str) -> bool:
        """Does a captured machine have a name that no kernel, driver or package gives?

        Names and paths become part of ids and of commands to type, and a capture may come from a stranger: one with
        a quote, a dollar sign, a blank or a line break in a name wants to be typed into a shell.
        """
        return not self.live and _ODD.search(name) is not None

    def stat(self, path: str) -> NodeStat | None:
        """stat(2), from the manifest where a captured machine has one."""
        known = self.manifest.nodes.get(path)
        if known is not None:
            return known.stat
        try:
            self._touch(path)
            return self.tree.stat(path)
        except (_Refused, OSError):
            return None

    def exists(self, path: str) -> bool:
        """True when something is there, links followed."""
        return self.stat(path) is not None

    def access_rw(self, path: str) -> str | None:
        """The kernel's own answer to "may this process read and write?": None for yes, "" for not asked, else why not.

        Live: access(2), which opens nothing; its errno is not visible from Python, so a no is the word "denied". A
        captured machine may carry the errno of a real open: EACCES is the mode bits, EPERM with permissive mode bits
        the device cgroup.
        """
        if not self.live:
            known = self.manifest.nodes.get(path)
            return "" if known is None else known.access
        try:
            self._touch(path)
            return None if os.access("/" + path, os.R_OK | os.W_OK, effective_ids=True) else "denied"
        except _Refused:
            return ""

    def space(self, path: str) -> tuple[Reading, Reading]:
        """Size and free bytes of the file system at ``path`` by statvfs(2); a captured machine has none."""
        if not self.live:
            recorded = self.manifest.space.get(path)
            if recorded is None:
                missing = Reading(None, path, None, "bytes", Absence("not_captured"))
                return missing, missing._replace(scope=VOLATILE)
            return _sizes(path, *recorded)
        try:
            self._touch(path)
            info = os.statvfs("/" + path)
        except _Refused as refused:
            return (Reading(None, path, None, "bytes", refused.absence),) * 2
        except OSError as error:
            return (Reading(None, path, None, "bytes", self.absence(path, error)),) * 2
        return _sizes(path, info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize)

    @property
    def why_missing(self) -> str:
        """The kind of absence that a missing file means here: only a complete view can say that the driver does not
        offer it.
        """
        return "not_offered" if self.live or self.manifest.complete else "not_captured"

    def environ(self) -> dict[str, str]:
        """The environment of the process that looked; of a captured machine, the part that was recorded."""
        return dict(os.environ) if self.live else self.manifest.environ

    # -- inside
    # ----------------------------------------------------------------------------------------------------------------

    def _touch(self, path: str) -> None:
        """Say which path comes next, and refuse one that hung before."""
        if "\0" in path:  # no name holds one, and Python would refuse the call itself
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self.slot is not None:
            self.slot.enter(path)
        if path in self.quarantine:
            raise _Refused(Absence("timed_out", "ETIMEDOUT", None, "an earlier access to this path did not come back"))

    def _bytes(self, path: str, limit: int) -> bytes:
        effect = self.allow.effect(path)
        if effect is None:
            raise _Refused(Absence("not_allowed"))
        if not self.allow_wake and effect in (WAKES, BLOCKS):
            self._spare(path, effect)
        recorded = self.manifest.errors.get(path)
        if recorded is not None:
            raise OSError(recorded, os.strerror(recorded), path)
        if path in self.manifest.unread:  # it was there, but nobody read it: its emptiness in the archive says nothing
            raise _Refused(Absence("not_captured"))
        self._touch(path)
        self.opened[path] = self.opened.get(path, 0) + 1
        return self.tree.read(path, limit)

    def _spare(self, path: str, effect: str) -> None:
        fix = "accelctl probe --allow-wake"
        if effect == BLOCKS:
            raise _Refused(Absence("costly", None, fix))
        if any(folder in path for folder in self.asleep):
            raise _Refused(Absence("asleep", None, fix))

    def absence(self, path: str, error: OSError) -> Absence:
        """Why a system call failed, in our vocabulary."""
        code = error.errno or 0
        name = errno.errorcode.get(code, str(code))
        if code in _MISSING:
            return Absence(self.why_missing, name)
        if code in _DENIED:
            if any(folder in path for folder in self.asleep):
                return Absence("asleep", name, "accelctl probe --allow-wake")
            return Absence("no_permission", name, "sudo $(command -v accelctl) probe")
        if code in _NOT_OFFERED:
            return Absence("not_offered", name)
        if code in _BROKEN:
            return Absence("malformed", name, None, error.strerror)
        if code == errno.ETIMEDOUT:
            return Absence("timed_out", name)
        return Absence("unreadable", name, None, error.strerror)


def _sizes(path: str, size: int, free: int) -> tuple[Reading, Reading]:
    return Reading(size, path, str(size), "bytes"), Reading(free, path, str(free), "bytes", None, VOLATILE)


class _Refused(Exception):
    """Not opened, for a reason of ours."""

    def __init__(self, absence: Absence) -> None:
        super().__init__(absence.kind)
        self.absence = absence


def open_root(spec: str, *, allow_wake: bool = False) -> SysRoot:
    """The root named on the command line: "/" (this machine), a folder, or a tar archive."""
    if spec in ("", "/"):
        return SysRoot(LiveTree(), allow_wake=allow_wake)
    tree: Tree
    if os.path.isdir(spec):
        tree = DirTree(spec)
        if not any(os.path.lexists(os.path.join(spec, name)) for name in ("sys", "proc", "dev", MANIFEST)):
            raise UsageError(f"{spec}: holds neither sys nor proc nor dev, so it is no captured machine")
    elif os.path.isfile(spec):
        from accelctl.hal.archive import read_archive

        tree = read_archive(spec)
    elif os.path.exists(spec):
        raise UsageError(
            f"{spec}: neither a folder nor a regular file", hint="accelctl capture FILE.tar.xz writes an archive"
        )
    else:
        raise UsageError(f"{spec}: no such file or folder", hint="accelctl capture FILE.tar.xz writes an archive")
    return SysRoot(tree, manifest=_manifest(tree, spec))


def _manifest(tree: Tree, spec: str) -> Manifest:
    try:
        data = tree.read(MANIFEST, 16 * 1024 * 1024)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Manifest()
        raise UsageError(f"{spec}: its {MANIFEST} cannot be read ({error.strerror})") from None
    return Manifest.parse(data, spec)
