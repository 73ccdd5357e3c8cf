"""The source "clients" on made-up processes of real files: counted once, found again, and said if hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelctl.abi.telemetry import Draft
from accelctl.hal import proc
from accelctl.hal.allowlist import FREE, AllowList
from accelctl.model.snapshot import key
from accelctl.telemetry.clientrows import HIDDEN, OUTSIDE, missing
from tests.fdkit import AMD, INTEL, MIB, RENDER, Calls, Machine, Watcher, device, drm, gfx, process, vram

CARD = "/dev/dri/card0"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, cards=2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


# -- counting --


def test_duplicated_descriptors_and_equal_numbers_on_two_devices(machine: Machine) -> None:
    """MON-01."""
    first = drm("amdgpu", AMD, 7, "drm-total-vram:\t524288 KiB")
    second = drm("i915", INTEL, 7, "drm-total-system:\t102400 KiB")
    machine.process(4242, {10: (RENDER, first), 11: (RENDER, first), 12: ("/dev/dri/renderD129", second)})
    found = Watcher(machine).tick()
    assert device(found, AMD).memory_attributed_bytes == 536870912
    assert device(found, INTEL).memory_attributed_bytes == 104857600
    assert [(one.clients, one.open_files) for one in found.devices] == [(1, 2), (1, 1)]
    row = process(found, 4242)
    assert row.memory == ((AMD, "vram", 536870912), (INTEL, "system", 104857600))
    assert row.files == ((AMD, 2), (INTEL, 1))
    assert row.devices == (AMD, INTEL)


def test_trap_5_an_inherited_client_counts_once_and_is_shown_with_every_holder(machine: Machine) -> None:
    text = vram(7, 512)
    machine.process(10, {3: (RENDER, text)})
    machine.process(11, {9: (RENDER, text)})
    machine.process(12, {9: (RENDER, vram(8, 1))})
    found = Watcher(machine).tick()
    assert device(found, AMD).memory_attributed_bytes == 513 * MIB
    assert [process(found, pid).shared_with for pid in (10, 11, 12)] == [(11,), (10,), ()]
    assert process(found, 11).memory == ((AMD, "vram", 512 * MIB),)


def test_a_later_holder_is_told_to_the_earlier_one(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512))})
    watcher = Watcher(machine, rescan_s=3600)
    assert process(watcher.tick(), 10).shared_with == ()
    machine.process(11, {3: (RENDER, vram(7, 512))})
    assert process(watcher.tick(), 10).shared_with == (11,)
    machine.end(11)
    assert process(watcher.tick(), 10).shared_with == ()


def test_trap_4_what_no_client_says_is_not_attributed(machine: Machine) -> None:
    """The device's own count is of its own memory: system memory of its clients is not taken off it."""
    machine.process(10, {3: (RENDER, vram(7, 256, "drm-resident-gtt:\t900 MiB"))})
    draft = Draft()
    draft.level(AMD, "memory_used_bytes", 2048 * MIB, "mem_info_vram_used")
    level = device(Watcher(machine).tick(draft), AMD)
    assert (level.memory_attributed_bytes, level.memory_unattributed_bytes) == (256 * MIB, 1792 * MIB)


@pytest.mark.parametrize(("root", "fix"), [(False, "sudo $(command -v accelctl) top"), (True, "run it on the host: ")])
def test_not_allowed_to_look(machine: Machine, monkeypatch: pytest.MonkeyPatch, root: bool, fix: str) -> None:
    """MON-07: own uid does not imply readable. Nobody who is root already is sent to sudo."""
    monkeypatch.setattr(proc, "is_root", lambda: root)
    machine.process(700, {3: (RENDER, vram(1, 64))})
    machine.process(800, {3: (RENDER, vram(2, 64))})
    machine.process(900, {3: (RENDER, vram(3, 256))})
    machine.tree.denied = {"proc/700/fdinfo", "proc/700/maps", "proc/800/fd", "proc/800/fdinfo", "proc/800/maps"}
    draft = Draft()
    draft.level(AMD, "memory_used_bytes", 2048 * MIB, "mem_info_vram_used")
    found = Watcher(machine).tick(draft)
    assert found.hidden_processes == 2
    assert process(found, 900).memory == ((AMD, "vram", 256 * MIB),)
    assert missing(found, AMD) == "2 processes not readable; 1792 MiB of 2048 MiB not attributed"
    gone = found.absences[HIDDEN]
    assert (gone.kind, gone.detail) == ("no_permission", "2 processes not readable")
    assert gone.fix.startswith(fix)


