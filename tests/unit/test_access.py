"""Computed permissions: against a second statement of the rules, against real opens, and the advice they lead to."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.hal.access import (
    ACL_GROUP,
    ACL_GROUP_OBJ,
    ACL_MASK,
    ACL_OTHER,
    ACL_USER,
    ACL_USER_OBJ,
    CAP_DAC_OVERRIDE,
    CAP_DAC_READ_SEARCH,
    READ,
    RW,
    WRITE,
    AclEntry,
    decide,
    is_unmapped,
    node_acl,
    parse_acl,
    parse_acl_text,
    permitted,
)
from accelctl.hal.manifest import Process
from accelctl.hal.procfile import IdRange
from accelctl.hal.tree import NodeStat, node_stat
from tests.helpers import environment

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes nodes and becomes other users")


def node(mode: int, uid: int = 0, gid: int = 109, acl: bytes | None = None) -> NodeStat:
    return NodeStat("c", mode, uid, gid, 226, 128, acl)


# -- the rules, stated a second time: as sets of who may do what, after acl(5), without the kernel's order of steps --


def naive(stat: NodeStat, acl: dict[str, dict[int, int] | int] | None, process: Process, want: int) -> bool:
    """acl(5), "access check algorithm", written from that page."""
    caps = process.capabilities
    if caps & CAP_DAC_OVERRIDE or (caps & CAP_DAC_READ_SEARCH and want == READ):
        return True
    bits = {"owner": stat.mode >> 6 & 7, "group": stat.mode >> 3 & 7, "other": stat.mode & 7}
    mine = {process.gid, *process.groups}
    if process.uid == stat.uid:
        return bits["owner"] | want == bits["owner"]
    if acl is not None and bits["group"]:
        users, named, mask = acl["users"], acl["groups"], bits["group"]
        assert isinstance(users, dict)
        assert isinstance(named, dict)
        assert isinstance(acl["group"], int)
        if process.uid in users:
            return want & ~(users[process.uid] & mask) == 0
        matching = [perm for gid, perm in named.items() if gid in mine] + ([acl["group"]] if stat.gid in mine else [])
        if matching:
            return any(want & ~(perm & mask) == 0 for perm in matching if want & ~perm == 0)
        return want & ~bits["other"] == 0
    return want & ~bits["group" if stat.gid in mine else "other"] == 0


ids = st.integers(0, 3)
capabilities = (0, 0, 0, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, 1 << 5)
processes = st.builds(Process, ids, ids, st.lists(ids, max_size=3).map(tuple), st.sampled_from(capabilities))


def as_bytes(users: dict[int, int], groups: dict[int, int], bits: tuple[int, int, int, int]) -> bytes:
    """The attribute as the kernel writes it: version 2, then entries in order; bits are owner, group, mask, other."""
    owner, group, mask, other = bits
    nobody = 0xFFFFFFFF
    entries = [
        (0x01, owner, nobody),
        *((0x02, perm, uid) for uid, perm in sorted(users.items())),
        (0x04, group, nobody),
        *((0x08, perm, gid) for gid, perm in sorted(groups.items())),
        (0x10, mask, nobody),
        (0x20, other, nobody),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def random_process(source: random.Random) -> Process:
    groups = tuple(source.choices(range(4), k=source.randrange(4)))
    return Process(source.randrange(4), source.randrange(4), groups, source.choice(capabilities))


def test_mode_bits_agree_with_the_second_statement() -> None:
    """Every mode, each with a dozen random owners and processes."""
    source = random.Random(20260103)
    for mode in [mode for mode in range(0o1000) for _ in range(12)]:
        stat = node(mode, source.randrange(4), source.randrange(4))
        process, want = random_process(source), source.choice([READ, WRITE, RW])
        assert permitted(stat, process, want)[0] == naive(stat, None, process, want), (stat, process, want)


def test_access_lists_agree_with_the_second_statement() -> None:
    source = random.Random(20260104)
    outcomes = set()
    for _ in range(20_000):
        owner, group, mask, other = (source.choice([0, 2, 4, 6, 6, 7]) for _ in range(4))
        users, groups = (
            {source.randrange(4): source.choice([0, 2, 4, 6]) for _ in range(source.randrange(4))} for _ in "ug"
        )
        acl = as_bytes(users, groups, (owner, group, mask, other))
        stat = node(owner << 6 | mask << 3 | other, source.randrange(4), source.randrange(4), acl)
        process, want = random_process(source), source.choice([READ, WRITE, RW])
        expected = naive(stat, {"users": users, "groups": groups, "group": group}, process, want)
        got = permitted(stat, process, want, acl=node_acl(stat))
        assert got[0] == expected, (stat, users, groups, process, want, got)
        outcomes.add(got)
    assert len(outcomes) == 11  # yes and no by each of five classes, and yes by capability


@settings(max_examples=200)
@given(st.integers(0, 0o777), ids, ids, processes, st.dictionaries(ids, st.just("g"), max_size=3))
def test_advice_to_join_a_group_would_help(
    mode: int, uid: int, gid: int, process: Process, groups: dict[int, str]
) -> None:
    stat = node(mode, uid, gid)
    decision = decide(stat, process, groups)
    assert decision.allowed_rw == permitted(stat, process)[0]
    assert bool(decision.fix) == (not decision.allowed_rw)
    if any("usermod" in line or "--group-add" in line for line in decision.fix):
        assert permitted(stat, process._replace(groups=(gid,)))[0]


# -- against real opens --

OPENER = """
import json, os, sys
asked = json.load(sys.stdin)
answers = []
for uid, gid, groups in asked["who"]:
    read, write = os.pipe()
    if os.fork() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        row = []
        for path in asked["paths"]:
            for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, flags))
                    row.append(0)
                except OSError as error:
                    row.append(error.errno)
        os.write(write, json.dumps(row).encode())
        os._exit(0)
    os.close(write)
    answers.append(json.loads(b"".join(iter(lambda: os.read(read, 65536), b""))))
    os.close(read)
    os.wait()
