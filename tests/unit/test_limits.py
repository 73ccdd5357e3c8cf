"""Limits: how they are ordered, that a child really runs into them, and what the kernel's answer then means."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import UsageError
from accelctl.hal import restraint
from accelctl.hal.root import open_root
from accelctl.stress import limits
from accelctl.stress.limits import UNLIMITED, Limit, explain, held, parse_limit

MIB = 1 << 20
EIGHT = 8388608  # what getrlimit gives where `ulimit -l` prints 8192


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returned in a child of its own; its exception as text."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer: Any = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(theirs, pickle.dumps(answer))
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


# -- MEM-05: locked-memory limit, three error numbers --


@pytest.mark.parametrize(
    ("code", "limit", "wanted", "text"),
    [
        (errno.EAGAIN, EIGHT, 16 * MIB, "locked-memory limit: 8 MiB allowed, 16 MiB wanted"),
        (errno.ENOMEM, EIGHT, 16 * MIB, "locked-memory limit: 8 MiB allowed, 16 MiB wanted"),
        (errno.EPERM, 0, 4096, "locked-memory limit: 0 bytes allowed, 4 KiB wanted"),
    ],
)
def test_mem_05_cause_and_fix(code: int, limit: int, wanted: int, text: str) -> None:
    found = explain(code, limit, wanted)
    assert found is not None
    assert found.cause == text
    assert all(word in found.fix for word in ("limits.conf", "LimitMEMLOCK", "--ulimit memlock"))


@pytest.mark.parametrize(
    ("code", "limit", "wanted", "capable"),
    [
        (errno.EAGAIN, EIGHT, 16 * MIB, True),
        (errno.ENOMEM, EIGHT, 16 * MIB, True),
        (errno.EPERM, 0, 4096, True),
        (errno.ENOMEM, -1, 16 * MIB, False),
        (errno.EAGAIN, -1, 1 << 60, False),
        (errno.ENOMEM, EIGHT, EIGHT, False),
        (errno.EINVAL, EIGHT, 16 * MIB, False),
    ],
)
def test_mem_05_controls(code: int, limit: int, wanted: int, capable: bool) -> None:
    assert explain(code, limit, wanted, capable=capable) is None


def test_what_is_locked_already_counts() -> None:
    found = explain(errno.ENOMEM, EIGHT, 4 * MIB, locked=6 * MIB)
    assert found is not None
    assert found.cause == "locked-memory limit: 8 MiB allowed, 4 MiB wanted, 6 MiB locked before"
    assert explain(errno.ENOMEM, EIGHT, 2 * MIB, locked=6 * MIB) is None


# -- what is ordered --


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("nofile=64", Limit("nofile", 64)),
        ("NOFILE=+10", Limit("nofile", 10, True)),
        ("as=+256MiB", Limit("as", 256 * MIB, True)),
        ("MEMLOCK=8192KiB", Limit("memlock", EIGHT)),
        ("memlock=8388608", Limit("memlock", EIGHT)),
        ("memlock=unlimited", Limit("memlock", UNLIMITED)),
        ("as=-1", Limit("as", UNLIMITED)),
        ("memory=1GiB", Limit("memory", 1024 * MIB)),
    ],
)
def test_parse(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    "text",
    [
        "", "nofile", "core=1", "nofile=64KiB", "memlock=+1MiB", "memory=+1MiB", "as=-2", "as=1 GiB", "as=1kb",
        "memory=-1", "memory=unlimited", "as=9999999999999999", "as=\u0661", "nofile=64\n", "=5",
    ],
)  # fmt: skip
def test_bad_words_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(text)
    assert "\n" not in caught.value.message


@given(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(limits.NAMES), st.text(max_size=20)))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert parse_limit(text).name in limits.NAMES
    except UsageError:
        pass


# -- setting them --


def soft(name: str) -> int:
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0]


def test_limits_hold_in_the_child_and_nowhere_else() -> None:
    names = ("nofile", "memlock", "as")
    before = [soft(name) for name in names]

    def work() -> Any:
        limits.worker((Limit("nofile", 64), Limit("memlock", 0), Limit("as", 4096 * MIB)))
        fds: list[int] = []
        try:
            while len(fds) < 100:
                fds.append(os.dup(0))
        except OSError as error:
            return [soft(name) for name in names], error.errno, fds[-1]
        return "no limit"

    assert in_child(work) == ([64, 0, 4096 * MIB], errno.EMFILE, 63)
    assert [soft(name) for name in names] == before


def test_so_many_more_files_and_not_one_more() -> None:
    def work() -> Any:
        parse_limit("nofile=+5")()
        count = 0
        try:
            while count < 100:
                os.dup(0)
                count += 1
        except OSError as error:
            return count, error.errno
        return "no limit"

    assert in_child(work) == (5, errno.EMFILE)


def test_address_space_runs_out() -> None:
    def work() -> Any:
        parse_limit("as=+64MiB")()
        try:  # mapped: a heap in which other tests have left as much would give it
            return len(mmap.mmap(-1, 256 * MIB))
        except OSError as error:
            return error.errno

    assert in_child(work) == errno.ENOMEM


def test_the_hard_limit_stays() -> None:
    def work() -> Any:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
        parse_limit("nofile=128")()
        try:
            parse_limit("nofile=129")()
        except UsageError as error:
            return soft("nofile"), error.message
        return "no error"

    assert in_child(work) == (128, "nofile=129: the hard limit is 128")


def test_held_only_for_a_while() -> None:
    def work() -> Any:
        before, seen = soft("nofile"), []
        with held(parse_limit("nofile=64")):
            seen.append(soft("nofile"))
        return seen[0], soft("nofile") == before

    assert in_child(work) == (64, True)


def test_the_oom_killer_takes_workers_first(tmp_path: Path) -> None:
    def work() -> str:
        limits.worker()
        return Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip()

    assert in_child(work) == "1000"
    with pytest.raises(FileNotFoundError):
        restraint.die_first(str(tmp_path / "none"))


def test_space_in_use_is_bytes() -> None:
    kib = int(Path("/proc/self/status").read_text(encoding="ascii").partition("VmSize:")[2].split()[0])
    assert limits.used_space(open_root("/")) == pytest.approx(kib << 10, rel=0.1)


# -- cgroups, on a tree of files --


def group(mount: Path, path: str, control: str) -> Path:
    folder = mount / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(control + "\n", encoding="ascii")
    (folder / "cgroup.procs").touch()
    return folder


def test_where_version_2_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/old\n0::/a/b\n", encoding="ascii")
    line = "30 23 0:26 {} /sys/fs/cgroup rw - {} cgroup rw\n"
    for root, kind, own in (("/", "cgroup2", "/sys/fs/cgroup/a/b"), ("/a", "cgroup2", "/sys/fs/cgroup/b")):
        (tmp_path / "mountinfo").write_text(line.format(root, kind), encoding="ascii")
        assert restraint.cgroup_of_self(str(tmp_path)) == ("/sys/fs/cgroup", own)
    (tmp_path / "mountinfo").write_text(line.format("/", "cgroup"), encoding="ascii")
    with pytest.raises(OSError, match="no cgroup version 2"):
        restraint.cgroup_of_self(str(tmp_path))


def test_own_group_or_its_parent_or_why_not(tmp_path: Path) -> None:
    above, own = group(tmp_path, "a", "memory"), group(tmp_path, "a/b", "cpu memory")
    assert restraint.memory_parent(str(tmp_path), str(own)) == str(own)
    group(tmp_path, "a/b", "")
    assert restraint.memory_parent(str(tmp_path), str(own)) == str(above)
    group(tmp_path, "a", "cpu")
    with pytest.raises(PermissionError, match=r"b gives its children no memory controller; .*/a gives"):
        restraint.memory_parent(str(tmp_path), str(own))


def test_joining_and_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, real = group(tmp_path, "a", "memory"), os.mkdir

    def make(folder: str) -> None:
        real(folder)
        for name in ("memory.max", "cgroup.procs"):
            Path(folder, name).touch()

    monkeypatch.setattr(os, "mkdir", make)
    made = restraint.MemoryCgroup(str(own), str(own), 64 * MIB)
    assert Path(made.folder, "memory.max").read_text(encoding="ascii") == "67108864"
    assert Path(made.folder, "cgroup.procs").read_text(encoding="ascii") == str(os.getpid())
    for name in ("memory.max", "cgroup.procs"):
        Path(made.folder, name).unlink()  # cgroupfs takes its files along with the folder
    made.leave()
    assert (own / "cgroup.procs").read_text(encoding="ascii") == str(os.getpid())
    assert not Path(made.folder).exists()


def test_a_group_that_takes_no_limit_is_not_left(tmp_path: Path) -> None:
    """A plain folder has no memory.max."""
    own = group(tmp_path, "a", "memory")
    with pytest.raises(FileNotFoundError):
        restraint.MemoryCgroup(str(own), str(own), MIB)
    assert [path for path in own.iterdir() if path.is_dir()] == []
