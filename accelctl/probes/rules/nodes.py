"""Device nodes: may this process open them, and if not, what exactly stands in the way.

Mode bits and ACLs answer EACCES, the device cgroup EPERM (security/device_cgroup.c; fs/namei.c inode_permission asks it
last). So a node whose mode bits allow and whose access is refused is the cgroup's doing, or a security module's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple

from accelctl.abi.rooms import Room
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.hal.access import Decision, decide
from accelctl.hal.proc import credentials, group_names
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.rules._common import in_container, name_list

_CGROUP_V1 = "sys/fs/cgroup/devices/devices.list"
_RULE = re.compile(r"^([abc]) (\d+|\*):(\d+|\*) ([rwm]+)$")
#: Roles of [[node]] rows that a program computes through; the others matter only beside them.
_COMPUTING = ("render", "device", "compute")


Role = tuple[str, str]
"""What the nodes of a [[node]] row are for, and the glob of their paths."""


class Node(NamedTuple):
    """A node and what the scan found out: name below dev/, role, device if one is known, facts."""

    name: str
    role: str
    room: Room | None
    device: Device | None
    facts: dict[str, Reading]

    def value(self, key: str) -> object:
        """The value of one of its facts."""
        reading = self.facts.get(key)
        return None if reading is None else reading.value


def all_nodes(ctx: RuleContext) -> Iterator[Node]:
    """Nodes of devices, and those that belong to none (/dev/kfd, /dev/nvidiactl)."""
    known = [(str(row.get("role", "")), row["glob"]) for _, row in ctx.rooms.nodes()]
    for device in ctx.report.devices:
        yield from _nodes(ctx, device, device.under("nodes"), known)
    machine = {key: one for key, one in ctx.report.machine.items() if key.startswith("nodes/")}
    yield from _nodes(ctx, None, machine, known)


def _nodes(ctx: RuleContext, device: Device | None, facts: dict[str, Reading], known: list[Role]) -> Iterator[Node]:
    paths = (key.removeprefix("nodes/").removesuffix("/path") for key in facts if key.endswith("/path"))
    owned: dict[str, dict[str, Reading]] = {name: {} for name in paths}
    for key, reading in facts.items():  # names hold slashes (dri/card0), parts at most one (access/kernel)
        name, _, part = key.removeprefix("nodes/").rpartition("/")
        if name not in owned:
            name, _, group = name.rpartition("/")
            part = f"{group}/{part}"
        owned.get(name, {})[part] = reading
    for name, own in owned.items():
        chip = device.chip if device else str(own["chip"].value) if "chip" in own else ""
        room = ctx.rooms.by_name.get(chip or "")
        yield Node(name, _role(room, name, known), room, device, own)


def _role(room: Room | None, name: str, known: list[Role]) -> str:
    """What a node is for, by the first [[node]] row that fits: the own room's, else any."""
    for row in room.table("node") if room is not None else ():
        if fnmatch(f"dev/{name}", row["glob"]):
            return str(row.get("role", ""))
    return next((role for role, glob in known if fnmatch(f"dev/{name}", glob)), "")


class Block(NamedTuple):
    """What keeps a node shut; nodes with the same block are one finding."""

    id: str
    words: str
    fix: tuple[str, ...]
    certainty: str


@rule(
    "NODE-PERMISSION",
    "NODE-CGROUP",
    "NODE-LSM",
    explains=("LIB-MISSING",),
)
def shut(ctx: RuleContext) -> Iterator[Finding]:
    """Nodes that exist and may not be opened; one finding per obstacle."""
    present = [node for node in all_nodes(ctx) if node.facts["path"].present]
    judge = Judge(ctx) if present else None
    blocks: dict[Block, list[Node]] = {}
    for node in present:
        block = _block(ctx, judge, node) if judge else None
        if block is not None:
            blocks.setdefault(block, []).append(node)
    for block, nodes in blocks.items():
        wanted = _that_matter(ctx, block, nodes)
        if wanted:
            yield _finding(ctx, block, wanted)


class Judge:
    """Credentials, group names and the device cgroup's list, read once."""

    def __init__(self, ctx: RuleContext) -> None:
        self.process = credentials(ctx.root)
        self.groups = group_names(ctx.root)
        self.cgroup = ctx.root.text(_CGROUP_V1)
        kind = ctx.report.value("container/kind")
        self.container = None if kind is None else kind != "none"

    def denial(self, number: object) -> str | None:
        """What the visible device list of cgroup v1 does to MAJOR:MINOR, None where it leaves it open."""
        if self.cgroup is None or not isinstance(number, str):
            return None
        given = cgroup_gives(self.cgroup, number)
        if "r" in given and "w" in given:
            return None
        return f"the device cgroup denies read and write (it gives {given or 'nothing'})"

    def decision(self, ctx: RuleContext, node: Node) -> Decision | None:
        """The computed answer with its fix; None without a node or credentials."""
        path = f"dev/{node.name}"
        stat = ctx.root.stat(path)
        if stat is None or self.process is None:
            return None
        known = ctx.root.manifest.nodes.get(path)
        text = known.acl_text if known else None
        return decide(stat, self.process, self.groups, path=path, acl_text=text, container=self.container)