json.dump(answers, sys.stdout)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def compare(paths: list[Path], who: list[tuple[int, int, list[int]]]) -> int:
    """Open every path as everyone, for all three ways of opening, and compare with the computed answers; how many were
    compared.
    """
    question = json.dumps({"paths": [str(path) for path in paths], "who": who})
    done = subprocess.run([sys.executable, "-c", OPENER], input=question, capture_output=True, text=True, check=True)
    count = 0
    for (uid, gid, groups), row in zip(who, json.loads(done.stdout), strict=True):
        process = Process(uid, gid, tuple(groups), 0 if uid else CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH)
        answers = iter(row)
        for path in paths:
            stat = node_stat(str(path))
            for want in (RW, READ, WRITE):
                answer = next(answers)
                assert answer in (0, errno.EACCES)
                got = permitted(stat, process, want, acl=node_acl(stat))
                assert got[0] == (answer == 0), (oct(stat.mode), stat, node_acl(stat), process, want, got, answer)
                count += 1
    return count


def random_people(source: random.Random, count: int) -> list[tuple[int, int, list[int]]]:
    pick = [0, 1, 2, 3, 4]
    people = [
        (source.choice(pick), source.choice(pick), source.sample(pick, source.randrange(4))) for _ in range(count)
    ]
    return [*people, (0, 0, [])]


def make_nodes(folder: Path, source: random.Random, count: int) -> list[Path]:
    paths = [folder / f"node{number}" for number in range(count)]
    for path in paths:
        os.mknod(path, 0o020000, os.makedev(1, 3))  # another /dev/null
        os.chown(path, source.randrange(4), source.randrange(4))
        os.chmod(path, source.choice([0o660, 0o666, 0o600, 0o640, source.randrange(0o1000), source.randrange(0o1000)]))
    return paths


@needs_root
def test_modes_equal_real_opens(public_folder: Path) -> None:
    source = random.Random(20260101)
    assert compare(make_nodes(public_folder, source, 150), random_people(source, 40)) >= 150 * 40 * 3


