"""The source "clients" where fdinfo is not all: what a driver counts by itself is attributed, and what nobody tells is
unknown, never 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelctl.abi.telemetry import Draft, Tick
from accelctl.model.snapshot import Gone, Snapshot, key
from accelctl.telemetry.clients import Clients
from tests.fdkit import AMD, INTEL, MIB, RENDER, SECOND, Machine, Watcher, device, drm, process, vram

KFD = "sys/class/kfd/kfd/proc/{}/vram_4242"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, cards=2)


def draft_of(used: int, *held: tuple[int, int]) -> Draft:
    """A draft in which amdgpu has said what the device uses, and (pid, bytes) of KFD."""
    draft = Draft()
    draft.level(AMD, "memory_used_bytes", used, "mem_info_vram_used")
    for pid, size in held:
        draft.holds(AMD, pid, size, KFD.format(pid))
    return draft


def account(found: Snapshot) -> tuple[int | None, int | None]:
    level = device(found, AMD)
    return level.memory_attributed_bytes, level.memory_unattributed_bytes


def unknown(found: Snapshot, pid: int) -> Gone | None:
    row = process(found, pid)
    return found.absences.get(key("processes", f"{pid}@{row.started}", "memory"))


# -- what the driver counts by itself --


def test_memory_through_kfd_has_an_owner(machine: Machine) -> None:
    machine.process(7000, {3: (RENDER, drm("amdgpu", AMD, 1, "drm-total-vram:\t0"))}, name="rocm-train")
    machine.process(7001, {3: (RENDER, vram(2, 512))})
    found = Watcher(machine).tick(draft_of(20480 * MIB, (7000, 18432 * MIB)))
    assert account(found) == ((18432 + 512) * MIB, (20480 - 18432 - 512) * MIB)
    assert process(found, 7000).memory == ((AMD, "vram", 18432 * MIB),)
    assert unknown(found, 7000) is None
    assert found.sources[key("processes", "7000@100", "memory")].startswith(KFD.format(7000))
    assert found.sources[key("devices", AMD, "memory_attributed_bytes")].endswith(KFD.format("*"))


def test_what_both_count_counts_once(machine: Machine) -> None:
    """Which is larger is the kernel's affair; the sum would have the same buffers twice."""
    machine.process(10, {3: (RENDER, vram(1, 512, "drm-resident-gtt:\t5 MiB"))})
    machine.process(11, {3: (RENDER, vram(2, 100))})
    found = Watcher(machine).tick(draft_of(2048 * MIB, (10, 600 * MIB), (11, 40 * MIB)))
    assert process(found, 10).memory == ((AMD, "gtt", 5 * MIB), (AMD, "vram", 600 * MIB))
    assert process(found, 11).memory == ((AMD, "vram", 100 * MIB),)
    assert account(found) == (700 * MIB, 1348 * MIB)


def test_no_more_is_attributed_than_is_used(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(1, 64))})
    found = Watcher(machine).tick(draft_of(100 * MIB, (10, 101 * MIB)))
    assert account(found) == (100 * MIB, 0)


def test_a_holder_whose_files_may_not_be_listed(machine: Machine) -> None:
    """KFD's files are everybody's to read: its memory is known, though the process may not be looked into."""
    machine.process(10, {3: (RENDER, vram(1, 64))}, name="secret")
    machine.tree.denied = {"proc/10/fd", "proc/10/fdinfo", "proc/10/maps"}
    found = Watcher(machine).tick(draft_of(100 * MIB, (10, 64 * MIB), (4000, 8 * MIB)))
    assert account(found) == (72 * MIB, 28 * MIB)
    (row,) = found.processes
    assert (row.pid, row.name, row.devices, row.memory) == (10, "secret", (AMD,), ((AMD, "vram", 64 * MIB),))


def test_what_kfd_holds_no_more_goes(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(1, 64))})
    watcher = Watcher(machine)
    watcher.tick(draft_of(900 * MIB, (10, 800 * MIB)))
    found = watcher.tick(draft_of(900 * MIB, (10, 0)))
    assert process(found, 10).memory == ((AMD, "vram", 64 * MIB),)
    assert account(found)[0] == 64 * MIB


# -- what nobody tells --


