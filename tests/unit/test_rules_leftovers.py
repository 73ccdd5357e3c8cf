"""What killed programs leave in /dev/shm (case RPC-05): found with size and owner, never deleted, no false alarm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelctl.abi.rooms import Directory
from accelctl.abi.rules import RuleContext
from accelctl.hal.root import SysRoot
from accelctl.hal.shm import Leftover, leftovers
from accelctl.hal.tree import LiveTree, MemoryTree
from accelctl.model.reading import Reading
from accelctl.model.report import Report
from accelctl.probes.rules import leftovers as rule
from tests.cases import case

PAGE = 4096
STAT = "{pid} (a ) b) {state} 1 1 1 0 -1 {flags} 0 0 0 0 1 1 0 0 20 0 1 0 77 1 1 1"
HEX = "d154fc4344634825bc067a9c6bafb91b"


class Machine:
    """A /dev/shm and a /proc in folders."""

    def __init__(self, folder: Path) -> None:
        self.shm, self.proc = folder / "shm", folder / "proc"
        self.shm.mkdir()
        self.process(1)

    def file(self, name: str, size: int = PAGE) -> None:
        path = self.shm / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)

    def process(self, pid: int, *mapped: str, state: str = "S", flags: int = 0x400000) -> Path:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(STAT.format(pid=pid, state=state, flags=flags))
        lines = [f"7f00-7f01 rw-s 0 00:19 4 {' ' * 20} /dev/shm/{name}\n" for name in mapped]
        (folder / "maps").write_text("5500-5501 r-xp 0 08:01 9     /usr/bin/python3\n" + "".join(lines))
        return folder

    def found(self, *, live: bool = True) -> list[Leftover]:
        root = SysRoot(LiveTree() if live else MemoryTree("x"))
        return leftovers(root, shm=str(self.shm), proc=str(self.proc))

    def names(self) -> list[str]:
        return [file.name for file in self.found()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


WITH_PID = ["torch_4711_1234567890_0", "sem.loky-4711-ab_c1de0", f"joblib_memmapping_folder_4711_{HEX}_{HEX}"]
WITHOUT = ["psm_12ab34cd", "nccl-aB3dE9"]
OTHERS = [
    "psm_1234", "torch_4711", "torch_4711_x_0", "sem.mp-abcdefgh", "sem.mine", "nccl-", "nccl-toolong9", "thesis.npy",
    "PostgreSQL.1234", "plasma", "torch_4711_1_0;reboot", "torch_4711_1_0\n", "cuda.shm.0.1267.1",
]  # fmt: skip


@pytest.mark.parametrize("name", WITH_PID)
def test_a_file_whose_maker_has_ended(machine: Machine, name: str) -> None:
    machine.file(name, 3 * PAGE)
    assert machine.found() == [Leftover(name, 3 * PAGE, os.geteuid(), 4711, True)]
    assert (machine.shm / name).exists()


@pytest.mark.parametrize("name", WITH_PID)
def test_the_maker_lives(machine: Machine, name: str) -> None:
    machine.file(name)
    machine.process(4711)
    assert machine.names() == []


@pytest.mark.parametrize("name", [*WITH_PID, *WITHOUT])
def test_somebody_has_it_mapped(machine: Machine, name: str) -> None:
    """A consumer outlives the producer; a container with another numbering of processes shares the folder."""
    machine.file(name)
    machine.process(99, name)
    assert machine.names() == []


@pytest.mark.parametrize("name", WITHOUT)
def test_a_name_without_a_process(machine: Machine, name: str) -> None:
    machine.file(name)
    assert machine.found() == [Leftover(name, PAGE, os.geteuid(), 0, True)]


def test_names_that_nobody_is_known_to_make(machine: Machine) -> None:
    for name in OTHERS:
        machine.file(name)
    assert machine.names() == []


def test_a_folder_counts_with_what_is_in_it(machine: Machine) -> None:
    for number in range(3):
        machine.file(f"{WITH_PID[2]}/{number}.pkl")
    assert machine.found()[0].size_bytes == 3 * PAGE


def test_links_and_devices_are_left_alone(machine: Machine) -> None:
    (machine.shm / WITH_PID[0]).symlink_to("/etc/passwd")
    os.mkfifo(machine.shm / WITHOUT[0])
    assert machine.names() == []


def in_the_kernel(machine: Machine) -> None:
    machine.process(50, state="D")


def unreadable(machine: Machine) -> None:
    maps = machine.process(50) / "maps"
    maps.unlink()
    maps.mkdir()  # a read fails, also for root


@pytest.mark.parametrize("spoil", [in_the_kernel, unreadable])
def test_a_process_that_cannot_be_looked_into_may_be_the_one(machine: Machine, spoil: object) -> None:
    """Its maps are not even asked for where that might wait for ever."""
    assert callable(spoil)
    spoil(machine)
    machine.file(WITH_PID[0])
    machine.file(WITHOUT[0])
    assert machine.found() == [Leftover(WITH_PID[0], PAGE, os.geteuid(), 4711, False)]


def test_kernel_threads_and_processes_that_end_meanwhile_do_not_matter(machine: Machine) -> None:
    (machine.process(50, flags=0x200000) / "maps").unlink()
    (machine.process(51) / "stat").unlink()
    machine.file(WITHOUT[0])
    assert machine.found()[0].sure


def test_with_other_processes_hidden_only_ones_own_files_are_spoken_of(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.file(WITH_PID[0])
    (machine.proc / "1").rename(machine.proc / "2")
    assert machine.names() == [WITH_PID[0]]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert machine.names() == []


def test_nothing_is_said_about_captured_machines_and_missing_folders(machine: Machine, tmp_path: Path) -> None:
    machine.file(WITH_PID[0])
    assert machine.found(live=False) == []
    root = SysRoot(LiveTree())
    assert leftovers(root, shm=str(tmp_path / "none")) == []
    assert leftovers(root, shm=str(machine.shm), proc=str(tmp_path / "none")) == []


def test_the_largest_comes_first(machine: Machine) -> None:
    for number, size in enumerate((1, 3, 2)):
        machine.file(f"torch_47{number}_1_0", size * PAGE)
    assert machine.names() == ["torch_471_1_0", "torch_472_1_0", "torch_470_1_0"]


def context(values: Mapping[str, object]) -> RuleContext:
    report: Report = case()
    for key, value in values.items():
        report.machine[key] = Reading(value, key)
    return RuleContext(SysRoot(LiveTree()), report, Directory([]), None)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "whole", "level", "title"),
    [
        ([MIB], 64 * MIB, "info", "1 file that no process uses holds 1 MiB of /dev/shm, left by killed programs"),
        ([MIB] * 7, 64 * MIB, "info", "7 files that no process uses hold 7 MiB of /dev/shm, left by killed programs"),
        (
            [8 * MIB] * 2,
            64 * MIB,
            "warn",
            "2 files that no process uses hold 16 MiB of /dev/shm, left by killed programs",
        ),
        ([8 * MIB] * 2, None, "info", "2 files that no process uses hold 16 MiB of /dev/shm, left by killed programs"),
    ],
)
def test_one_finding_for_all(sizes: list[int], whole: int | None, level: str, title: str) -> None:
    files = [Leftover(f"torch_{number}_1_0", size, 1000, number, True) for number, size in enumerate(sizes, 1)]
    found = rule.told(files, whole)
    assert (found.id, found.level, found.title, found.certainty) == ("SHM-LEFTOVER", level, title, "likely")
    assert found.evidence[0].source == "dev/shm/torch_1_1_0"
    assert found.evidence[0].raw.endswith("of user 1000; process 1, which made it, has ended")
    assert len(found.evidence) == min(len(sizes), 5)
    assert [line.split("  #")[0] for line in found.fix] == [
        "fuser -v /dev/shm/torch_1_1_0",
        "rm -r /dev/shm/torch_1_1_0",
    ]


@pytest.mark.parametrize("file", [Leftover("psm_1", 1, 0, 0, True), Leftover("torch_1_1_0", 1, 0, 1, False)])
def test_what_is_less_certain_says_so(file: Leftover) -> None:
    assert rule.told([file], None).certainty == "possible"


def test_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole rule, with a file that a killed process left and one that lives."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        os._exit(0)
    os.waitpid(pid, 0)
    dead, alive = Path(f"/dev/shm/torch_{pid}_77_0"), Path(f"/dev/shm/torch_{os.getpid()}_77_0")
    try:
        for path in (dead, alive):
            path.write_bytes(bytes(PAGE))
        found = list(rule.left_behind(context({"container/kind": "none"})))
        names = [file.name for file in leftovers(SysRoot(LiveTree()))]
        assert dead.name in names
        assert alive.name not in names
        assert [one.id for one in found] == ["SHM-LEFTOVER"]
        assert list(rule.left_behind(context({"container/kind": "docker"}))) == []
        assert dead.exists()
    finally:
        dead.unlink()
        alive.unlink()