@needs_root
@pytest.mark.skipif(shutil.which("setfacl") is None, reason="needs setfacl (apt install acl)")
def test_access_lists_equal_real_opens(public_folder: Path) -> None:
    source = random.Random(20260102)
    paths = make_nodes(public_folder, source, 80)

    def perm() -> str:
        return source.choice(["rw-", "rw-", "r--", "-w-", "---", "rwx"])

    for path in paths:
        entries = [f"u:{uid}:{perm()}" for uid in source.sample(range(1, 5), source.randrange(3))]
        entries += [f"g:{gid}:{perm()}" for gid in source.sample(range(1, 5), source.randrange(3))]
        entries += [f"u::{perm()}", f"g::{perm()}", f"o::{perm()}", f"m::{perm()}"]
        done = subprocess.run(
            ["setfacl", "-m", ",".join(entries), str(path)], capture_output=True, text=True, check=False
        )
        if "not supported" in done.stderr:
            pytest.skip(f"{public_folder}: no access lists on this file system")
        assert done.returncode == 0, done.stderr
    assert sum(bool(node_acl(node_stat(str(path)))) for path in paths) > 60
    assert compare(paths, random_people(source, 40)) >= 80 * 40 * 3


@needs_root
@pytest.mark.skipif(shutil.which("getfacl") is None, reason="needs getfacl (apt install acl)")
def test_text_form_is_what_getfacl_writes(public_folder: Path) -> None:
    (path,) = make_nodes(public_folder, random.Random(3), 1)
    subprocess.run(["setfacl", "-m", "u::rw-,u:7:r-x,g::r--,g:9:rw-,m::rw-,o::---", str(path)], check=True)
    for option in ("-cn", "-cnE", "-n"):
        text = subprocess.run(["getfacl", option, str(path)], capture_output=True, text=True, check=True).stdout
        assert parse_acl_text(text) == node_acl(node_stat(str(path))) != ()