def test_a_driver_that_tells_no_sizes_leaves_them_unknown(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, "pos:\t0\nflags:\t02\n")})
    machine.process(11, {3: (RENDER, vram(2, 8))})
    found = Watcher(machine).tick()
    assert unknown(found, 10) == Gone("not_offered", "its driver prints no drm- lines in fdinfo")
    assert unknown(found, 11) is None
    assert account(found)[0] == 8 * MIB
    source = found.sources[key("devices", AMD, "memory_attributed_bytes")]
    assert source.endswith("; without 1 process, its driver prints no drm- lines in fdinfo")


def test_a_node_that_is_no_drm_node(tmp_path: Path) -> None:
    """/dev/nvidia0: a character device of its own, beside control nodes that have no memory."""
    machine = Machine(tmp_path, cards=1)
    names = "/dev/nvidia0", "/dev/nvidiactl"
    machine.process(10, {number: (name, "pos:\t0\n") for number, name in enumerate(names, 3)})
    source = Clients(machine.root, {(195, 0): AMD}, limit=64)
    draft, tick = Draft(), Tick(SECOND, SECOND, 0, lambda path: None)
    source.sample(draft, tick)
    found = draft.snapshot(tick)
    assert process(found, 10).memory == ()
    why = unknown(found, 10)
    assert why is not None
    assert why.kind == "not_offered"
    source.close()


@pytest.mark.parametrize("line", ["drm-total-vram:\t512 GiB", "drm-resident-vram:\t3 furlongs", "drm-memory-vram:\t-1"])
def test_a_unit_that_is_not_understood(machine: Machine, line: str) -> None:
    """MON-02: unknown, not a guess."""
    machine.process(10, {3: (RENDER, drm("amdgpu", AMD, 1, line))})
    found = Watcher(machine).tick()
    assert process(found, 10).memory == ()
    why = unknown(found, 10)
    assert why is not None
    assert (why.kind, line.partition(":")[0] in why.detail) == ("malformed", True)
    gone = found.absences[key("devices", AMD, "memory_attributed_bytes")]
    assert gone == why


def test_a_total_beside_a_resident_that_is_understood_is_no_gap(machine: Machine) -> None:
    lines = "drm-resident-vram:\t1 MiB", "drm-total-vram:\t1 GiB", "drm-shared-vram:\t1 GiB"
    machine.process(10, {3: (RENDER, drm("amdgpu", AMD, 1, *lines))})
    found = Watcher(machine).tick()
    assert (process(found, 10).memory, unknown(found, 10)) == (((AMD, "vram", MIB),), None)


def test_a_device_that_sleeps_is_not_said_to_be_silent(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(1, 64))})
    watcher = Watcher(machine)
    watcher.asleep = frozenset({AMD})
    found = watcher.tick()
    why = unknown(found, 10)
    assert why is not None
    assert why.kind == "asleep"
    assert found.absences[key("devices", AMD, "memory_attributed_bytes")].kind == "asleep"
    watcher.asleep = frozenset()
    found = watcher.tick()
    assert (process(found, 10).memory, unknown(found, 10)) == (((AMD, "vram", 64 * MIB),), None)


def test_of_two_devices_the_one_that_is_silent_is_named(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(1, 64)), 4: ("/dev/dri/renderD129", "pos:\t0\n")})
    found = Watcher(machine).tick()
    assert process(found, 10).memory == ((AMD, "vram", 64 * MIB),)
    why = unknown(found, 10)
    assert why is not None
    assert why.detail == f"{INTEL}: its driver prints no drm- lines in fdinfo"


def test_numbers_that_no_source_speaks_of_are_missing_for_a_reason(machine: Machine) -> None:
    found = Watcher(machine).tick()
    for name in ("busy_ratio", "memory_total_bytes", "memory_used_bytes"):
        assert found.absences[key("devices", AMD, name)].kind == "not_offered"
    machine.process(10, {3: (RENDER, drm("amdgpu", AMD, 1, "drm-engine-gfx:\t5 ns"))})
    watcher = Watcher(machine)
    assert watcher.tick().absences[key("devices", AMD, "busy_ratio")].kind == "empty"
    found = watcher.tick()
    assert (device(found, AMD).busy_ratio, key("devices", AMD, "busy_ratio") in found.absences) == (0.0, False)
