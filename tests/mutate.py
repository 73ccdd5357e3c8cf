"""Damage for captured machines: what a broken driver, a bad disk or an ill-willed sender could put into a tree.

A machine is flat data here (path -> entry). A mutation is three numbers: which kind of damage, where, and what with;
numbers are taken modulo what is there, so every triple means something for every machine and hypothesis can shrink it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import random
import re
import stat
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from accelctl.errors import UsageError
from accelctl.hal.manifest import KMSG, MANIFEST, SCHEMA, Manifest
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree, NodeStat, Tree
from tests.hostile import BINARY, EDITS, ERRNOS, JSON_VALUES, LINES, MASKS, NAMES, NUMBERS, SICK, TEXTS


class Link(NamedTuple):
    """A symbolic link."""

    target: str


class Special(NamedTuple):
    """A FIFO (p), device (c, b) or socket (s)."""

    kind: str


Entry = bytes | Link | Special | None
"""What stands at a path; None is a folder."""

Mutation = tuple[int, int, int]
T = TypeVar("T")


@dataclass
class Machine:
    """Entries by path, the manifest as JSON values (None: a tree without one), and the paths that probe asks about."""

    entries: dict[str, Entry]
    manifest: Any = None
    targets: list[str] = field(default_factory=list)

    def copy(self) -> Machine:
        return Machine(dict(self.entries), json.loads(json.dumps(self.manifest)), self.targets)

    def drop(self, path: str) -> None:
        """Remove a path and everything below it."""
        if self.entries.pop(path, None) is not None:  # nothing stands below a file or a link
            return
        for below in [one for one in self.entries if one.startswith(path + "/")]:
            del self.entries[below]

    def put(self, path: str, entry: Entry) -> None:
        """Replace a path; what was below a folder is gone unless a folder stays."""
        if entry is not None or self.entries.get(path) is not None:
            self.drop(path)
        self.entries[path] = entry

    def children(self, folder: str) -> list[str]:
        depth = folder.count("/") + 1 if folder else 0
        return [one for one in self.entries if one.startswith(folder + "/") and one.count("/") == depth]


# -- from and to machines ----------------------------------------------------------------------------------------------


class Recorder:
    """A tree that notes the real path of everything it is asked."""

    live = False

    def __init__(self, tree: MemoryTree) -> None:
        self.tree, self.name, self.asked = tree, tree.name, dict[str, None]()

    def _note(self, path: str) -> None:
        with suppress(OSError):
            folder, _, name = path.rpartition("/")
            self.asked[f"{self.tree.resolve(folder)}/{name}".lstrip("/")] = None
            self.asked[self.tree.resolve(path)] = None

    def read(self, path: str, limit: int) -> bytes:
        self._note(path)
        return self.tree.read(path, limit)

    def listdir(self, path: str) -> list[str]:
        self._note(path)
        return self.tree.listdir(path)

    def readlink(self, path: str) -> str:
        self._note(path)
        return self.tree.readlink(path)

    def resolve(self, path: str) -> str:
        self._note(path)
        return self.tree.resolve(path)

    def stat(self, path: str) -> NodeStat:
        self._note(path)
        return self.tree.stat(path)


def record(root: SysRoot, look: Callable[[SysRoot], object]) -> Machine:
    """A machine as flat data; ``look`` probes it once, so that damage goes where something reads."""
    tree = root.tree
    assert isinstance(tree, MemoryTree)
    recorder = Recorder(tree)
    look(SysRoot(recorder, manifest=root.manifest))
    entries: dict[str, Entry] = {path: None for path in tree.folders if path}
    entries.update(tree.files)
    entries.update({path: Link(target) for path, target in tree.links.items()})
    entries.update({path: Special(node.kind) for path, node in tree.nodes.items()})
    targets = [path for path in recorder.asked if path and ".." not in path.split("/")]
    return Machine(entries, _document(root.manifest), targets)


def _document(manifest: Manifest) -> dict[str, Any]:
    nodes = {
        path: {
            "kind": node.stat.kind, "mode": f"{node.stat.mode:04o}", "uid": node.stat.uid, "gid": node.stat.gid,
            "major": node.stat.major, "minor": node.stat.minor, "access": node.access,
        }
        for path, node in manifest.nodes.items()
    }  # fmt: skip
    errors = {path: errno.errorcode[code] for path, code in manifest.errors.items()}
    process = manifest.process
    who = None if process is None else {"uid": process.uid, "gid": process.gid, "groups": list(process.groups)}
    return {
        "schema": SCHEMA, "nodes": nodes, "errors": errors, "process": who, "environ": dict(manifest.environ),
        "complete": manifest.complete,
    }  # fmt: skip


def in_memory(machine: Machine) -> MemoryTree:
    """The machine as the tree that an archive becomes."""
    tree = MemoryTree("mutated")
    for path, entry in machine.entries.items():
        if entry is None:
            tree.add_folder(path)
        elif isinstance(entry, bytes):
            tree.add_file(path, entry)
        elif isinstance(entry, Link):
            tree.add_link(path, entry.target)
        else:
            tree.add_node(path, NodeStat(entry.kind, 0o660, 0, 44, 226, 128))
    return tree


def manifest_of(machine: Machine) -> Manifest:
    """The manifest, or the empty one where it is refused (with one line)."""
    if machine.manifest is None:
        return Manifest()
    parsed, _ = tried(lambda: Manifest.parse(json.dumps(machine.manifest).encode(), "mutated"))
    return parsed or Manifest()


def tried(call: Callable[[], T]) -> tuple[T | None, str]:
    """(value, "") of a call, or (None, the one line) where it refused its input."""
    try:
        return call(), ""
    except UsageError as error:
        message = error.message
    assert "\n" not in message
    assert 0 < len(message) < 1000
    return None, message


def root_of(machine: Machine, tree: Tree | None = None) -> SysRoot:
    return SysRoot(tree or in_memory(machine), manifest=manifest_of(machine))


def write(machine: Machine, folder: Path) -> None:
    """The machine as files on disk; what a file system cannot hold is left out."""
    manifest = {} if machine.manifest is None else {MANIFEST: json.dumps(machine.manifest).encode()}
    made: set[bytes] = set()
    for path, entry in {**machine.entries, **manifest}.items():
        where = os.fsencode(folder) + b"/" + path.encode("utf-8", "surrogatepass")
        above = os.path.dirname(where) if entry is not None else where
        with suppress(OSError, ValueError):  # too long a name, a file where a folder should be, a NUL
            if above not in made:
                os.makedirs(above, exist_ok=True)
                made.add(above)
            _write(where, entry)


def _write(where: bytes, entry: Entry) -> None:
    if isinstance(entry, bytes):
        with open(where, "wb") as file:
            file.write(entry)
    elif isinstance(entry, Link):
        os.symlink(entry.target.encode("utf-8", "surrogatepass"), where)
    elif entry is not None and entry.kind in "cb" and os.geteuid() == 0:
        os.mknod(where, 0o600 | (stat.S_IFCHR if entry.kind == "c" else stat.S_IFBLK), os.makedev(1, 8))
    elif entry is not None:
        os.mkfifo(where)


def pack(machine: Machine, path: Path) -> None:
    """The machine as a tar archive."""
    with tarfile.open(path, "w:xz", preset=0) as archive:
        manifest = {} if machine.manifest is None else {MANIFEST: json.dumps(machine.manifest).encode()}
        for name, entry in {**machine.entries, **manifest}.items():
            member = tarfile.TarInfo(name)
            if isinstance(entry, bytes):
                member.size = len(entry)
                archive.addfile(member, io.BytesIO(entry))
                continue
            member.type = tarfile.DIRTYPE if entry is None else tarfile.SYMTYPE
            if isinstance(entry, Special):
                member.type = tarfile.FIFOTYPE if entry.kind in "ps" else tarfile.CHRTYPE
            member.linkname = entry.target if isinstance(entry, Link) else ""
            archive.addfile(member)


# -- what to do --------------------------------------------------------------------------------------------------------


def _pick(values: Sequence[Any], at: int) -> Any:
    return values[at % len(values)]


def payload(what: int) -> bytes:
    """Any content, most of it short."""
    kind, rest = divmod(what, 3)[::-1]
    if kind == 0:
        return str(_pick(NUMBERS, rest)).encode()
    return (
        bytes(_pick(BINARY, rest))
        if kind == 1 and rest % 4 == 0
        else str(_pick(TEXTS, rest)).encode("utf-8", "replace")
    )


def _path(machine: Machine, where: int) -> str:
    """A path that probe asks about; it need not exist."""
    return str(_pick(machine.targets, where)) if machine.targets else "sys/class/drm"


def _existing(machine: Machine, where: int) -> str:
    """A path that probe asks about and that is there, if any."""
    for step in range(50):
        path = _path(machine, where + step * 7)
        if path in machine.entries:
            return path
    return str(_pick(list(machine.entries) or ["sys"], where))


def _text(machine: Machine, path: str) -> str:
    data = machine.entries.get(path)
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else ""


def drop(machine: Machine, where: int, what: int) -> None:
    machine.drop(_existing(machine, where))


def content(machine: Machine, where: int, what: int) -> None:
    machine.put(_path(machine, where), payload(what))


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def number(machine: Machine, where: int, what: int) -> None:
    """One number of the text becomes another."""
    path = _existing(machine, where)
    text, new = _text(machine, path), str(_pick(NUMBERS, what))
    found = list(_NUMBER.finditer(text))
    if found:
        match = _pick(found, what // len(NUMBERS))
        text = text[: match.start()] + new + text[match.end() :]
    machine.put(path, (text if found else new).encode("utf-8", "replace"))


LONGEST = 1 << 14


def edit(machine: Machine, where: int, what: int) -> None:
    path = _existing(machine, where)
    text = _text(machine, path)[:LONGEST]  # edits of edits: each may make thousands of one
    machine.put(path, _pick(EDITS, what)(text).encode("utf-8", "replace"))


def sicken(machine: Machine, where: int, what: int) -> None:
    """A value that means trouble, in a file that can hold it."""
    for step in range(60):
        path = _path(machine, where + step * 11)
        choices = next((texts for part, texts in SICK.items() if part in path.rpartition("/")[2]), None)
        if choices is not None and isinstance(machine.entries.get(path, b""), bytes):
            machine.put(path, _pick(choices, what).encode("latin-1" if "\xff" in _pick(choices, what) else "utf-8"))
            return


def flip(machine: Machine, where: int, what: int) -> None:
    """One bit of a file."""
    path = _existing(machine, where)
    data = bytearray(entry if isinstance(entry := machine.entries.get(path), bytes) else b"0")
    if data:
        data[what // 8 % len(data)] ^= 1 << what % 8
        machine.put(path, bytes(data))


def retype(machine: Machine, where: int, what: int) -> None:
    """Something else than a file, or than a folder, in the same place."""
    path = _path(machine, where)
    folder, _, name = path.rpartition("/")
    choices: tuple[Entry, ...] = (
        None, Link(name), Link("nowhere"), Link("/"), Link("."), Link(".."), Link("/" + folder), Link("/etc/passwd"),
        Link("../" * 30 + "etc/passwd"), Link("/" + _path(machine, what)), Link("/" + _existing(machine, what)),
        Special("p"), Special("c"), Special("b"), Special("s"), Link(""), Link("x\ny"), Link("a/" * 2000),
        Link("/proc/self/environ"), Link("/dev/zero"),
        Link("/" + str(_pick(NAMES, what))), Link("./" * 100 + name), b"",
    )  # fmt: skip
    machine.put(path, _pick(choices, what))


def relink(machine: Machine, where: int, what: int) -> None:
    """A link that is there gets another last component, or another target altogether."""
    links = sorted(path for path, entry in machine.entries.items() if isinstance(entry, Link))
    if links:
        path = _pick(links, where)
        entry = machine.entries[path]
        target = entry.target if isinstance(entry, Link) else ""
        new = (
            target.rpartition("/")[0] + "/" + str(_pick((*NAMES, *NUMBERS, ".."), what)),
            "/" + _path(machine, what),
            target + "/..",
        )
        machine.put(path, Link(_pick(new, what // 7)))


def sibling(machine: Machine, where: int, what: int) -> None:
    """The same thing again below another name."""
    path = _existing(machine, where)
    folder, _, name = path.rpartition("/")
    new = (str(_pick(NAMES, what)), _NUMBER.sub(lambda match: str(_pick(NUMBERS, what)) or "x", name, count=1))[
        what % 2
    ]
    if new in (".", "..", name) or "/" in new:
        return
    for old in [one for one in machine.entries if one == path or one.startswith(path + "/")][:200]:
        machine.entries[(folder + "/" if folder else "") + new + old[len(path) :]] = machine.entries[old]


def crowd(machine: Machine, where: int, what: int) -> None:
    """Hundreds or thousands of entries like the one that is there. Links lead nowhere: a thousand real devices are
    a matter of speed, not of robustness."""
    path = _existing(machine, where)
    folder, _, name = path.rpartition("/")
    entry = machine.entries.get(path)
    count = (40, 400, 3000)[what % 3]
    new: Entry = Link("nowhere") if isinstance(entry, Link) else entry[:200] if isinstance(entry, bytes) else entry
    for index in range(count):
        text = (
            _NUMBER.sub(f"{index:x}"[-2:].zfill(2) if ":" in name else str(index), name, count=1)
            if what % 2
            else f"{name}{index}"
        )
        machine.entries.setdefault(f"{folder}/{text}".lstrip("/"), new)


def cycle(machine: Machine, where: int, what: int) -> None:
    """A folder that holds itself."""
    path = _existing(machine, where)
    above = path.split("/")[: max(1, what % (path.count("/") + 1))]
    folder = path if machine.entries.get(path) is None else path.rpartition("/")[0]
    names = (
        "device",
        "subsystem",
        "driver",
        "drm",
        "hwmon",
        "iommu_group",
        "physfn",
        "virtfn0",
        "0000:09:00.0",
        "again",
        "power",
    )
    machine.put(f"{folder}/{_pick(names, what)}".lstrip("/"), Link("/" + "/".join(above)))


def record_node(machine: Machine, where: int, what: int) -> None:
    """An entry of the manifest's nodes with one odd value."""
    if not isinstance(machine.manifest, dict) or not isinstance(machine.manifest.get("nodes"), dict):
        return
    nodes = machine.manifest["nodes"]
    path = _pick(
        [
            *nodes,
            "dev/dri/renderD128",
            "dev/kfd",
            "dev/accel/accel0",
            "dev/" + str(_pick(NAMES, what)),
            _path(machine, where),
        ],
        where,
    )
    fields = ("kind", "mode", "uid", "gid", "major", "minor", "access", "acl")
    entry = nodes.setdefault(path, {"mode": "0660", "uid": 0, "gid": 44})
    if isinstance(entry, dict):
        entry[_pick(fields, what)] = _pick((*JSON_VALUES, *NUMBERS), what // len(fields))


def manifest(machine: Machine, where: int, what: int) -> None:
    """Any value of the manifest becomes any other."""
    value = _pick((*JSON_VALUES, *NUMBERS), what)
    places: list[tuple[Any, Any]] = []
    todo = [machine.manifest]
    while todo:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        places += [(node, key) for key in keys]
        todo += [node[key] for key in keys]
    if places:
        node, key = _pick(places, where)
        node[key] = value


def refuse(machine: Machine, where: int, what: int) -> None:
    """A read that the machine refused."""
    if isinstance(machine.manifest, dict) and isinstance(machine.manifest.get("errors"), dict):
        machine.manifest["errors"][_path(machine, where)] = _pick(ERRNOS, what)


def masks(machine: Machine, where: int, what: int) -> None:
    """A variable that hides devices."""
    if isinstance(machine.manifest, dict) and isinstance(machine.manifest.get("environ"), dict):
        names = (
            *machine.manifest["environ"],
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ZE_AFFINITY_MASK",
            "container",
        )
        machine.manifest["environ"][_pick(names, where)] = _pick(MASKS, what)


def log(machine: Machine, where: int, what: int) -> None:
    """Lines of the kernel log with anything in them, up to thousands."""
    devices = [path.rpartition("/")[2] for path in machine.entries if path.startswith("sys/bus/pci/devices/")] or [
        "0000:03:00.0"
    ]
    device = _pick((*devices, "0000:03:00.0", "ffff:ff:1f.7", _pick(TEXTS, what)[:400]), where)
    line = (
        _pick(LINES, where // 3)
        .replace("{b}", device)
        .replace("{n}", _pick(NUMBERS, what))
        .replace("{t}", _pick(TEXTS, what // 5)[:400])
    )
    text = "\n".join(f"[{index:5d}.000000] {line}" for index in range(1 + what % 4 // 3 * 200))
    machine.put(KMSG, (_text(machine, KMSG) + text + "\n").encode("utf-8", "replace"))


def storm(machine: Machine, where: int, what: int) -> None:
    """A share of all files at once: most parsers see something odd in every such machine."""
    dice = random.Random(where)
    share = (0.03, 0.1, 0.3)[what % 3]
    for index, path in enumerate(machine.targets):
        if isinstance(machine.entries.get(path), bytes) and dice.random() < share:
            dice.choice((number, number, content, edit, flip))(machine, index, dice.randrange(65536))


OPERATIONS = (
    content, number, edit, sicken, sicken, sicken, storm, storm, content, number, drop, flip, retype, retype, relink,
    sibling, crowd, cycle, record_node, manifest, refuse, masks, log, log,
)  # fmt: skip


def apply(machine: Machine, mutations: Sequence[Mutation]) -> Machine:
    """A damaged copy."""
    damaged = machine.copy()
    for operation, where, what in mutations:
        OPERATIONS[operation % len(OPERATIONS)](damaged, where, what)
    return damaged
