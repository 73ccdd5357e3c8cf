"""What the source "clients" costs, in calls: one read for each client and no open; few looks; nothing kept too long."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from accelctl.abi.telemetry import Draft, Tick
from accelctl.hal import keptfiles
from accelctl.hal.root import open_root
from accelctl.telemetry.clients import Clients
from tests.fdkit import AMD, MIB, RENDER, SECOND, Calls, Machine, Watcher, gfx, process, vram


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, cards=2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def many(machine: Machine, processes: int = 10, files: int = 4) -> None:
    for pid in range(100, 100 + processes):
        machine.process(pid, {3 + n: (RENDER, gfx(pid * 100 + n, 0)) for n in range(files)})


def test_a_steady_tick_is_one_read_for_each_client_and_no_open(machine: Machine, calls: Calls) -> None:
    many(machine)
    for pid in (200, 201):
        machine.process(pid, {3: (RENDER, gfx(777, 0)), 4: (RENDER, gfx(777, 0))})
    watcher = Watcher(machine, rescan_s=3600)
    watcher.tick()
    calls.clear()
    machine.tree.asked.clear()
    for _ in range(3):
        watcher.tick()
    assert calls.opened == []
    assert calls.reads == 3 * 41
    assert machine.tree.asked == ["proc"] * 3
    assert watcher.draft.reads == 41
    watcher.source.close()


def test_beyond_the_limit_files_are_opened_and_closed_each_time(machine: Machine, calls: Calls) -> None:
    many(machine, processes=3)
    watcher = Watcher(machine, rescan_s=3600, limit=5)
    before = len(os.listdir("/proc/self/fd"))
    watcher.tick()
    assert len(os.listdir("/proc/self/fd")) == before + 5
    calls.clear()
    watcher.tick()
    assert (len(calls.opened), calls.reads) == (12 - 5, 12)
    assert len(os.listdir("/proc/self/fd")) == before + 5
    watcher.source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_processes_are_looked_at_within_one_round(machine: Machine) -> None:
    """A fifth of them at each tick of a second: no tick pays for all."""
    many(machine, processes=10, files=1)
    watcher = Watcher(machine, rescan_s=5.0)
    watcher.tick()
    looked: list[set[str]] = []
    for _ in range(5):
        watcher.entered.clear()
        watcher.tick()
        looked.append({path for path in watcher.entered if path.endswith("/stat")})
    assert [len(one) for one in looked] == [2] * 5
    assert len(set().union(*looked)) == 10


def test_a_number_that_comes_and_goes_waits_for_one_turn(machine: Machine) -> None:
    watcher = Watcher(machine, rescan_s=3600)
    for _ in range(5):
        machine.process(10, {3: (RENDER, vram(7, 1))})
        watcher.tick()
        machine.end(10)
        watcher.tick()
    machine.process(10, {3: (RENDER, vram(7, 1))})
    watcher.tick()
    assert list(watcher.source._turn) == [10]


def test_rows_that_did_not_change_are_the_same_objects(machine: Machine) -> None:
    many(machine, processes=2, files=1)
    watcher = Watcher(machine, rescan_s=3600)
    watcher.tick()
    first = watcher.tick()
    machine.open(100, 3, RENDER, gfx(10000, 5))
    second = watcher.tick()
    assert process(first, 101) is process(second, 101)
    assert process(first, 100) is not process(second, 100)


def test_trap_7_a_file_of_many_pages(machine: Machine, calls: Calls) -> None:
    """In one piece each time; the buffer that was large enough is remembered."""
    padding = [f"drm-x-{n}:\t{n}" for n in range(2000)]
    machine.process(10, {3: (RENDER, vram(7, 1, *padding, "drm-resident-late:\t4 KiB"))})
    watcher = Watcher(machine, rescan_s=3600)
    assert process(watcher.tick(), 10).memory == ((AMD, "late", 4096), (AMD, "vram", MIB))
    calls.clear()
    watcher.tick()
    assert calls.reads == 1


@pytest.mark.parametrize(
    ("limits", "raised", "room"),
    [
        ((1024, 4096), 4096, 3072),
        ((1024, 1 << 20), 16384, 12288),
        ((1 << 20, 1 << 20), None, 786432),
        ((64, 64), None, 0),
    ],
)
def test_how_many_files_are_kept_open(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int | None, room: int
) -> None:
    """What RLIMIT_NOFILE leaves, less a quarter: others need some, too."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: asked.append(wanted))
    assert keptfiles.room() == room
    assert asked == ([] if raised is None else [(raised, limits[1])])


def test_making_one_reads_and_opens_nothing(machine: Machine, calls: Calls) -> None:
    machine.tree.asked.clear()
    Watcher(machine)
    assert (machine.tree.asked, calls.opened) == ([], [])


def test_on_this_very_machine() -> None:
    """Whatever runs here: no exception, and descriptors given back."""
    before = len(os.listdir("/proc/self/fd"))
    source = Clients(open_root("/"), limit=64)
    for n in range(3):
        source.sample(Draft(), Tick(n, n * SECOND, SECOND if n else 0, lambda path: None))
    source.close()
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
