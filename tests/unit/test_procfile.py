"""The formats of /proc, checked on real files and on what makes naive parsers fail."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.hal.procfile import (
    CgroupLine,
    IdRange,
    Limit,
    Parameter,
    mounted_at,
    parameter,
    parse_cgroup,
    parse_cmdline,
    parse_id_map,
    parse_limits,
    parse_mountinfo,
    parse_names,
    parse_stat,
    parse_status,
)

TAIL = "S 1 2 3 4 5 4194560 7 8 9 10 11 12 13 14 20 0 4 0 4711 22 23"


@pytest.mark.parametrize("comm", ["python", "a b", "x) R 1 (y", "tmux: server", "(sd-pam)", "line\nbreak", ")", ""])
def test_stat_whatever_the_command_is_called(comm: str) -> None:
    facts = parse_stat(f"99 ({comm}) {TAIL}\n")
    assert (facts.pid, facts.comm, facts.state) == (99, comm, "S")
    assert (facts.user_ticks, facts.system_ticks, facts.threads, facts.start_ticks) == (11, 12, 4, 4711)
    assert not facts.kernel_thread


def test_stat_of_this_process_and_of_a_kernel_thread() -> None:
    mine = parse_stat(Path("/proc/self/stat").read_text())
    assert mine.pid == os.getpid()
    assert mine.state == "R"
    assert parse_stat(f"2 (kthreadd) {TAIL.replace('4194560', '2129984')}").kernel_thread


@pytest.mark.parametrize("text", ["", "1 (x", "1 x) S", "1 (x) S 1 2", f"one (x) {TAIL}"])
def test_stat_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a process state line|invalid literal"):
        parse_stat(text)


def test_status_of_this_process() -> None:
    facts = parse_status(Path("/proc/self/status").read_text())
    assert (facts.uid, facts.gid) == (os.geteuid(), os.getegid())
    assert set(facts.groups) == set(os.getgroups()) - ({os.getegid()} - set(facts.groups))
    assert facts.threads >= 1
    assert facts.seccomp in (0, 1, 2)
    assert facts.no_new_privs in (True, False)


def test_status_uses_the_file_system_ids() -> None:
    text = (
        "Name:\tUid: 7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t44 109 \nCapEff:\t0000000000000002\nThreads:\t3\n"
    )
    facts = parse_status(text)
    assert (facts.uid, facts.gid, facts.groups, facts.capabilities, facts.threads) == (4, 8, (44, 109), 2, 3)
    assert facts.seccomp is None
    assert facts.no_new_privs is None


@pytest.mark.parametrize("text", ["", "Uid:\t1\t2\nGid:\t1\t1\t1\t1", "Uid:\ta\tb\tc\td\nGid:\t1\t1\t1\t1"])
def test_status_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"without|invalid literal"):
        parse_status(text)


def test_limits_equal_getrlimit() -> None:
    limits = parse_limits(Path("/proc/self/limits").read_text())
    for name, number in (("Max locked memory", resource.RLIMIT_MEMLOCK), ("Max open files", resource.RLIMIT_NOFILE)):
        soft, hard = resource.getrlimit(number)
        assert (limits[name].soft, limits[name].hard) == (
            None if soft == resource.RLIM_INFINITY else soft,
            None if hard == resource.RLIM_INFINITY else hard,
        )
    assert limits["Max locked memory"].unit == "bytes"
    assert limits["Max nice priority"].unit == ""
    assert limits["Max cpu time"] == Limit(None, None, "seconds")


def test_limits_that_are_none() -> None:
    with pytest.raises(ValueError, match="not a line of limits"):
        parse_limits("Limit\nnonsense")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quiet  ro\n", [("quiet", None), ("ro", None)]),
        ("root=UUID=a-b", [("root", "UUID=a-b")]),
        ('dyndbg="file drivers/gpu/* +p" x=1', [("dyndbg", "file drivers/gpu/* +p"), ("x", "1")]),
        ('"amdgpu.x=a b" y', [("amdgpu.x", "a b"), ("y", None)]),
        ('a="" b=', [("a", ""), ("b", "")]),
        ('one="open end', [("one", "open end")]),
        ("=x", [("=x", None)]),
        ("iommu=pt -- single iommu=off", [("iommu", "pt")]),
        ("", []),
    ],
)
def test_cmdline(text: str, words: list[tuple[str, str | None]]) -> None:
    assert parse_cmdline(text) == [Parameter(*word) for word in words]


@given(st.lists(st.tuples(st.text("abc._-", min_size=1), st.none() | st.text("abc =", max_size=6)), max_size=6))
def test_cmdline_gives_back_what_was_quoted(words: list[tuple[str, str | None]]) -> None:
    """Oracle: the text is built from the words, every value in quotes."""
    words = [word for word in words if word[0] != "--"]
    text = " ".join(name if value is None else f'{name}="{value}"' for name, value in words)
    assert parse_cmdline(text) == [Parameter(*word) for word in words]


def test_last_parameter_counts_and_dashes_do_not() -> None:
    parameters = parse_cmdline("amdgpu.gpu-recovery=0 pci=noaer amdgpu.gpu_recovery=1 nomodeset")
    assert parameter(parameters, "amdgpu.gpu_recovery") == "1"
    assert parameter(parameters, "nomodeset") == ""
    assert parameter(parameters, "iommu") is None


def test_mountinfo() -> None:
    text = (
        "24 27 0:6 / /dev rw,nosuid shared:2 master:1 - devtmpfs devtmpfs rw,size=4k\n"
        "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n"
        "27 1 254:0 / / rw - ext4 /dev/vda\n"
        "30 24 0:9 /a\\040b /mnt/c\\011d ro,nodev - fuse.x src\\134y rw,user_id=0\n"
        "31 24 0:30 / /dev/shm rw - tmpfs second rw\n"
    )
    mounts = parse_mountinfo(text)
    assert (mounts[0].fstype, mounts[0].options, mounts[0].super_options) == (
        "devtmpfs",
        ("rw", "nosuid"),
        ("rw", "size=4k"),
    )
    assert (mounts[3].root, mounts[3].point, mounts[3].source) == ("/a b", "/mnt/c\td", "src\\y")
    assert mounts[2].super_options == ()
    for path, source in (
        ("/dev/shm/x", "second"),
        ("/dev/shm", "second"),
        ("/dev/shmx", "devtmpfs"),
        ("/etc", "/dev/vda"),
    ):
        found = mounted_at(mounts, path)
        assert found is not None
        assert found.source == source
    assert mounted_at([], "/") is None
    assert parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    with pytest.raises(ValueError, match="mountinfo"):
        parse_mountinfo("24 27 0:6 / /dev rw")


def test_cgroup() -> None:
    lines = parse_cgroup("12:cpu,cpuacct:/docker/ab:c\n1:name=systemd:/\n0::/user.slice\n")
    assert lines == [
        CgroupLine(12, ("cpu", "cpuacct"), "/docker/ab:c"),
        CgroupLine(1, ("name=systemd",), "/"),
        CgroupLine(0, (), "/user.slice"),
    ]
    with pytest.raises(ValueError, match="cgroup"):
        parse_cgroup("nonsense")


def test_id_map() -> None:
    assert parse_id_map("         0       1000          1\n  1 100000 65536\n") == [
        IdRange(0, 1000, 1),
        IdRange(1, 100000, 65536),
    ]
    with pytest.raises(ValueError, match="id map"):
        parse_id_map("0 0")


def test_names() -> None:
    text = "root:x:0:\n# video:x:45:\n+nis:x:46:\nvideo:x:44:me,you\nfirst:x:7:\nsecond:x:7:\nbad:x:y:\nshort\n"
    assert parse_names(text) == {0: "root", 44: "video", 7: "first"}