def test_kernel_threads_are_not_hidden_processes(machine: Machine) -> None:
    machine.process(2, name="kthreadd")
    (machine.folder / "proc/2/stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2097152 0 0 0 0 0 0 0 0 20 0 1 0 0 0 0\n")
    machine.tree.denied = {"proc/2/fd"}
    assert Watcher(machine).tick().hidden_processes == 0


def test_trap_9_a_virtual_function_and_a_partition(machine: Machine) -> None:
    """A virtual function prints its own address; a partition its parent's, though it is a device of its own."""
    machine.node("renderD140", "226:140", "amdgpu_xcp_1", "platform")
    machine.process(10, {3: (RENDER, vram(1, 1, pdev="0000:01:00.2"))})
    machine.process(11, {3: ("/dev/dri/renderD140", vram(2, 8))})
    found = Watcher(machine).tick()
    assert device(found, "0000:01:00.2").memory_attributed_bytes == MIB
    assert device(found, "platform:amdgpu_xcp_1").memory_attributed_bytes == 8 * MIB


def test_trap_10_accel_nodes_and_the_tenth_card(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cards=16)
    machine.node("accel0", "261:0", "npu.0", "platform")
    machine.process(10, {3: ("/dev/accel/accel0", drm("amdxdna", "", 5, "drm-total-memory:\t8 KiB"))})
    machine.process(11, {3: ("/dev/dri/card15", vram(5, 1, pdev=machine.address(15)))})
    found = Watcher(machine).tick()
    assert device(found, "platform:npu.0").memory_attributed_bytes == 8192
    assert device(found, machine.address(15)).memory_attributed_bytes == MIB


def test_drivers_without_drm_lines_show_files_and_mappings(machine: Machine) -> None:
    """vgem and virtio-gpu print nothing: what a run holds is seen all the same, and zero after it."""
    machine.node("card9", "226:9", "vgem", "platform")
    maps = "7f0000000000-7f0000010000 rw-s 100000000 00:06 391   /dev/dri/card9\n"
    machine.process(10, {3: ("/dev/dri/card9", "pos:\t0\nflags:\t02\n")}, maps=maps)
    watcher = Watcher(machine)
    found = watcher.tick()
    level = device(found, "platform:vgem")
    assert (level.open_files, level.mapped_bytes, level.memory_attributed_bytes) == (1, 65536, None)
    assert found.absences[key("devices", "platform:vgem", "memory_attributed_bytes")].kind == "not_offered"
    assert process(found, 10).mapped == (("platform:vgem", 65536),)
    machine.end(10)
    found = watcher.tick()
    level = device(found, "platform:vgem")
    assert (level.open_files, level.mapped_bytes, level.memory_attributed_bytes) == (0, 0, 0)
    assert found.processes == ()


def test_a_mapping_outlives_its_descriptor(machine: Machine) -> None:
    maps = "7f0000000000-7f0000010000 rw-s 0 00:06 391   /dev/dri/card0\n"
    machine.process(10, {3: (CARD, "pos:\t0\n")}, maps=maps)
    watcher = Watcher(machine)
    watcher.tick()
    machine.shut(10, 3)
    level = device(watcher.tick(), AMD)
    assert (level.open_files, level.mapped_bytes) == (0, 65536)


def test_buffers_go_to_their_maker_or_to_the_only_device(machine: Machine) -> None:
    heap = machine.folder / "dev/dma_heap/system"
    heap.parent.mkdir(parents=True)
    heap.write_text("")
    buffer = "pos:\t0\nino:\t{}\nsize:\t{}\ncount:\t2\nexp_name:\t{}\n"
    maps = "7f00-7f10 rw-s 0 00:0a 42  /dmabuf:\n7f20-7f30 rw-s 0 00:0a 43  /dmabuf:\n"
    machine.process(
        10,
        {
            3: (RENDER, "pos:\t0\n"),
            4: ("/dmabuf:", buffer.format(42, 4096, "system")),
            5: ("/dmabuf:", buffer.format(42, 4096, "system")),
            6: ("/dmabuf:", buffer.format(43, 8192, "drm")),
        },
        maps=maps,
    )
    found = Watcher(machine).tick()
    row = process(found, 10)
    assert row.memory == ((AMD, "dma-buf", 8192), ("node:dma_heap/system", "dma-buf", 4096))
    assert row.files == ((AMD, 2), ("node:dma_heap/system", 2))
    assert row.mapped == ((AMD, 16), ("node:dma_heap/system", 16))
    assert device(found, "node:dma_heap/system").memory_attributed_bytes == 4096


