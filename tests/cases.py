"""From a few facts to a Report: the helper that turns a case in writing into a captured machine held in memory.

The notation of the case collection maps one to one: ``path = text`` is ``files``, ``path -> target`` is ``links``,
``path !ENOENT`` is ``missing`` (it documents the case; a complete capture has what it has and nothing else),
``path !EACCES`` is ``denied``, ``stat NODE`` and ``open(NODE)`` are ``nodes``, ``process:`` is ``process``, ``dmesg:``
is ``dmesg``. ``$D(X)`` is the folder of PCI function X: its files are put below sys/devices, and /sys/bus/pci/devices/X
becomes the link that the kernel has there.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accelctl.abi.rooms import Room, in_tree
from accelctl.hal.manifest import KMSG, Manifest, Node, Process
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import MemoryTree, NodeStat
from accelctl.model.finding import Finding
from accelctl.model.report import Report
from accelctl.probes.engine import chip_module, generic_modules

BUS = "sys/bus/pci/devices"
_DEVICE = re.compile(r"^(?:\$D\(([0-9a-f:.]+)\)|/?sys/bus/pci/devices/([0-9a-f:.]+))(?=/|$)")


def _errno(value: str | int) -> int:
    return value if isinstance(value, int) else int(getattr(errno, value))


class Builder:
    """A machine under construction; ``parents`` lists the bridges above a function, nearest the root first."""

    def __init__(self, parents: Mapping[str, Sequence[str]] | None = None) -> None:
        self.tree = MemoryTree("case")
        self.parents = dict(parents or {})
        self.manifest = Manifest(complete=True)
        self._known: set[str] = set()

    def folder(self, address: str) -> str:
        """Real folder of a PCI function, with its link on the bus."""
        above = self.parents.get(address, ())
        first = above[0] if above else address
        host = f"sys/devices/pci{first.rpartition(':')[0]}"
        real = "/".join((host, *above, address))
        if address not in self._known:
            self._known.add(address)
            self.tree.add_folder(real)
            self.tree.add_link(f"{BUS}/{address}", "../../../" + real.removeprefix("sys/"))
            for index, bridge in enumerate(above):
                self.parents.setdefault(bridge, above[:index])
                self.folder(bridge)
        return real

    def path(self, text: str) -> str:
        """A path of the notation as one below the root."""
        match = _DEVICE.match(text)
        if match is None:
            return text.lstrip("/")
        return self.folder(match.group(1) or match.group(2)) + text[match.end() :]

    def file(self, path: str, data: str | bytes | None) -> None:
        """A file; text gets the line end that sysfs writes, None is an empty folder."""
        where = self.path(path)
        if data is None:
            self.tree.add_folder(where)
        else:
            self.tree.add_file(where, data if isinstance(data, bytes) else (data + "\n" if data else "").encode())

    def node(self, path: str, facts: Mapping[str, Any]) -> None:
        """A device node; ``open`` is the errno name of a real open, None for success, absent for "not tried"."""
        where = self.path(path)
        mode = facts.get("mode", 0o660)
        mode = int(mode, 8) if isinstance(mode, str) else mode
        stat = NodeStat("c", mode, *(facts.get(name, 0) for name in ("uid", "gid", "major", "minor")))
        self.tree.add_node(where, stat)
        self.manifest.nodes[where] = Node(stat, facts.get("open", ""), facts.get("acl"))


def machine(
    *,
    files: Mapping[str, str | bytes | None] | None = None,
    links: Mapping[str, str] | None = None,
    missing: Iterable[str] = (),
    denied: Mapping[str, str | int] | None = None,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    process: Mapping[str, Any] | None = None,
    dmesg: Sequence[str | tuple[float, str]] | None = None,
    environ: Mapping[str, str] | None = None,
    parents: Mapping[str, Sequence[str]] | None = None,
) -> SysRoot:
    """The captured machine that a case describes."""
    built = Builder(parents)
    for path, data in (files or {}).items():
        built.file(path, data)
    for path, target in (links or {}).items():
        built.tree.add_link(built.path(path), target)
    for path, facts in (nodes or {}).items():
        built.node(path, facts)
    for path, code in (denied or {}).items():
        where = built.path(path)
        built.manifest.errors[where] = _errno(code)
        if where not in built.tree.files:
            built.tree.add_file(where, b"")
    if process is not None:
        uid, gid, bits = (process.get(name, 0) for name in ("uid", "gid", "capabilities"))
        built.manifest.process = Process(uid, gid, tuple(process.get("groups", ())), bits)
    built.manifest.environ.update(environ or {})
    if dmesg is not None:
        built.tree.add_file(KMSG, "".join(_log_line(entry, index) for index, entry in enumerate(dmesg)).encode())
    for path in missing:
        where = built.path(path)
        assert where not in built.tree.files, f"{path} is said to be missing and was given"
    return SysRoot(built.tree, manifest=built.manifest)


def _log_line(entry: str | tuple[float, str], index: int) -> str:
    """One line as dmesg prints it."""
    seconds, text = entry if isinstance(entry, tuple) else (1.0 + index / 1000, entry)
    return f"[{seconds:12.6f}] {text}\n"


def case(*, rooms: Iterable[Room] | None = None, **facts: Any) -> Report:
    """Probe the machine that a case describes (arguments as of :func:`machine`)."""
    from accelctl.probes.scan import probe

    return probe(machine(**facts), rooms)


def function(
    address: str, vendor: str, device: str, class_: str = "0x030000", **files: str | bytes
) -> dict[str, str | bytes]:
    """Files of one PCI function, by file name (``/`` written as ``__``)."""
    base = f"$D({address})"
    basic: dict[str, str | bytes] = {"vendor": vendor, "device": device, "class": class_}
    basic.update({name.replace("__", "/"): data for name, data in files.items()})
    return {f"{base}/{name}": data for name, data in basic.items()}


def findings(report: Report, *ids: str, device: str | None = None, at_least: str = "ok") -> list[Finding]:
    """Findings of a report, of these ids, this device and this level or worse, where given."""
    from accelctl.model.finding import rank

    return [
        one
        for one in report.findings
        if (not ids or one.id in ids) and (device is None or one.device == device) and rank(one.level) >= rank(at_least)
    ]


def words(finding: Finding) -> str:
    """Everything a finding says, lower case, for must and must-not assertions."""
    parts = [finding.title, *finding.fix, *finding.consequences, *(entry.raw for entry in finding.evidence)]
    return "\n".join(parts).lower()


def advice(finding: Finding) -> str:
    """Title and fix without the quoted evidence: what the tool itself says."""
    return "\n".join([finding.title, *finding.fix, *finding.consequences]).lower()


def only(report: Report, identity: str, device: str | None = None) -> Finding:
    """The one finding of this id (and device)."""
    found = findings(report, identity, device=device)
    assert len(found) == 1, [(one.id, one.device, one.title) for one in report.findings]
    return found[0]


def alarms(report: Report, prefix: str = "") -> list[str]:
    """Ids of findings above info."""
    return [one.id for one in findings(report, at_least="warn") if one.id.startswith(prefix)]


def log_rows() -> list[Any]:
    """The rows of every LOG_RULES table: generic modules and every in-tree room."""
    modules = [*generic_modules(), *filter(None, map(chip_module, in_tree()))]
    return [row for module in modules for row in getattr(module, "LOG_RULES", ())]
