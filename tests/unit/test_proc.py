"""Who has a node open, and who is asking: checked against real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelctl.hal import proc
from accelctl.hal.child import Watch
from accelctl.hal.manifest import Manifest, Process
from accelctl.hal.procfile import parse_stat
from accelctl.hal.reader import run_watched
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import LiveTree, MemoryTree

FULL = {(1, 7): "dev/full"}  # a harmless character device that nothing holds open
HOLD = "import sys, time; files = [open(p) for p in sys.argv[1:]]; print(flush=True); time.sleep(60)"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def live() -> SysRoot:
    return SysRoot(LiveTree())


@contextmanager
def holding(*paths: str, before: tuple[str, ...] = ()) -> Iterator[int]:
    """A process that has files open; its pid."""
    with subprocess.Popen([*before, sys.executable, "-c", HOLD, *paths], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


def of(pid: int, nodes: dict[tuple[int, int], str] = FULL) -> list[proc.Holder]:
    found = proc.holders(live(), nodes)
    assert found is not None
    return [holder for holder in found.found if holder.pid == pid]


def test_holder_is_found_once_with_all_its_descriptors() -> None:
    with holding("/dev/full", "/dev/full", "/dev/null") as pid:
        (holder,) = of(pid)
        assert (holder.node, holder.files, holder.uid) == ("dev/full", 2, os.geteuid())
        assert holder.comm.startswith("python")
        assert holder.state in "SR"
        assert holder.start_ticks == parse_stat(Path(f"/proc/{pid}/stat").read_text()).start_ticks
    assert of(pid) == []


def test_two_nodes_of_one_process_are_two_holders() -> None:
    with holding("/dev/full", "/dev/zero") as pid:
        assert [holder.node for holder in of(pid, {(1, 7): "dev/full", (1, 5): "dev/zero"})] == ["dev/full", "dev/zero"]


def test_holders_come_in_the_order_of_pids() -> None:
    with holding("/dev/full"), holding("/dev/full"):
        found = proc.holders(live(), FULL)
        assert found is not None
        pids = [holder.pid for holder in found.found]
        assert len(pids) >= 2
        assert pids == sorted(pids)


@needs_root
def test_node_that_was_removed_or_has_another_name(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    node = folder / "renamed"
    os.mknod(node, 0o600 | 0o020000, os.makedev(1, 7))
    with holding(str(node)) as pid:
        assert len(of(pid)) == 1
        node.unlink()
        assert os.readlink(f"/proc/{pid}/fd/3").endswith("(deleted)")
        (holder,) = of(pid)
        assert holder.node == "dev/full"


@needs_root
def test_text_that_looks_like_the_node_is_not_enough(tmp_path: Path) -> None:
    """The same name with another number (another mount namespace) is another device."""
    folder = tmp_path / "dev"
    folder.mkdir()
    os.mknod(folder / "full", 0o600 | 0o020000, os.makedev(1, 5))
    with holding(str(folder / "full")) as pid:
        assert of(pid) == []


@needs_root
def test_processes_of_others_are_counted_as_not_visible() -> None:
    def look(_: Watch) -> proc.Holders | None:
        os.setgroups([])
        os.setresgid(12345, 12345, 12345)
        os.setresuid(12345, 12345, 12345)
        return proc.holders(live(), FULL)

    with holding("/dev/full") as pid:
        found = run_watched(look).value
        assert found is not None
        kernel_threads = sum(parse_stat(path.read_text()).kernel_thread for path in Path("/proc").glob("[0-9]*/stat"))
        everything = sum(name.isdigit() for name in os.listdir("/proc"))
        assert 1 <= found.not_visible <= everything - kernel_threads + 5
        assert not found.hidden
        assert pid not in [holder.pid for holder in found.found]


THREADED = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *wait_here(void *arg) { sleep(60); return arg; }
int main(void) {
    pthread_t thread;
    if (open("/dev/full", O_RDONLY) < 0 || pthread_create(&thread, NULL, wait_here, NULL)) return 1;
    puts("ready"); fflush(stdout);
    pthread_exit(NULL);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (apt install gcc)")
def test_zombie_whose_threads_hold_the_node(tmp_path: Path) -> None:
    source = tmp_path / "threaded.c"
    source.write_text(THREADED)
    subprocess.run(["cc", "-pthread", "-o", str(tmp_path / "threaded"), str(source)], check=True)
    with subprocess.Popen([str(tmp_path / "threaded")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            for _ in range(100):
                if parse_stat(Path(f"/proc/{process.pid}/stat").read_text()).state == "Z":
                    break
                time.sleep(0.02)
            (holder,) = of(process.pid)
            assert (holder.state, holder.files) == ("Z", 1)
        finally:
            os.kill(process.pid, signal.SIGKILL)


def fake_process(folder: Path, pid: int, stat: str, links: dict[str, str]) -> None:
    (folder / str(pid) / "fd").mkdir(parents=True)
    (folder / str(pid) / "stat").write_text(stat)
    (folder / str(pid) / "status").write_text("Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    for name, target in links.items():
        os.symlink(target, folder / str(pid) / "fd" / name)


def test_states_come_from_the_kernel_and_broken_entries_are_passed_over(tmp_path: Path) -> None:
    tail = "1 2 3 4 5 4194560 7 8 9 10 11 12 13 14 20 0 1 0 4711 22"
    fake_process(tmp_path, 7, f"7 (a) b) D {tail}", {"0": "/dev/full", "1": "socket:[5]", "2": "/dev/gone"})
    fake_process(tmp_path, 8, "nonsense", {"0": "/dev/full"})
    fake_process(tmp_path, 9, f"9 (c) S {tail}", {})
    (tmp_path / "10").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "11").write_text("not a folder")
    found = proc.holders(live(), FULL, proc=str(tmp_path))
    assert found is not None
    assert [(h.pid, h.start_ticks, h.comm, h.state) for h in found.found] == [(7, 4711, "a) b", "D")]


def test_slot_names_the_process_that_is_looked_at(tmp_path: Path) -> None:
    class Slot:
        paths: list[str] = []  # noqa: RUF012

        def enter(self, path: str) -> None:
            self.paths.append(path)

    root = live()
    root.slot = Slot()
    with holding("/dev/full") as pid:
        proc.holders(root, FULL)
        assert f"proc/{pid}/fd" in Slot.paths


# -- who is asking --


def captured(**files: str) -> SysRoot:
    tree = MemoryTree("captured")
    for path, text in files.items():
        tree.add_file(path.replace("__", "/"), text.encode())
    return SysRoot(tree)


def test_credentials_of_this_process() -> None:
    process = proc.credentials(live())
    assert process is not None
    assert (process.uid, process.gid) == (os.geteuid(), os.getegid())
    assert set(process.groups) | {process.gid} == set(os.getgroups()) | {os.getegid()}


def test_credentials_of_a_captured_machine() -> None:
    assert proc.credentials(captured()) is None
    status = "Uid:\t1\t1\t1\t1000\nGid:\t1\t1\t1\t1000\nGroups:\t44\nCapEff:\t0\n"
    assert proc.credentials(captured(proc__self__status=status)) == Process(1000, 1000, (44,), 0)
    assert proc.credentials(captured(proc__self__status="nonsense")) is None
    recorded = Process(5, 6, (7,), 8)
    assert proc.credentials(SysRoot(MemoryTree("x"), manifest=Manifest(process=recorded))) == recorded
    assert proc.holders(captured(), FULL) is None


def test_names_parameters_and_limits_come_from_below_the_root() -> None:
    line = "Max locked memory         65536                unlimited            bytes     \n"
    limits = "Limit  Soft Limit  Hard Limit  Units\n" + line
    root = captured(
        etc__group="render:x:109:\n",
        etc__passwd="me:x:1000:1000::/:/bin/sh\n",
        proc__cmdline="iommu=pt quiet",
        proc__self__limits=limits,
        proc__self__mountinfo="25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n",
    )
    assert proc.group_names(root) == {109: "render"}
    assert proc.user_names(root) == {1000: "me"}
    assert [word.name for word in proc.kernel_parameters(root)] == ["iommu", "quiet"]
    assert proc.limits(root)["Max locked memory"].soft == 65536
    reading = proc.memlock(root)
    assert (reading.value, reading.unit, reading.source) == (65536, "bytes", "proc/self/limits")
    assert proc.memlock(captured(proc__self__limits=limits.replace("65536", "unlimited"))).value == "unlimited"
    assert proc.mounts(root)[0].point == "/dev/shm"


def test_nothing_below_the_root_is_empty_not_an_error() -> None:
    root = captured(proc__self__mountinfo="nonsense")
    assert proc.group_names(root) == {}
    assert proc.limits(root) == {}
    assert proc.mounts(root) == []
    absence = proc.memlock(root).absence
    assert absence is not None
    assert absence.kind == "not_captured"
