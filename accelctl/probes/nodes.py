"""Device nodes: where they are, who may open them, and who does.

No node is opened. Permission is computed from owner, mode, ACL, groups and capabilities, and compared with the kernel's
own access(2) answer; where the two differ it is the device cgroup or a security module, which mode bits cannot show.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch

from accelctl.abi.rooms import Room, Row
from accelctl.hal.access import decide
from accelctl.hal.proc import credentials, group_names
from accelctl.hal.tree import NodeStat
from accelctl.model.device import Device
from accelctl.model.reading import Reading, absent, computed
from accelctl.probes.context import Scan

_MAX = 4096
_WILD = re.compile(r"[*?[]")
_SHARED = ("dev/dri/", "dev/accel/")  # nodes of every DRM and accel driver: which one is said by sysfs alone


class Judge:
    """Computes the facts of nodes; credentials and group names are read once a scan."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.process = credentials(scan.root)
        self.groups = group_names(scan.root)

    def facts(self, path: str) -> dict[str, Reading]:
        """Facts of one node, keyed below ``nodes/<name>/``."""
        base = f"nodes/{path.removeprefix('dev/')}"
        stat = self.scan.root.stat(path)
        if stat is None:
            return {f"{base}/path": self._missing(path)}
        kind = {"c": "char", "b": "block", "d": "folder", "f": "file"}.get(stat.kind, "other")
        words = f"{kind} {stat.major}:{stat.minor} {stat.mode:04o} {stat.uid}:{stat.gid}"
        facts = {
            "path": Reading("/" + path, path, words),
            "mode": Reading(f"{stat.mode:04o}", path, words),
            "uid": Reading(stat.uid, path, words),
            "gid": Reading(stat.gid, path, words),
            "group": self._group(path, stat),
        }
        if stat.kind in "cb":
            facts["number"] = Reading(f"{stat.major}:{stat.minor}", path, words)
            facts.update(self._permission(path, stat))
        return {f"{base}/{key}": reading for key, reading in facts.items()}

    def _missing(self, path: str) -> Reading:
        root = self.scan.root
        if not root.live and not root.manifest.complete and not root.manifest.nodes:
            return absent(path, "not_captured")
        if self._contained():
            return absent(path, "hidden_by_container", errno="ENOENT")
        return absent(path, "no_node", errno="ENOENT")

    def _contained(self) -> bool | None:
        """In a container? None where it is not known."""
        kind = self.scan.machine.get("container/kind")
        return None if kind is None or kind.value is None else kind.value != "none"

    def _group(self, path: str, stat: NodeStat) -> Reading:
        name = self.groups.get(stat.gid)
        if name is None:
            return absent("etc/group", "empty", detail=f"gid {stat.gid} has no name here")
        line = re.search(rf"^{re.escape(name)}:.*$", self.scan.root.text("etc/group") or "", re.MULTILINE)
        return Reading(name, "etc/group", line.group(0) if line else None)

    def _permission(self, path: str, stat: NodeStat) -> dict[str, Reading]:
        if self.process is None:
            return {"access/computed": absent(path, "not_captured", detail="no credentials of the process that looked")}
        recorded = self.scan.root.manifest.nodes.get(path)
        acl_text = recorded.acl_text if recorded else None
        decision = decide(stat, self.process, self.groups, path=path, acl_text=acl_text, container=self._contained())
        facts = {
            "access/computed": computed(
                decision.allowed_rw, f"read and write for uid {self.process.uid} by {decision.by}"
            ),
            "access/needs": computed(decision.needs, "what would give it")
            if decision.needs
            else absent(path, "not_applicable"),
        }
        if decision.fix:
            facts["access/fix"] = computed(list(decision.fix), "what to type for it")
        answer = self.scan.root.access_rw(path)
        if answer != "":
            facts["access/kernel"] = Reading(answer is None, path, "allowed" if answer is None else answer)
        return facts