def cgroup_gives(rules: str, number: str) -> str:
    """Letters that a devices.list (admin-guide/cgroup-v1) gives for the character device MAJOR:MINOR: r, w, m."""
    major, _, minor = number.partition(":")
    given: set[str] = set()
    for line in rules.splitlines():
        match = _RULE.match(line.strip())
        if match and match[1] in "ac" and match[2] in ("*", major) and match[3] in ("*", minor):
            given |= set(match[4])
    return "".join(letter for letter in "rwm" if letter in given)


def _block(ctx: RuleContext, judge: Judge, node: Node) -> Block | None:
    kernel = node.facts.get("access/kernel")
    if kernel is not None and kernel.value is True:
        return None
    decision = judge.decision(ctx, node)
    computed = decision.allowed_rw if decision else node.value("access/computed")
    answer = kernel.raw if kernel is not None else None
    denial = judge.denial(node.value("number"))
    if denial is not None and computed is not False:
        return Block("NODE-CGROUP", denial, _recreate(ctx), "certain")
    if answer == "EPERM" or (answer == "denied" and computed is True):
        return Block("NODE-CGROUP", "the device cgroup denies it", _recreate(ctx), "likely")
    if answer is not None and computed is True:
        fix = ("sudo dmesg | grep -iE 'avc|apparmor'", "findmnt -T /dev (a mount with nodev also refuses)")
        return Block("NODE-LSM", "a security module (SELinux, AppArmor) or the mount refuses it", fix, "likely")
    if computed is False and decision is not None:
        return Block("NODE-PERMISSION", decision.needs or "", decision.fix, "certain")
    return None


def _recreate(ctx: RuleContext) -> tuple[str, ...]:
    if not in_container(ctx) and ctx.report.value("container/kind") is not None:
        return (
            "systemd-cgls tells which service or slice this runs in",
            "systemctl show -p DevicePolicy -p DeviceAllow UNIT, and allow the node there",
        )
    return (
        "on the host: create the links below /dev/char for the nodes, then recreate the container",
        "to keep it from coming back: give devices by CDI, or use the other cgroup driver in the container engine",
    )


def _that_matter(ctx: RuleContext, block: Block, nodes: list[Node]) -> list[Node]:
    """A card node beside a render node is the display server's; control nodes alone are the administrator's."""
    rendering = {node.device.id for node in all_nodes(ctx) if node.device is not None and node.role == "render"}
    nodes = [one for one in nodes if one.role != "card" or (one.device and one.device.id not in rendering)]
    nodes = [one for one in nodes if one.device is None or one.device.kind != "display"]
    if block.id == "NODE-PERMISSION" and not any(node.role in (*_COMPUTING, "card") for node in nodes):
        return []
    return nodes


def _finding(ctx: RuleContext, block: Block, nodes: list[Node]) -> Finding:
    owners = {node.device.id: node.device for node in nodes if node.device is not None}
    single = len(owners) == 1 and all(node.device is not None for node in nodes)
    identity = next(iter(owners)) if single else None
    names = name_list([f"/dev/{node.name}" for node in nodes])
    virtual = bool(owners) and all(device.kind == "virtual" for device in owners.values())
    if block.id == "NODE-PERMISSION":
        title = f"permission: this process may not open {names}; it lacks {block.words}"
    else:
        title = f"{names}: the mode bits allow reading and writing, but {block.words}"
    keys = ("path", "access/kernel")
    shown = evidence(*(node.facts[key] for node in nodes[:2] for key in keys if key in node.facts))
    shown += _who(ctx, block)
    level = "info" if virtual else "error"
    return Finding(block.id, level, title, identity, shown, block.fix, block.certainty)


def _who(ctx: RuleContext, block: Block) -> tuple[Evidence, ...]:
    if block.id == "NODE-CGROUP" and block.certainty == "certain":
        return (Evidence(_CGROUP_V1, (ctx.root.text(_CGROUP_V1) or "").strip()),)
    process = credentials(ctx.root)
    if process is None:
        return ()
    groups = " ".join(str(gid) for gid in dict.fromkeys((process.gid, *process.groups)))
    return (Evidence("proc/self/status", f"uid {process.uid}, groups {groups}"),)