def test_buffers_without_a_number_are_each_their_own(machine: Machine) -> None:
    """Before Linux 5.14 fdinfo has no inode."""
    buffer = "pos:\t0\nsize:\t8192\ncount:\t2\nexp_name:\tdrm\n"
    for pid in (10, 11):
        machine.process(pid, {3: (RENDER, "pos:\t0\n"), 4: ("/dmabuf:", buffer), 5: ("/dmabuf:", buffer)})
    assert device(Watcher(machine).tick(), AMD).memory_attributed_bytes == 4 * 8192


def test_a_clients_exported_buffers_are_not_counted_twice(machine: Machine) -> None:
    buffer = "ino:\t43\nsize:\t8192\ncount:\t2\nexp_name:\tdrm\n"
    machine.process(10, {3: (RENDER, vram(1, 1)), 6: ("/dmabuf:", buffer)})
    assert process(Watcher(machine).tick(), 10).memory == ((AMD, "vram", MIB),)


def test_nodes_without_a_device_in_sysfs(machine: Machine) -> None:
    machine.process(10, {3: ("/dev/kfd", ""), 4: ("/dev/nvidiactl", ""), 5: ("/dev/null", ""), 6: ("socket:[1]", "")})
    assert process(Watcher(machine).tick(), 10).files == (("node:kfd", 1), ("node:nvidiactl", 1))


# -- a process by itself --


def test_state_wait_channel_and_container(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(1, 1))}, name="a) b", state="D", status="\t1")
    (machine.folder / "proc/10/wchan").write_text("amdgpu_fence_wait")
    row = process(Watcher(machine).tick(), 10)
    assert (row.name, row.state, row.wchan, row.container, row.uid) == ("a) b", "D", "amdgpu_fence_wait", True, 1000)


def test_files_of_a_process_whose_first_thread_ended(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, "pos:\t0\n")}, state="Z")
    base = machine.folder / "proc/10"
    (base / "task/11").mkdir(parents=True)
    (base / "fd").rename(base / "task/11/fd")
    (base / "fd").mkdir()
    assert process(Watcher(machine).tick(), 10).files == ((AMD, 1),)


def test_trap_6_a_pid_that_is_used_again(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512))}, start=100)
    watcher = Watcher(machine)
    watcher.tick()
    machine.process(10, {3: (RENDER, vram(9, 4))}, start=200, name="other")
    found = watcher.tick()
    row = process(found, 10)
    assert (row.started, row.name, row.memory) == (200, "other", ((AMD, "vram", 4 * MIB),))
    assert device(found, AMD).clients == 1


def test_trap_6_files_that_vanish_between_listing_and_reading(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512)), 4: (RENDER, vram(8, 1))})
    (machine.folder / "proc/10/fdinfo/3").unlink()
    machine.process(11)
    (machine.folder / "proc/11/stat").unlink()
    found = Watcher(machine).tick()
    assert device(found, AMD).memory_attributed_bytes == MIB
    assert [one.pid for one in found.processes] == [10]


# -- load --


def test_load_of_engines_devices_and_processes(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, gfx(1, 0))})
    machine.process(11, {3: (RENDER, gfx(2, 0))})
    watcher = Watcher(machine)
    first = watcher.tick()
    assert [(one.id, one.busy_ratio) for one in first.engines] == [(f"{AMD}/gfx", None)]
    machine.open(10, 3, RENDER, gfx(1, 500_000_000))
    machine.open(11, 3, RENDER, gfx(2, 250_000_000))
    found = watcher.tick()
    assert [(one.id, one.busy_ratio) for one in found.engines] == [(f"{AMD}/gfx", 0.75)]
    assert device(found, AMD).busy_ratio == 0.75
    assert process(found, 10).engines == ((AMD, "gfx", 0.5),)
    idle = watcher.tick()
    assert device(idle, AMD).busy_ratio == 0.0
    assert process(idle, 10).engines == ((AMD, "gfx", 0.0),)