def find(scan: Scan) -> None:
    """Nodes of every device and of every room that is present; nodes without a device on any bus become devices
    themselves.
    """
    judge = Judge(scan)
    claimed: set[str] = set()
    for device in list(scan.devices.values()):
        for key, reading in device.under("drm").items():
            if key.endswith("/node"):
                device.facts.update(judge.facts(reading.value))
                claimed.add(reading.value)
    for room, row in scan.rooms.nodes():
        if row["glob"].startswith(_SHARED):
            continue
        paths = [path for path in expand(scan, row["glob"]) if path not in claimed and _is_node(scan, path)]
        if row.get("per_device"):
            _per_device(scan, judge, room, row, paths)
        else:
            for path in paths:
                scan.machine.update(judge.facts(path))
                scan.machine[f"nodes/{path.removeprefix('dev/')}/chip"] = computed(room.name, f"{room.name}/chip.toml")
        claimed.update(paths)
    _unjoined(scan, judge, claimed)


def _unjoined(scan: Scan, judge: Judge, claimed: set[str]) -> None:
    """DRM and accel nodes that no minor in sysfs leads to (a container may hide /sys): real, but of no known chip."""
    for glob in ("dev/dri/renderD*", "dev/dri/card*", "dev/accel/accel[0-9]*"):
        for path in expand(scan, glob):
            if path not in claimed and _is_node(scan, path):
                device = scan.add(Device(f"node:{path.removeprefix('dev/')}", "physical", path))
                device.facts.update(judge.facts(path))


def expand(scan: Scan, glob: str) -> list[str]:
    """Nodes that fit a glob below dev/, from the folder and, on a captured machine, from its manifest."""
    found = [path for path in scan.root.manifest.nodes if fnmatch(path, glob) and path.count("/") == glob.count("/")]
    bases = [""]
    for part in glob.split("/"):
        plain = _WILD.split(part, maxsplit=1)[0]
        if plain != part:
            bases = [
                f"{base}{name}/"
                for base in bases
                for name in scan.root.listdir(base.rstrip("/"))
                if name.startswith(plain) and fnmatch(name, part)  # a pattern takes time to make, and few are needed
            ]
        else:
            bases = [f"{base}{part}/" for base in bases]
    found += [base.rstrip("/") for base in bases[:_MAX] if scan.root.exists(base.rstrip("/"))]
    return sorted(set(found), key=_natural)


def _natural(path: str) -> tuple[str, str]:
    head = path.rstrip("0123456789")
    return head, path[len(head) :].lstrip("0").rjust(9)


def _is_node(scan: Scan, path: str) -> bool:
    stat = scan.root.stat(path)
    return stat is not None and stat.kind in "cb"


def _per_device(scan: Scan, judge: Judge, room: Room, row: Row, paths: list[str]) -> None:
    """Join nodes to devices: by the minor the driver names, else one to one in order where the counts agree."""
    owners = [
        one for one in scan.devices.values() if one.chip == room.name and one.kind in ("physical", "vf", "partition")
    ]
    by_minor = {minor: one for one in owners if (minor := _driver_minor(one)) is not None}
    for index, path in enumerate(paths):
        stat = scan.root.stat(path)
        device = by_minor.get(stat.minor) if stat else None
        if device is None and len(owners) == len(paths) and not by_minor:
            device = owners[index]
        if device is None and not owners:
            device = scan.add(Device(f"node:{path.removeprefix('dev/')}", "physical", path, chip=room.name))
        facts = judge.facts(path)
        if device is not None:
            device.facts.update(facts)
        else:
            scan.machine.update(facts)


def _driver_minor(device: Device) -> int | None:
    """The node's minor where the driver itself names it (nvidia: "Device Minor" in
    /proc/driver/nvidia/gpus/BDF/information).
    """
    found = next((one.value for key, one in device.facts.items() if key.endswith("/device_minor")), None)
    return found if isinstance(found, int) else None
