"""Limits: what they are called, that a child really runs into them, and what the kernel's answer then means."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import AccelError, UsageError
from accelctl.hal import limits as hal
from accelctl.stress import limits
from accelctl.stress.limits import explain, parse_limit, prefer_oom

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
    cause = explain(code, limit, wanted, has_cap_ipc_lock=False)
    assert cause is not None
    assert cause.text == text
    assert all(word in cause.fix for word in ("limits.conf", "LimitMEMLOCK", "--ulimit memlock"))


@pytest.mark.parametrize(
    ("code", "limit", "wanted", "cap"),
    [
        (errno.EAGAIN, EIGHT, 16 * MIB, True),
        (errno.ENOMEM, EIGHT, 16 * MIB, True),
        (errno.EPERM, 0, 4096, True),
        (errno.ENOMEM, -1, 16 * MIB, False),
        (errno.EAGAIN, -1, 1 << 60, False),
        (errno.ENOMEM, EIGHT, EIGHT, False),
        (errno.EPERM, EIGHT, 16 * MIB, False),
        (errno.EINVAL, EIGHT, 16 * MIB, False),
    ],
)
def test_mem_05_controls(code: int, limit: int, wanted: int, cap: bool) -> None:
    assert explain(code, limit, wanted, cap) is None


def test_what_is_locked_already_counts() -> None:
    cause = explain(errno.ENOMEM, EIGHT, 4 * MIB, False, locked=6 * MIB)
    assert cause is not None
    assert cause.text == "locked-memory limit: 8 MiB allowed, 6 MiB of it in use, 4 MiB wanted"
    assert explain(errno.ENOMEM, EIGHT, 2 * MIB, False, locked=6 * MIB) is None


def test_of_this_process() -> None:
    def work() -> Any:
        parse_limit("MEMLOCK=0B")()
        return hal.has_cap_ipc_lock(), limits.explain_here(errno.EPERM, 4096) is None

    cap, lifted = in_child(work)
    assert cap is lifted


# -- setting them --


def test_limits_hold_in_the_child_and_nowhere_else() -> None:
    before = [hal.soft_limit(name) for name in hal.LIMITS]

    def work() -> Any:
        for text in ("NOFILE=64", "MEMLOCK=8192KiB", "AS=4GiB"):
            parse_limit(text)()
        fds: list[int] = []
        try:
            while len(fds) < 100:
                fds.append(os.dup(0))
        except OSError as error:
            return [hal.soft_limit(name) for name in hal.LIMITS], error.errno, fds[-1]
        return "no limit"

    assert in_child(work) == ([64, 4 << 30, EIGHT], errno.EMFILE, 63)
    assert [hal.soft_limit(name) for name in hal.LIMITS] == before


def test_address_space_runs_out() -> None:
    def work() -> Any:
        parse_limit("AS=2GiB")()
        try:
            return len(bytearray(3 << 30))
        except MemoryError:
            return "MemoryError"

    assert in_child(work) == "MemoryError"


def test_unlimited_and_the_hard_limit() -> None:
    def work() -> Any:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 16 << 30))
        parse_limit("AS=16GiB")()
        try:
            parse_limit("AS=17GiB")()
        except AccelError as error:
            return hal.soft_limit("AS"), error.kind, error.message
        return "no error"

    soft, kind, message = in_child(work)
    assert (soft, kind) == (16 << 30, "permission")
    assert "hard limit of 17179869184" in message


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_AS)[1] != -1, reason="AS has a hard limit here")
def test_unlimited_words() -> None:
    def work() -> Any:
        found = []
        for word in ("unlimited", "-1"):
            parse_limit("AS=9GiB")()
            parse_limit(f"AS={word}")()
            found.append(hal.soft_limit("AS"))
        return found

    assert in_child(work) == [-1, -1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "NAME=VALUE"), ("NOFILE", "no count"), ("nofile=64", "NAME=VALUE"), ("CORE=1B", "NAME=VALUE"),
        ("NOFILE=64KiB", "no unit"), ("MEMLOCK=8192", "8192KiB or 8192B"), ("AS=1", "1KiB or 1B"), ("AS=-2", "no size"),
        ("AS=1 GiB", "no size"), ("AS=1kb", "no size"), ("CGROUP=-1", "no size"), ("AS=99999999TiB", "too large"),
        ("AS=\u0661B", "no size"),
    ],
)  # fmt: skip
def test_bad_words_are_refused_in_one_line(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        parse_limit(text)
    assert "\n" not in caught.value.message


@given(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(limits.NAMES), st.text(max_size=20)))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert callable(parse_limit(text))
    except UsageError:
        pass


def test_the_oom_killer_takes_workers_first(tmp_path: Path) -> None:
    def work() -> str:
        prefer_oom()
        return Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip()

    assert in_child(work) == "1000"
    with pytest.raises(FileNotFoundError):
        hal.prefer_oom(str(tmp_path))


# -- cgroups, on a tree of files --


def tree(folder: Path, own: str, control: str = "cpu memory", parent: str = "") -> Path:
    group = folder / "sys/fs/cgroup" / own.strip("/")
    group.mkdir(parents=True, exist_ok=True)
    (folder / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n", encoding="ascii")
    (group / "cgroup.subtree_control").write_text(control + "\n", encoding="ascii")
    if own != "/":
        (group.parent / "cgroup.subtree_control").write_text(parent + "\n", encoding="ascii")
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(f"0::{own}\n", encoding="ascii")
    return group


def test_no_cgroup_says_why(tmp_path: Path) -> None:
    assert "/proc/self/cgroup" in hal.memory_parent(str(tmp_path / "no"))[1]
    tree(tmp_path / "one", "/a/b", control="", parent="cpu")
    assert hal.memory_parent(str(tmp_path / "one"))[1] == (
        "no delegated cgroup: /a/b: its cgroup.subtree_control has no memory; "
        "/a: its cgroup.subtree_control has no memory"
    )
    tree(tmp_path / "two", "/")
    (tmp_path / "two/sys/fs/cgroup/cgroup.controllers").unlink()
    assert "no cgroup version 2" in hal.memory_parent(str(tmp_path / "two"))[1]
    with pytest.raises(OSError, match="no cgroup version 2"):
        hal.join_memory_group(1 << 20, str(tmp_path / "two"))


def test_own_group_or_its_parent(tmp_path: Path) -> None:
    group = tree(tmp_path / "own", "/a/b")
    assert hal.memory_parent(str(tmp_path / "own")) == (str(group), "")
    group = tree(tmp_path / "above", "/a/b", control="", parent="memory")
    assert hal.memory_parent(str(tmp_path / "above")) == (str(group.parent), "")


def test_joining_and_removing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, root = tree(tmp_path, "/a"), str(tmp_path)

    def make(folder: str) -> None:
        os.mkdir(folder)
        for name in ("memory.max", "cgroup.procs"):
            Path(folder, name).touch()

    monkeypatch.setattr(hal, "_make", make)
    made = Path(hal.join_memory_group(64 * MIB, root))
    assert made == group / f"accelctl-{os.getpid()}"
    assert (made / "memory.max").read_text(encoding="ascii") == "67108864"
    assert (made / "cgroup.procs").read_text(encoding="ascii") == str(os.getpid())
    for name in ("memory.max", "cgroup.procs"):
        (made / name).unlink()  # cgroupfs takes its files along with the folder
    (tmp_path / "proc" / str(os.getpid())).mkdir()
    (group / "accelctl-other").mkdir()
    assert hal.remove_memory_groups(root) == 0
    (tmp_path / "proc" / str(os.getpid())).rmdir()
    assert hal.remove_memory_groups(root) == 1
    assert sorted(path.name for path in group.iterdir() if path.is_dir()) == ["accelctl-other"]


def test_a_group_that_takes_no_limit_is_not_left(tmp_path: Path) -> None:
    """A plain folder has no memory.max."""
    group = tree(tmp_path, "/a")
    with pytest.raises(FileNotFoundError):
        hal.join_memory_group(1 << 20, str(tmp_path))
    assert [path for path in group.iterdir() if path.is_dir()] == []