OPEN_ALL = """
import json, os, sys
row = []
for path in sys.argv[1:]:
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, flags))
            row.append(0)
        except OSError as error:
            row.append(error.errno)
print(json.dumps(row))
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
@pytest.mark.parametrize(
    ("capability", "bit"), [("dac_override", CAP_DAC_OVERRIDE), ("dac_read_search", CAP_DAC_READ_SEARCH), ("chown", 1)]
)
def test_capabilities_equal_real_opens(public_folder: Path, capability: str, bit: int) -> None:
    paths = make_nodes(public_folder, random.Random(4), 30)
    command = ["setpriv", "--reuid", "9", "--regid", "9", "--clear-groups"]
    command += ["--inh-caps", f"-all,+{capability}", "--ambient-caps", f"-all,+{capability}"]
    command += [sys.executable, "-I", "-c", OPEN_ALL, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        pytest.skip(f"setpriv cannot hand on capabilities here: {done.stderr.strip()[-200:]}")
    answers = iter(json.loads(done.stdout))
    for path in paths:
        for want in (RW, READ, WRITE):
            assert permitted(node_stat(str(path)), Process(9, 9, (), bit), want)[0] == (next(answers) == 0)


# -- what is said --

ME = Process(1000, 1000, (1000, 44))


def test_number_without_a_name_is_never_another_group() -> None:
    for container in (True, None):
        decision = decide(node(0o660), ME, {0: "root", 44: "video"}, container=container)
        assert not decision.allowed_rw
        assert decision.needs == "group 109 (it has no name here)"
        assert decision.fix[0] == "start the container with --group-add 109"
        assert "video" not in " ".join(decision.fix)
        assert "resources" not in " ".join(decision.fix)
    on_host = decide(node(0o660), ME, {44: "video"}).fix
    assert "getent group 109" in on_host[1]


def test_group_with_a_name() -> None:
    decision = decide(node(0o660), ME, {109: "render"}, container=False)
    assert decision.by == "other"
    assert decision.needs == "group render (109)"
    assert decision.fix[0] == "sudo usermod -aG render $USER"
    assert "log out and in" in decision.fix[1]
    assert decide(node(0o660), ME, {109: "render"}, container=True).fix == ("start the container with --group-add 109",)
    assert decide(node(0o660, gid=44), ME, {}).allowed_rw


@pytest.mark.parametrize(("mode", "gid"), [(0o600, 109), (0o660, 0), (0o640, 109)])
def test_node_for_root_alone_wants_sudo_not_a_group(mode: int, gid: int) -> None:
    decision = decide(node(mode, gid=gid), ME, {0: "root", 109: "render"}, container=False)
    assert decision.needs is not None
    assert decision.needs.startswith("root")
    assert decision.fix[0].startswith("sudo")
    assert "usermod" not in " ".join(decision.fix)


def test_owner_who_locked_himself_out() -> None:
    decision = decide(node(0o060, uid=1000, gid=44), ME, {44: "video"}, path="dev/x")
    assert (decision.allowed_rw, decision.by, decision.fix) == (False, "owner", ("chmod u+rw /dev/x",))


def test_access_list_of_the_user_at_the_seat() -> None:
    text = "u::rw-,u:1001:rw-,g::---,m::rw-,o::---"
    decision = decide(node(0o660, gid=0), ME, {}, path="dev/dri/renderD128", acl_text=text, container=False)
    assert "uaccess" in str(decision.needs)
    assert decision.fix[0] == "sudo setfacl -m u:$USER:rw /dev/dri/renderD128"
    other = decide(node(0o660, gid=0), ME._replace(uid=1001), {}, acl_text=text)
    assert (other.allowed_rw, other.by) == (True, "acl user")


def test_named_group_of_an_access_list_is_offered() -> None:
    text = "u::rw-,g::---,g:110:rw-,m::rw-,o::---"
    decision = decide(node(0o660), ME, {109: "render", 110: "gpu"}, acl_text=text, container=False)
    assert decision.fix[0] == "sudo usermod -aG gpu $USER"


def test_owner_from_outside_the_user_namespace() -> None:
    stat = node(0o660, 65534, 65534)
    assert is_unmapped(stat, [IdRange(0, 1000, 1), IdRange(1, 100000, 1000)])
    assert not is_unmapped(stat, [IdRange(0, 0, 4294967295)])
    assert not is_unmapped(stat, [])
    root = Process(0, 0, (), CAP_DAC_OVERRIDE)
    decision = decide(stat, root, {}, unmapped=True, container=True)
    assert not decision.allowed_rw
    assert "user namespace" in str(decision.needs)
    assert decide(stat, root, {}).by == "capability"


# -- forms of access lists --


def test_both_forms_give_the_same_list() -> None:
    data = as_bytes({1000: 6}, {44: 4}, (6, 4, 6, 0))
    text = "u::rw-,u:1000:rw-,g::r--,g:44:r--,m::rw-,o::---"
    expected = (
        AclEntry(ACL_USER_OBJ, 6),
        AclEntry(ACL_USER, 6, 1000),
        AclEntry(ACL_GROUP_OBJ, 4),
        AclEntry(ACL_GROUP, 4, 44),
        AclEntry(ACL_MASK, 6),
        AclEntry(ACL_OTHER, 0),
    )
    assert parse_acl(data) == parse_acl_text(text) == expected
    assert (
        parse_acl_text("user::rw-\nuser:1000:rw- #effective:rw-\ngroup::r--\ngroup:44:r--\nmask::rw-\nother::---\n")
        == expected
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "u::rw-",
        "u::rw-,g::r--,o::rw",
        "u::wr-,g::r--,o::---",
        "x::rw-,g::r--,o::---",
        "u::rw-,u:a:rw-,g::r--,m::---,o::---",
        "u::rw-,u:1:rw-,g::r--,o::---",
        "u::rw-,u::rw-,g::r--,o::---",
        "u::rw-,g::r--,m::r--,m::r--,o::---",
    ],
)
def test_text_that_is_no_access_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"ACL|permission|invalid literal"):
        parse_acl_text(text)
    assert node_acl(node(0o660), text) == ()


GOOD = as_bytes({1: 6}, {2: 4}, (6, 4, 6, 0))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d[:-1],
        lambda d: d[:3],
        lambda d: b"\x03" + d[1:],
        lambda d: d[:4],
        lambda d: d[:4] + b"\x40\0" + d[6:],
        lambda d: d[:6] + b"\x08\0" + d[8:],
        lambda d: d[:-8],
    ],
)
def test_bytes_that_are_no_access_list(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="ACL"):
        parse_acl(change(GOOD))
    assert node_acl(node(0o660, acl=change(GOOD))) == ()


@given(st.binary(max_size=80))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    assert isinstance(node_acl(node(0o660, acl=data)), tuple)