def test_the_drivers_own_figure_goes_before_ours(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, gfx(1, 0))})
    watcher = Watcher(machine)
    watcher.tick()
    machine.open(10, 3, RENDER, gfx(1, 500_000_000))
    draft = Draft()
    draft.level(AMD, "busy_ratio", 0.9, "gpu_busy_percent")
    assert device(watcher.tick(draft), AMD).busy_ratio == 0.9


def test_an_engine_goes_with_the_last_client_that_names_it(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, gfx(1, 5)), 4: (RENDER, vram(2, 1))})
    watcher = Watcher(machine)
    assert len(watcher.tick().engines) == 1
    machine.open(10, 3, RENDER, vram(1, 1))
    assert watcher.tick().engines == ()


# -- finding again --


def test_another_holder_tells_when_the_first_one_closed(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512))})
    machine.process(11, {9: (RENDER, vram(7, 512))})
    watcher = Watcher(machine, rescan_s=3600)
    watcher.tick()
    machine.shut(10, 3)
    machine.open(11, 9, RENDER, vram(7, 600))
    found = watcher.tick()
    assert device(found, AMD).memory_attributed_bytes == 600 * MIB
    assert [one.pid for one in found.processes] == [11]
    machine.end(11)
    assert device(watcher.tick(), AMD).clients == 0


def test_a_number_that_a_later_client_bears_again(machine: Machine) -> None:
    watcher = Watcher(machine)
    for pid in (10, 11):
        machine.process(pid, {3: (RENDER, vram(7, 1))})
        assert device(watcher.tick(), AMD).clients == 1
        machine.end(pid)
        assert device(watcher.tick(), AMD).clients == 0


def test_a_descriptors_number_that_is_another_clients_now(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512)), 4: (RENDER, vram(7, 512))})
    watcher = Watcher(machine, rescan_s=3600)
    watcher.tick()
    machine.open(10, 3, RENDER, vram(9, 1))
    found = watcher.tick()
    assert device(found, AMD).memory_attributed_bytes == 513 * MIB
    assert device(found, AMD).clients == 2


def test_a_duplicate_that_became_another_client_is_found_at_the_next_look(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, vram(7, 512))})
    machine.process(11, {3: (RENDER, vram(7, 512))})
    watcher = Watcher(machine)
    watcher.tick()
    machine.open(11, 3, RENDER, vram(9, 1))
    found = watcher.tick()
    assert process(found, 11).memory == ((AMD, "vram", MIB),)
    assert process(found, 10).shared_with == ()


def test_clients_of_a_driver_without_client_ids_are_each_their_own(machine: Machine) -> None:
    text = f"drm-driver:\tx\ndrm-pdev:\t{AMD}\ndrm-total-memory:\t4 KiB\n"
    machine.process(10, {3: (RENDER, text), 4: (RENDER, text)})
    assert device(Watcher(machine).tick(), AMD).memory_attributed_bytes == 8192


def test_new_devices_are_found_and_used_numbers_looked_up_again(machine: Machine) -> None:
    watcher = Watcher(machine)
    watcher.tick()
    machine.node("card9", "226:9", "vgem", "platform")
    machine.process(10, {3: ("/dev/dri/card9", "pos:\t0\n")})
    watcher.tick()
    assert device(watcher.tick(), "platform:vgem").open_files == 1


# -- what must be left alone --


def test_trap_12_what_hung_is_left_alone_and_the_rest_goes_on(machine: Machine) -> None:
    machine.process(10, {3: (RENDER, gfx(1, 0)), 4: (RENDER, gfx(2, 0))})
    watcher = Watcher(machine)
    watcher.quarantine = frozenset({"proc/10/fdinfo/3"})
    found = watcher.tick()
    assert device(found, AMD).clients == 1
    assert "proc/10/fdinfo/3" not in watcher.entered
    assert "proc/10/fdinfo/4" in watcher.entered
    watcher.quarantine = frozenset({"proc/10/fdinfo"})
    watcher.entered.clear()
    assert process(watcher.tick(), 10).engines == ()
    assert [path for path in watcher.entered if path.startswith("proc/10/fdinfo/")] == []
    watcher.quarantine = frozenset({"proc/10/fd"})
    watcher.entered.clear()
    assert device(watcher.tick(), AMD).open_files == 2, "what was known stays"
    assert "proc/10/fd" not in watcher.entered


