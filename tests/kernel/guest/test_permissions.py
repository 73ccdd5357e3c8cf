"""Computed permissions against what a real unprivileged open gives, for owners, groups, ACLs and capabilities."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelctl.abi.rooms import Directory
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree
from accelctl.probes.context import Scan
from accelctl.probes.nodes import Judge

from .helpers import set_acl, unprivileged

USERS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1000, 1000, (1000,)),
    (1000, 1000, (1000, 44)),
    (1000, 44, (44,)),
    (2000, 2000, (109,)),
    (0, 0, (0,)),
)
MODES = (0o660, 0o600, 0o666, 0o060, 0o606, 0o640, 0o006, 0o000)
OWNERS = ((0, 44), (1000, 109), (0, 109), (2000, 0))


def judged(path: str) -> tuple[bool, bool, bool]:
    """(computed, the kernel's access(2) as probe asked it, a real open) in this process.

    Only the node's own facts are asked for: a whole scan per case would take the guest an hour.
    """
    facts = Judge(Scan(SysRoot(LiveTree()), Directory(()))).facts(path.removeprefix("/"))
    base = f"nodes/{path.removeprefix('/dev/')}/access"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        real = True
    except PermissionError:
        real = False
    return facts[f"{base}/computed"].value, facts[f"{base}/kernel"].value, real


@pytest.fixture
def node() -> Iterator[Path]:
    path = Path("/dev/dri/renderD128")
    before = path.stat()
    yield path
    os.system(f"setfacl -b {path} 2>/dev/null")
    os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, before.st_mode & 0o7777)


def test_modes_and_owners(node: Path) -> None:
    wrong = []
    for (uid, gid), mode, user in itertools.product(OWNERS, MODES, USERS):
        os.chown(node, uid, gid)
        os.chmod(node, mode)
        computed, kernel, real = unprivileged(user[0], user[1], user[2], lambda: judged(str(node)))
        if not computed == kernel == real:
            wrong.append((uid, gid, oct(mode), user, computed, kernel, real))
    assert wrong == []


@pytest.mark.parametrize(
    "entries",
    [
        ("u:1000:rw",),
        ("u:1000:r",),
        ("u:1000:rw", "m::r"),
        ("g:109:rw",),
        ("g:109:rw", "m::---"),
        ("u:2000:---", "g:109:rw"),
        ("g:44:r", "g:109:rw"),
    ],
)
def test_access_lists(node: Path, entries: tuple[str, ...]) -> None:
    os.chown(node, 0, 0)
    os.chmod(node, 0o660)
    set_acl(node, *entries)
    for user in USERS:
        computed, kernel, real = unprivileged(user[0], user[1], user[2], lambda: judged(str(node)))
        assert computed == kernel == real, (entries, user)
