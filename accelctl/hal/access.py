"""May this process open that node? Computed as the kernel computes it, because probe opens no node to find out.

The rules are those of fs/namei.c (acl_permission_check, generic_permission) and fs/posix_acl.c
(posix_acl_permission). What they do not cover, the device cgroup, security modules, a mount with nodev and folders
above the node that may not be searched, shows as a difference to the kernel's own access(2) answer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accelctl.hal.manifest import Process
from accelctl.hal.procfile import IdRange
from accelctl.hal.tree import NodeStat

READ, WRITE = 4, 2
RW = READ | WRITE

CAP_DAC_OVERRIDE = 1 << 1  # include/uapi/linux/capability.h
CAP_DAC_READ_SEARCH = 1 << 2

# include/uapi/linux/posix_acl.h and posix_acl_xattr.h
ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ, ACL_GROUP, ACL_MASK, ACL_OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_ACL_VERSION = 2
_ACL_HEAD = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_TAGS = {
    "u": ACL_USER,
    "user": ACL_USER,
    "g": ACL_GROUP,
    "group": ACL_GROUP,
    "m": ACL_MASK,
    "mask": ACL_MASK,
    "o": ACL_OTHER,
    "other": ACL_OTHER,
}
_UNNAMED = {ACL_USER: ACL_USER_OBJ, ACL_GROUP: ACL_GROUP_OBJ}
_OVERFLOW_ID = 65534  # what the kernel shows for an id that has no number in this user namespace


class AclEntry(NamedTuple):
    """One entry: tag (ACL_*), permission bits (4 read, 2 write, 1 execute), id of a named user or group, else 0."""

    tag: int
    perm: int
    id: int = 0


class Decision(NamedTuple):
    """May it read and write? ``by`` is the class that decided, ``needs`` what is missing, ``fix`` what to type."""

    allowed_rw: bool
    by: str
    needs: str | None = None
    fix: tuple[str, ...] = ()


# -- access control lists --


def parse_acl(data: bytes) -> tuple[AclEntry, ...]:
    """From the bytes of system.posix_acl_access; raises ValueError where no kernel would have written them."""
    if len(data) < _ACL_HEAD.size or (len(data) - _ACL_HEAD.size) % _ACL_ENTRY.size:
        raise ValueError("ACL of an odd length")
    if _ACL_HEAD.unpack_from(data)[0] != _ACL_VERSION:
        raise ValueError("ACL of an unknown version")
    entries = [AclEntry(*fields) for fields in _ACL_ENTRY.iter_unpack(data[_ACL_HEAD.size :])]
    named = (ACL_USER, ACL_GROUP)
    return _checked([entry if entry.tag in named else entry._replace(id=0) for entry in entries])


def parse_acl_text(text: str) -> tuple[AclEntry, ...]:
    """From the short or long text form with numbers and commas or lines: ``u::rw-,u:1000:rw-,g::r--,m::rw-,o::---``."""
    entries = []
    for word in text.replace("\n", ",").split(","):
        item = word.partition("#")[0].strip()
        if not item:
            continue
        fields = item.split(":")
        tag = _TAGS.get(fields[0])
        if tag is None or len(fields) != 3 or len(fields[2]) != 3:
            raise ValueError(f"not an ACL entry: {item[:40]!r}")
        perm = sum(bit for letter, place, bit in zip(fields[2], "rwx", (4, 2, 1), strict=True) if _set(letter, place))
        if fields[1]:
            entries.append(AclEntry(tag, perm, int(fields[1])))
        else:
            entries.append(AclEntry(_UNNAMED.get(tag, tag), perm))
    return _checked(entries)


def _set(letter: str, place: str) -> bool:
    if letter not in (place, "-"):
        raise ValueError(f"not a permission: {letter!r}")
    return letter == place


def _checked(entries: Sequence[AclEntry]) -> tuple[AclEntry, ...]:
    """In the kernel's order, with the entries every list must have (posix_acl_valid)."""
    tags = [entry.tag for entry in entries]
    if any(tag not in (*_TAGS.values(), ACL_USER_OBJ, ACL_GROUP_OBJ) for tag in tags) or any(
        entry.perm > 7 for entry in entries
    ):
        raise ValueError("ACL with an unknown entry")
    if any(tags.count(tag) != 1 for tag in (ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_OTHER)) or tags.count(ACL_MASK) > 1:
        raise ValueError("ACL without its base entries")
    if (ACL_USER in tags or ACL_GROUP in tags) and ACL_MASK not in tags:
        raise ValueError("ACL with named entries but no mask")
    return tuple(sorted(entries, key=lambda entry: entry.tag))


# -- the kernel's decision --


def _member(process: Process, gid: int) -> bool:
    return gid == process.gid or gid in process.groups


def _by_acl(stat: NodeStat, acl: Sequence[AclEntry], process: Process, want: int) -> tuple[bool, str]:
    """posix_acl_permission: the first matching user entry decides; of the group entries one that grants all is
    enough."""
    mask = next((entry.perm for entry in acl if entry.tag == ACL_MASK), 7)
    in_group = False
    for entry in acl:
        if entry.tag == ACL_USER_OBJ and process.uid == stat.uid:
            return entry.perm & want == want, "owner"
        if entry.tag == ACL_USER and process.uid == entry.id:
            return entry.perm & mask & want == want, "acl user"
        if entry.tag in (ACL_GROUP_OBJ, ACL_GROUP) and _member(
            process, stat.gid if entry.tag == ACL_GROUP_OBJ else entry.id
        ):
            in_group = True
            by = "group" if entry.tag == ACL_GROUP_OBJ else "acl group"
            if entry.perm & want == want:
                return entry.perm & mask & want == want, by
        if entry.tag == ACL_OTHER:
            return not in_group and entry.perm & want == want, by if in_group else "other"
    raise AssertionError("an ACL always has an entry for others")


