"""``accelctl capture``: what the scan saw, redacted, as an archive that ``--root`` reads.

The archive depends only on the machine and the key: members in order, no times, no owners. ``probe --root`` of it says
what ``probe`` said on the machine, except for what was cut out: who built the kernel and where, names of groups that no
distribution has, the whole kernel command line, who has a device open, and the size of /dev/shm.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import tarfile
from contextlib import suppress
from typing import Any, NamedTuple

import accelctl
from accelctl.abi.rooms import all_rooms
from accelctl.accept.keep import Keeper
from accelctl.accept.loglines import log_text, relevant
from accelctl.accept.redact import Redactor
from accelctl.accept.watched import DEADLINE_S, add_stuck, watched
from accelctl.errors import UsageError, unwritable
from accelctl.hal.access import ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, node_acl
from accelctl.hal.kmsg import KernelLog, read_log, read_named
from accelctl.hal.lockfile import replaceable
from accelctl.hal.manifest import KMSG, MANIFEST, SCHEMA, Manifest, Process
from accelctl.hal.proc import credentials
from accelctl.hal.recording import Record, RecordingTree
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import NodeStat
from accelctl.model.report import Report
from accelctl.probes.scan import probe

_VARIABLES = re.compile(r"_VISIBLE_DEVICES$|^GPU_DEVICE_ORDINAL$|^CUDA_DEVICE_ORDER$|_DEVICE_MASK$|_AFFINITY_MASK$")
_MARKERS = {"KUBERNETES_SERVICE_HOST": None, "container": ("docker", "podman", "lxc", "systemd-nspawn", "oci")}
"""Variables that tell a container; their values are kept only where they are one of these words."""


class Seen(NamedTuple):
    """What the reader child brings back."""

    report: Report
    record: Record
    log: KernelLog
    manifest: Manifest
    process: Process | None
    access: dict[str, str | None]
    environ: dict[str, str]


class Capture(NamedTuple):
    """A finished archive and what to say about it."""

    data: bytes
    report: Report
    files: int
    left_out: int


def take(
    spec: str,
    *,
    key: bytes | None = None,
    kmsg: str | None = None,
    allow_wake: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Capture:
    """Scan the root, redact with ``key`` (random if None), pack."""
    outcome = watched(spec, look, allow_wake, kmsg, deadline_s)
    seen = outcome.value
    add_stuck(seen.report, outcome.stuck, deadline_s)
    for one in outcome.stuck:
        seen.record.errors[one.path] = "ETIMEDOUT"
    return build(seen, key or os.urandom(32))


def look(root: SysRoot, kmsg: str | None) -> Seen:
    """In the reader child: scan with a recording tree, and the log apart from it."""
    manifest, tree = root.manifest, RecordingTree(root.tree)
    log = read_named(kmsg) if kmsg else read_log(root)
    if kmsg == "-":
        sys.stdin.seek(0)  # a copy that watched() has put there: the rules read it too
    root.tree = tree
    report = probe(root, kmsg=kmsg)
    nodes = {**{path: one.stat for path, one in manifest.nodes.items()}, **tree.record.nodes}
    access = {path: root.access_rw(path) for path in nodes}
    tree.record.nodes = nodes
    return Seen(report, tree.complete(), log, manifest, credentials(root), access, root.environ())


def build(seen: Seen, key: bytes) -> Capture:
    """Redact and pack. What was redacted before keeps the hashes it has."""
    redactor = NoRedactor(key) if seen.manifest.redacted else Redactor(key, _names(seen.report))
    gids = {one.gid for one in seen.record.nodes.values()}
    if seen.process is not None:
        gids |= {seen.process.gid, *seen.process.groups}
    keeper = Keeper(redactor, seen.report, frozenset(gids))
    members: dict[str, bytes | str | None] = {}
    left_out = 0
    for path, data in seen.record.files.items():
        kept = keeper.keep(path, data)
        left_out += kept is None
        if kept is not None:
            members[path] = kept
    _enter_rest(seen.record, members, redactor)
    rooms = all_rooms()
    if seen.log.lines:
        members[KMSG] = log_text(relevant(seen.log, seen.report, rooms), redactor).encode("utf-8", "replace")
    members[MANIFEST] = (json.dumps(_manifest(seen, redactor), indent=1, sort_keys=True) + "\n").encode()
    files = sum(isinstance(content, bytes) for content in members.values())
    return Capture(archive(members), seen.report, files, left_out)


class NoRedactor(Redactor):
    """For what was redacted before: a second hash would only hide that two captures are of one machine."""

    def token(self, text: str) -> str:
        """As it is."""
        return text

    def number(self, value: int) -> int:
        """As it is."""
        return value


def _names(report: Report) -> list[str]:
    """Names of this machine and its people, so far as they are known without asking a name service."""
    if not report.live:
        return []
    host = os.uname().nodename
    people = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
    return [host, host.partition(".")[0], *people]


def _enter_rest(record: Record, members: dict[str, bytes | str | None], redactor: Redactor) -> None:
    """Links as text, folders as None, and empty files where only the name is known."""
    for path, target in record.links.items():
        members.setdefault(path, redactor.text(target) if "/home/" in target else target)
    for path in record.folders:
        if path:
            members.setdefault(path, None)
    for path, stat in record.stats.items():
        if path and path not in record.files and not _left_out(path):
            members.setdefault(path, None if stat.kind == "d" else b"")


def _left_out(path: str) -> bool:
    """Folders and files of other processes, whose very names tell who runs what."""
    return bool(re.match(r"proc/\d+(/|$)", path)) and not path.startswith("proc/1/cgroup")


def archive(members: dict[str, bytes | str | None]) -> bytes:
    """A tar.xz of files (bytes), links (text) and folders (None), ordered by name, with their folders before them."""
    import lzma

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*members, *_folders(members)}):
            content = members.get(path)
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if isinstance(content, bytes):
                info.size, info.mode = len(content), 0o644
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
            info.linkname = content or ""
            tar.addfile(info)
    return lzma.compress(plain.getvalue(), preset=6)


def _folders(members: dict[str, bytes | str | None]) -> set[str]:
    found: set[str] = set()
    for path in members:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


# -- the manifest ------------------------------------------------------------------------------------------------------


def _manifest(seen: Seen, redactor: Redactor) -> dict[str, Any]:
    process = seen.process
    report = seen.report
    space = [report.value(f"shm/{name}_bytes") for name in ("size", "free")]
    return {
        "schema": SCHEMA,
        "tool": f"accelctl {accelctl.__version__}",
        "complete": report.live or seen.manifest.complete,
        "redacted": True,
        "nodes": {path: _node(stat, seen, path) for path, stat in sorted(seen.record.nodes.items())},
        "errors": dict(sorted({**_errors(seen.manifest), **seen.record.errors}.items())),
        "unread": sorted(path for path in seen.record.unread if not _left_out(path)),
        "space": {"dev/shm": space} if None not in space else {},
        "process": None
        if process is None
        else {
            "uid": process.uid,
            "gid": process.gid,
            "groups": list(process.groups),
            "capabilities": f"{process.capabilities:x}",
        },
        "environ": dict(sorted(_environ(seen.environ, redactor))),
    }


def _environ(environ: dict[str, str], redactor: Redactor) -> list[tuple[str, str]]:
    """Masks of devices (a UUID in them becomes the hash that it is elsewhere), and whether this is a container."""
    kept = [(name, redactor.text(value)) for name, value in environ.items() if _VARIABLES.search(name)]
    for name, words in _MARKERS.items():
        if name in environ:
            value = environ[name]
            kept.append((name, value if words and value in words else "set"))
    return kept


def _errors(manifest: Manifest) -> dict[str, str]:
    return {path: errno.errorcode.get(code, "EIO") for path, code in manifest.errors.items()}


def _node(stat: NodeStat, seen: Seen, path: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kind": stat.kind,
        "mode": f"{stat.mode:04o}",
        "uid": stat.uid,
        "gid": stat.gid,
        "major": stat.major,
        "minor": stat.minor,
        "access": seen.access.get(path, ""),
    }
    known = seen.manifest.nodes.get(path)
    acl = known.acl_text if known is not None else acl_text(stat)
    return entry if acl is None else {**entry, "acl": acl}


_TAGS = {
    ACL_USER_OBJ: "u", ACL_USER: "u", ACL_GROUP_OBJ: "g", ACL_GROUP: "g", ACL_MASK: "m", ACL_OTHER: "o",
}  # fmt: skip


def acl_text(stat: NodeStat) -> str | None:
    """A node's access list in the short form with numbers, None where it has none."""
    entries = node_acl(stat)
    if not entries:
        return None
    words = []
    for one in entries:
        bits = "".join(letter if one.perm & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        named = str(one.id) if one.tag in (ACL_USER, ACL_GROUP) else ""
        words.append(f"{_TAGS[one.tag]}:{named}:{bits}")
    return ",".join(words)


# -- the file ----------------------------------------------------------------------------------------------------------


def refuse_existing(file: str) -> None:
    """Say so before the scan, not after it."""
    if os.path.lexists(file):
        raise UsageError(f"{file}: there is such a file already", "add --force to replace it")


def read_key(file: str | None) -> bytes | None:
    """The key of ``--key``; at least 16 bytes, or whoever sees a hash finds the serial number by trying."""
    if file is None:
        return None
    try:
        with open(file, "rb") as source:
            key = source.read(1 << 16)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    if len(key) < 16:
        raise UsageError(f"{file}: too short for a key, 16 bytes are needed", f"head -c 32 /dev/urandom > {file}")
    return key


def save(data: bytes, file: str, *, force: bool = False) -> None:
    """Write the archive: all of it or nothing, readable by its owner alone, never over another file without
    ``force``."""
    import tempfile

    if not force:
        refuse_existing(file)
    if not os.path.islink(file):  # a link is replaced itself: what it leads to may be somebody else's
        replaceable(file)
    try:
        handle, draft = tempfile.mkstemp(prefix=".accelctl-", dir=os.path.dirname(file) or ".")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
            _move(draft, file, force)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
    except OSError as error:
        raise unwritable(file, error) from None


def _move(draft: str, file: str, force: bool) -> None:
    """rename(2), but without ``force`` only where nothing is: link(2) refuses, and where it is not offered we looked
    before."""
    if not force:
        try:
            os.link(draft, file)
            return
        except FileExistsError:
            raise UsageError(f"{file}: there is such a file already", "add --force to replace it") from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
    os.replace(draft, file)