def test_the_fdinfo_of_a_sleeping_device_is_not_read(machine: Machine, calls: Calls) -> None:
    """xe takes a runtime-PM reference for it."""
    machine.process(10, {3: (RENDER, gfx(1, 0))})
    watcher = Watcher(machine)
    watcher.tick()
    calls.clear()
    watcher.asleep = frozenset({AMD})
    machine.open(10, 3, RENDER, gfx(1, 500))
    found = watcher.tick()
    assert (calls.reads, calls.opened) == (0, [])
    assert device(found, AMD).memory_attributed_bytes == MIB
    assert process(found, 10).engines == ((AMD, "gfx", 0.0),)
    watcher.asleep = frozenset()
    watcher.tick()
    assert calls.reads == 1


def test_clients_of_a_device_that_slept_from_the_start(machine: Machine, calls: Calls) -> None:
    """Their files are counted; what they say is read once it wakes."""
    machine.process(10, {3: (RENDER, gfx(1, 0))})
    watcher = Watcher(machine)
    watcher.asleep = frozenset({AMD})
    level = device(watcher.tick(), AMD)
    assert (level.open_files, level.clients, calls.opened) == (1, 0, [])
    watcher.asleep = frozenset()
    assert device(watcher.tick(), AMD).clients == 1


def test_only_listed_files_are_opened_and_each_is_named_before(machine: Machine, calls: Calls) -> None:
    machine.process(10, {3: (RENDER, vram(1, 1)), 4: ("/dmabuf:", "size:\t1\ncount:\t1\n")}, state="D")
    watcher = Watcher(machine)
    watcher.tick()
    prefix = f"{machine.folder}/"
    opened = {path.removeprefix(prefix) for path in calls.opened}
    read = {path for path in machine.tree.asked if path.startswith("proc/10/") and "/fd/" not in path}
    files = (opened | read) - {"proc/10/fd"}
    assert files == {f"proc/10/{name}" for name in ("stat", "status", "wchan", "maps", "fdinfo/3", "fdinfo/4")}
    assert files <= set(watcher.entered)
    assert {AllowList().effect(path) for path in files} == {FREE}


def test_processes_out_of_sight_are_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid, and a PID namespace that is not the machine's own."""
    machine.root.live = True
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    space = machine.folder / "proc/self/ns"
    space.mkdir(parents=True)
    (space / "pid").symlink_to("pid:[4026531836]")
    assert OUTSIDE not in Watcher(machine).tick().absences
    (space / "pid").unlink()
    (space / "pid").symlink_to("pid:[4026532999]")
    assert Watcher(machine).tick().absences[OUTSIDE].kind == "hidden_by_container"
    (machine.folder / "proc/self/mountinfo").write_text("22 1 0:5 / /proc rw - proc proc rw,hidepid=2\n")
    assert Watcher(machine).tick().absences[OUTSIDE].kind == "no_permission"


def test_processes_whose_state_is_denied_are_not_asked_at_each_tick(machine: Machine) -> None:
    """hidepid=1 lists them and shows nothing; once it may be read, it is."""
    machine.process(10, {3: (RENDER, vram(1, 1))})
    machine.tree.denied = {"proc/10"}
    watcher = Watcher(machine, rescan_s=2)
    watcher.tick()
    watcher.entered.clear()
    watcher.tick()
    assert "proc/10/stat" not in watcher.entered
    machine.tree.denied = set()
    assert process(watcher.tick(), 10).files == ((AMD, 1),)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["stat", "status", "maps", "fdinfo/3", "fdinfo/4", "wchan"]), data=st.binary(max_size=200))
def test_any_bytes_in_any_file(machine: Machine, name: str, data: bytes) -> None:
    """No exception, and the other process is seen."""
    machine.process(10, {3: (RENDER, vram(1, 1)), 4: ("/dmabuf:", "size:\t1\ncount:\t1\n")}, state="D")
    machine.process(11, {3: (RENDER, vram(2, 1))})
    watcher = Watcher(machine)
    watcher.tick()
    (machine.folder / f"proc/10/{name}").write_bytes(data)
    watcher.tick()
    machine.process(10, {3: (RENDER, vram(1, 1))})
    (machine.folder / f"proc/10/{name}").write_bytes(data)
    assert process(watcher.tick(), 11).memory == ((AMD, "vram", MIB),)
    watcher.source.close()