def _by_mode(stat: NodeStat, acl: Sequence[AclEntry], process: Process, want: int) -> tuple[bool, str]:
    """acl_permission_check: owner first; the list counts only while the group bits (its mask) are not all off."""
    if process.uid == stat.uid:
        return stat.mode >> 6 & want == want, "owner"
    if acl and stat.mode & 0o070:
        return _by_acl(stat, acl, process, want)
    if _member(process, stat.gid):
        return stat.mode >> 3 & want == want, "group"
    return stat.mode & want == want, "other"


def permitted(
    stat: NodeStat, process: Process, want: int = RW, *, acl: Sequence[AclEntry] = (), unmapped: bool = False
) -> tuple[bool, str]:
    """(may it, which class decided) for opening a node with ``want`` (READ, WRITE or both), as generic_permission
    decides.

    ``unmapped``: owner or group of the node have no number in the process's user namespace; capabilities do not reach
    it then.
    """
    allowed, by = _by_mode(stat, acl, process, want)
    if allowed or unmapped:
        return allowed, by
    if process.capabilities & CAP_DAC_OVERRIDE or (want == READ and process.capabilities & CAP_DAC_READ_SEARCH):
        return True, "capability"
    return False, by


def is_unmapped(stat: NodeStat, uid_map: Sequence[IdRange], gid_map: Sequence[IdRange] = ()) -> bool:
    """Is the node's owner or group out of this user namespace? Such an id shows as 65534; a namespace that maps 65534
    itself is not told."""
    return any(
        number == _OVERFLOW_ID
        and ranges
        and not any(item.inside <= number < item.inside + item.size for item in ranges)
        for number, ranges in ((stat.uid, uid_map), (stat.gid, gid_map))
    )


def node_acl(stat: NodeStat, text: str | None = None) -> tuple[AclEntry, ...]:
    """The node's list from ``text`` (a captured machine's) or its attribute; empty where there is none or it is not
    understood."""
    try:
        if text is not None:
            return parse_acl_text(text)
        return parse_acl(stat.acl) if stat.acl else ()
    except ValueError:
        return ()


# -- what to do about a no --


def decide(
    stat: NodeStat,
    process: Process,
    groups: Mapping[int, str],
    *,
    path: str = "NODE",
    acl_text: str | None = None,
    container: bool | None = None,
    unmapped: bool = False,
) -> Decision:
    """May ``process`` read and write the node, and if not: what is missing and what to type.

    ``groups`` names gids (etc/group below the root). ``container``: True inside one, False outside, None if not
    known. Each fix offered was checked by deciding again with it. Another group's name is never offered in place of a
    number without one.
    """
    acl = node_acl(stat, acl_text)
    allowed, by = permitted(stat, process, acl=acl, unmapped=unmapped)
    if allowed:
        return Decision(True, by)
    for gid in _candidates(stat, acl):
        if permitted(stat, process._replace(groups=(*process.groups, gid)), acl=acl, unmapped=unmapped)[0]:
            return Decision(False, by, *_join(gid, groups.get(gid), container))
    return Decision(False, by, *_otherwise(stat, process, acl, path, container, unmapped))


def _candidates(stat: NodeStat, acl: Sequence[AclEntry]) -> list[int]:
    """Groups whose membership could open the node. Group 0 is left out: nobody should be put into root's group."""
    named = [entry.id for entry in acl if entry.tag == ACL_GROUP]
    return [gid for gid in dict.fromkeys((stat.gid, *named)) if gid not in (0, _OVERFLOW_ID)]


def _join(gid: int, name: str | None, container: bool | None) -> tuple[str, tuple[str, ...]]:
    start = f"start the container with --group-add {gid}"
    if name is None:
        on_host = (
            f"on a host: getent group {gid} tells the group's name; sudo usermod -aG THAT_NAME $USER, then log in again"
        )
        return f"group {gid} (it has no name here)", (start,) if container else (start, on_host)
    if container:
        return f"group {name} ({gid})", (start,)
    return f"group {name} ({gid})", (f"sudo usermod -aG {name} $USER", "log out and in again (or: newgrp " + name + ")")


def _otherwise(
    stat: NodeStat, process: Process, acl: Sequence[AclEntry], path: str, container: bool | None, unmapped: bool
) -> tuple[str, tuple[str, ...]]:
    if process.uid == stat.uid:
        return "read and write for its owner, which this process is", (f"chmod u+rw /{path}",)
    if unmapped:
        return (
            "a node whose owner and group exist in this user namespace",
            ("start the container with the host's ids (podman --group-add keep-groups; docker without userns-remap)",),
        )
    if any(entry.tag == ACL_USER for entry in acl):
        return (
            "an entry in the node's access list (a login manager gives one to the user at the seat: udev tag uaccess)",
            (f"sudo setfacl -m u:$USER:rw /{path}", "or log in at the machine's own seat"),
        )
    owner = "root" if stat.uid == 0 else f"uid {stat.uid}"
    if container:
        return f"{owner} (the mode bits give nobody else access)", (f"start the container's process as {owner}",)
    return f"{owner} (the mode bits give nobody else access)", ("sudo $(command -v accelctl) probe",)
