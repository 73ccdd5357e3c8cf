"""fail-nth without a kernel that has it: its files as plain ones, and when exactly a call is armed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from accelctl.hal import failnth
from accelctl.hal.devfile import Syscalls
from accelctl.hal.failnth import FailNth
from accelctl.hal.root import open_root
from accelctl.stress.failnth import FailNthCalls, available, knobs, sweep


def debugfs(root: Path, *, wait: str = "N", verbose: str = "0", order: str = "0") -> Path:
    for kind in ("failslab", "fail_page_alloc", "fail_usercopy"):
        folder = root / "sys/kernel/debug" / kind
        folder.mkdir(parents=True)
        (folder / "verbose").write_text(verbose + "\n", encoding="ascii")
        if kind != "fail_usercopy":
            (folder / "ignore-gfp-wait").write_text(wait + "\n", encoding="ascii")
    pages = root / "sys/kernel/debug/fail_page_alloc"
    (pages / "min-order").write_text(order + "\n", encoding="ascii")
    (pages / "ignore-gfp-highmem").write_text(wait + "\n", encoding="ascii")
    return root


def control(root: Path) -> Path:
    path = root / failnth.path_of_thread()[1:]
    path.parent.mkdir(parents=True)
    path.write_text("0\n", encoding="ascii")
    return path


def test_where_there_is_none_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert "no fail-nth" in str(available(open_root(str(tmp_path))))
    control(tmp_path)
    assert available(open_root(str(tmp_path))) is None


def test_knobs_say_what_to_type(tmp_path: Path) -> None:
    assert knobs(open_root(str(debugfs(tmp_path / "good")))) == ""
    said = knobs(open_root(str(debugfs(tmp_path / "fresh", wait="Y", verbose="2", order="1"))))
    assert sorted(said.split("; ")) == [
        "echo 0 > /sys/kernel/debug/fail_page_alloc/min-order",
        "echo 0 > /sys/kernel/debug/fail_page_alloc/verbose",
        "echo 0 > /sys/kernel/debug/fail_usercopy/verbose",
        "echo 0 > /sys/kernel/debug/failslab/verbose",
        "echo N > /sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem",
        "echo N > /sys/kernel/debug/fail_page_alloc/ignore-gfp-wait",
        "echo N > /sys/kernel/debug/failslab/ignore-gfp-wait",
    ]


class Task:
    """fail-nth of a task as lib/fault-inject.c has it: the control file's own copies count too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.writes: list[int] = []
        monkeypatch.setattr(os, "pread", self._pread)
        monkeypatch.setattr(os, "pwrite", self._pwrite)

    def point(self) -> None:
        """A place that can fail."""
        if self.left:
            self.left -= 1
            if not self.left:
                raise OSError(errno.EFAULT, "injected")

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        text = b"%d\n" % self.left
        self.point()
        return text

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self.point()
        self.left = int(data)
        self.writes.append(self.left)
        return len(data)


@pytest.mark.parametrize("points", range(5))
@pytest.mark.parametrize("nth", range(1, 8))
def test_fired_is_exact(points: int, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with so many places that can fail: the fault has fired if and only if nth is one of them."""
    task, fault = Task(monkeypatch), FailNth(str(control(tmp_path)))
    fault.arm(nth)
    hit = False
    for _ in range(points):
        try:
            task.point()
        except OSError:
            hit = True
            break
    assert fault.stop() is hit is (nth <= points)
    assert task.left == 0, "nothing is left to hit somebody else"
    fault.close()


def test_disarming_is_repeated_when_it_is_hit_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, fault = Task(monkeypatch), FailNth(str(control(tmp_path)))
    fault.arm(2)
    assert not fault.stop(), "the read passes a point, the write of 0 is the second"
    assert (task.left, task.writes) == (0, [2, 0])

    def refuse(code: int) -> Callable[[int, bytes, int], int]:
        def write(fd: int, data: bytes, offset: int) -> int:
            raise OSError(code, "no")

        return write

    for code, text in ((errno.EIO, "no"), (errno.EFAULT, "could not be disarmed")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse(code))
            with pytest.raises(OSError, match=text):
                fault.stop()
    fault.close()
    fault.close()


def test_it_belongs_to_one_thread(tmp_path: Path) -> None:
    fault = FailNth(str(control(tmp_path)))
    with pytest.raises(ValueError, match="counted from 1"):
        fault.arm(0)
    wrong: list[str] = []

    def work() -> None:
        try:
            fault.arm(1)
        except ValueError as error:
            wrong.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert wrong == ["fail-nth of another thread"]
    fault.close()


class Fault(FailNth):
    """A control file that writes down what it is told; ``points`` places can fail in a call."""

    def __init__(self, points: int = 99) -> None:
        self.log: list[str] = []
        self.points, self.n = points, 0

    def arm(self, n: int) -> None:
        self.n = n
        self.log.append(f"arm {n}")

    def stop(self) -> bool:
        self.log.append("stop")
        return self.n <= self.points


class Inner(Syscalls):
    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.wrong: BaseException | None = None

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        self.log.append(f"ioctl {number}")
        if self.wrong is not None:
            raise self.wrong
        return number

    def close(self, fd: int) -> None:
        self.log.append("close")


def test_only_the_ordered_call_is_armed() -> None:
    fault = Fault()
    calls = FailNthCalls(Inner(fault.log), fault)
    calls.arm("object", 7, 2)
    assert calls.ioctl(0, 1, 0) == 1
    calls.at("object")
    assert calls.ioctl(0, 2, 0) == 2
    calls.at("-object")
    assert calls.ioctl(0, 9, 0) == 9
    calls.at("object")
    assert [calls.struck] == [None]
    assert calls.ioctl(0, 3, 0) == 3
    assert calls.ioctl(0, 4, 0) == 4
    assert fault.log == ["ioctl 1", "ioctl 2", "ioctl 9", "arm 7", "ioctl 3", "stop", "ioctl 4"]
    assert calls.counts == {"object": 3, "-object": 1}
    assert (calls.struck, calls.errno) == (True, 0)


def test_the_errno_is_kept_and_any_exception_disarms() -> None:
    fault = Fault()
    inner = Inner(fault.log)
    calls = FailNthCalls(inner, fault)
    calls.at("object")
    inner.wrong = OSError(errno.ENOSPC, "full")
    calls.arm("object", 1)
    with pytest.raises(OSError, match="full"):
        calls.ioctl(0, 1, 0)
    assert (calls.struck, calls.errno) == (True, errno.ENOSPC)
    inner.wrong = KeyboardInterrupt()
    calls.arm("object", 1)
    with pytest.raises(KeyboardInterrupt):
        calls.ioctl(0, 1, 0)
    assert fault.log[-1] == "stop"


def test_a_walk_ends_where_the_fault_is_not_reached() -> None:
    fault = Fault(points=3)
    inner = Inner(fault.log)
    calls = FailNthCalls(inner, fault)

    def run() -> None:
        calls.at("object")
        calls.ioctl(0, 1, 0)

    assert [struck.n for struck in sweep(calls, "object", run)] == [1, 2, 3]
    assert [struck.n for struck in sweep(calls, "never", run)] == []
    with pytest.raises(OSError, match="more than 2 fault points"):
        list(sweep(calls, "object", run, most=2))


def test_memory_and_mappings_are_counted() -> None:
    calls = FailNthCalls(Syscalls(), Fault())
    calls.at("x")
    fd = calls.memfd("x", 4096, 0)
    calls.unmap(calls.map(fd, 4096, 0))
    calls.close(fd)
    assert calls.counts == {"x": 2}
