"""NVIDIA's RM and UVM, and Gaudi, against stand-ins: layouts by release, statuses, sentinels, order, rollback."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from accelctl.abi.conformance import check_memory
from accelctl.abi.lifecycle import DriverStatus, Session, Target
from accelctl.backends import habanalabs, nvidia
from accelctl.backends.habanalabs import memory as gaudi
from accelctl.backends.nvidia import rm
from accelctl.backends.nvidia.memory import MEMORY
from accelctl.errors import AbiError, AccelError, DeviceUnusable, NoDeviceError, UsageError
from accelctl.hal.devfile import open_files
from accelctl.hal.uapi.nvidia import status_name
from tests.nvidiakernel import CONTROL, GPU, HUGE, UVM, Nvidia, parse
from tests.tablekernel import PAGE, Arg, Bench, Node, TableKernel, acquire, cycle, life, poke, refuse, release, table

RELEASES = ["525.147.05", "535.288.01", "545.29.06", "550.40.07", "550.163.01", "570.211.01", "580.142", "595.45.04"]
ACCEL = "/dev/accel/accel0"


def bench_of(shared: Path, version: str = "595.45.04", says: str = "") -> Bench:
    target = Target("t", "nvidia", "nvidia", GPU)
    return Bench(Nvidia(shared, version, says), nvidia.MANIFEST, MEMORY, target)


def driver(bench: Bench) -> Nvidia:
    assert isinstance(bench.kernel, Nvidia)
    return bench.kernel


@pytest.mark.parametrize("version", RELEASES)
def test_nvidia_keeps_the_contract(shared: Path, version: str) -> None:
    bench = bench_of(shared, version)
    checks = check_memory(bench.chip, bench.target, bench.env)
    assert {check.name: check.detail for check in checks if check.result == "fail"} == {}
    assert len([check for check in checks if check.result == "pass"]) > 30
    assert bench.balanced()


@pytest.mark.parametrize("version", RELEASES)
def test_a_session_is_a_tree_and_ends_as_none(shared: Path, version: str) -> None:
    bench = bench_of(shared, version)
    session = bench.open()
    kernel = driver(bench)
    assert [entry["class"] for entry in kernel.tree.values()] == [0x41, 0x80, 0x2080, 0x90F1]
    client, device, subdevice, space = kernel.tree
    assert kernel.params[device].set() == {"deviceId": 5, "hClientShare": client, "vaMode": 2}
    assert kernel.params[subdevice].set() == {"subDeviceId": 1}
    assert kernel.params[space]["flags"] == 8 | 64  # externally owned: UVM's; page faults
    assert kernel.registered == ["gpu", "vaspace"]
    assert [call.name for call in kernel.calls].count("UVM_MM_INITIALIZE") == (parse(version) >= (535,))
    kernel.calls.clear()
    session.close()
    freed = ["UVM_UNREGISTER_GPU_VASPACE", "UVM_UNREGISTER_GPU", *["NV_ESC_RM_FREE"] * 4]
    assert kernel.names() == freed
    assert [call.name for call in kernel.calls][-2:] == [f"close {GPU}", f"close {CONTROL}"]
    assert kernel.left() == 0
    assert open_files() == {}


IN_AND_OUT = "CREATE_EXTERNAL_RANGE MAP_EXTERNAL_ALLOCATION UNMAP_EXTERNAL FREE"
STAGES = {
    "vidmem": f"RM_ALLOC REGISTER_FD RM_MAP_MEMORY mmap {IN_AND_OUT} munmap RM_UNMAP_MEMORY RM_FREE",
    "sysmem": f"RM_ALLOC RM_MAP_MEMORY mmap {IN_AND_OUT} munmap RM_UNMAP_MEMORY RM_FREE",
    "host_map": f"RM_ALLOC_MEMORY {IN_AND_OUT} RM_FREE",
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("size", [PAGE, 3 * PAGE, HUGE - PAGE, HUGE + PAGE])
def test_nvidia_makes_these_calls(shared: Path, name: str, size: int) -> None:
    bench = bench_of(shared)
    session = bench.open()
    kernel = driver(bench)
    kernel.calls.clear()
    before, open_before = kernel.left(), len(kernel.files)
    block = cycle(life(session, name), size)
    names = [one.removeprefix("NV_ESC_").removeprefix("UVM_") for one in kernel.names()]
    assert " ".join(names) == STAGES[name]
    assert block.size == (size if size < HUGE else 2 * HUGE)
    assert (kernel.left(), len(kernel.files)) == (before, open_before)
    assert bench.balanced()
    session.close()


def test_the_node_is_found_among_those_of_a_gpu(shared: Path) -> None:
    """nvidia-drm gives the GPU DRM nodes, and those come first."""
    bench = bench_of(shared)
    bench.target = Target("t", "nvidia", "nvidia", "/dev/dri/renderD128", ("/dev/dri/card0", GPU))
    session = bench.open()
    cycle(life(session, "vidmem"))
    session.close()
    bench.target = Target("t", "nvidia", "nvidia", "/dev/dri/renderD128")
    with pytest.raises(UsageError, match="called through nvidiaN"):
        bench.open()
    assert bench.kernel.files == {}


def test_our_pages_are_pinned_by_their_address(shared: Path) -> None:
    bench = bench_of(shared)
    session = bench.open()
    one, two = acquire(life(session, "host_map")), acquire(life(session, "host_map"))
    assert one.map is not None
    assert bytes(one.map[:4]) == b"seen"
    assert one.handle != two.handle
    release(one)
    release(two)
    session.close()


def test_free_memory_is_counted_in_bytes(shared: Path) -> None:
    session = bench_of(shared).open()
    read = {counter.name: counter.read for counter in session.counters()}
    assert {name: count() for name, count in read.items()} == {"heap-free": 1 << 30, "bar1-available": 1 << 28}
    block = acquire(life(session, "vidmem"), HUGE)
    assert read["heap-free"]() == (1 << 30) - HUGE
    release(block)
    session.close()


# ---- releases


@pytest.mark.parametrize("says", ["520.61.05", "610.43.03", "1.2"])
def test_a_release_that_is_not_known_is_refused_in_one_line(shared: Path, says: str) -> None:
    bench = bench_of(shared, says=says)
    with pytest.raises(AbiError, match=re.escape(says.replace(".0", ".")) + ": structures are known for 525 to 595"):
        bench.open()
    assert driver(bench).left() == 0
    assert bench.kernel.files == {}
    assert "UVM_INITIALIZE" not in bench.kernel.names()


def test_a_release_that_is_none(shared: Path) -> None:
    with pytest.raises(AbiError, match="not a release of the NVIDIA driver"):
        bench_of(shared, says="595; rm").open()


def test_a_release_that_nobody_tells(shared: Path) -> None:
    bench = bench_of(shared)
    driver(bench).status = {"NV_ESC_RM_CONTROL": 0x3A}
    with pytest.raises(AbiError, match="does not tell its release"):
        bench.open()
    assert driver(bench).left() == 0


@pytest.mark.parametrize(
    ("version", "says"), [("550.163.01", "545.29.06"), ("545.29.06", "550.163.01"), ("580.142", "595.45.04")]
)
def test_a_kernel_with_another_layout_is_found_out(shared: Path, version: str, says: str) -> None:
    """The larger structure is written behind the end of ours, the smaller one leaves our status untouched."""
    bench = bench_of(shared, version, says)
    session = bench.open()
    kernel = driver(bench)
    with pytest.raises(AbiError, match=r"UVM_\w+: the kernel's structure is not the one of \d+ bytes"):
        cycle(life(session, "vidmem"))
    session.close()
    assert kernel.files == {}


def test_a_minor_number_without_a_gpu(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nvidia, "nv_esc_card_info", lambda self, node, arg: None)
    bench = bench_of(shared)
    with pytest.raises(NoDeviceError, match="no GPU has the minor number 3"):
        bench.open()
    assert bench.kernel.files == {}


# ---- statuses


def every_status_fails(session: Session, kernel: Nvidia, name: str, call: str) -> None:
    before, files = kernel.left(), len(kernel.files)
    kernel.status = {call: 0x51}
    with pytest.raises(DriverStatus, match="NV_ERR_NO_MEMORY") as caught:
        acquire(life(session, name))
    kernel.status = {}
    error = caught.value
    assert (error.status, error.errno, error.filename) == (0x51, errno.ENOMEM, call)
    assert (kernel.left(), len(kernel.files)) == (before, files)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("vidmem", "NV_ESC_RM_ALLOC"),
        ("vidmem", "NV_ESC_RM_MAP_MEMORY"),
        ("vidmem", "UVM_CREATE_EXTERNAL_RANGE"),
        ("sysmem", "UVM_MAP_EXTERNAL_ALLOCATION"),
        ("host_map", "NV_ESC_RM_ALLOC_MEMORY"),
    ],
)
@pytest.mark.parametrize("version", ["525.147.05", "595.45.04"])
def test_the_status_decides_and_not_the_return_value(shared: Path, version: str, name: str, call: str) -> None:
    bench = bench_of(shared, version)
    session = bench.open()
    every_status_fails(session, driver(bench), name, call)
    assert bench.balanced()
    cycle(life(session, name))
    session.close()


@pytest.mark.parametrize("call", ["NV_ESC_RM_UNMAP_MEMORY", "UVM_UNMAP_EXTERNAL", "UVM_FREE", "NV_ESC_RM_FREE"])
def test_a_release_that_fails_says_so(shared: Path, call: str) -> None:
    bench = bench_of(shared)
    session = bench.open()
    block = acquire(life(session, "vidmem"))
    driver(bench).status = {call: 0x1F}
    said = []
    for stage in reversed(block.held):
        assert stage.release is not None
        try:
            stage.release(block)
        except DriverStatus as error:
            said.append((error.filename, error.name, error.errno))
    assert said == [(call, "NV_ERR_INVALID_ARGUMENT", errno.EINVAL)]
    assert bench.kernel.maps == 0
    assert [node.path for node in bench.kernel.files.values()].count(GPU) == 1  # the mapping's own file is closed
    driver(bench).status = {}
    session.close()
    assert bench.kernel.files == {}


@pytest.mark.parametrize("version", ["525.147.05", "595.45.04"])
def test_a_client_that_is_refused_before_the_release_is_known(shared: Path, version: str) -> None:
    bench = bench_of(shared, version)
    driver(bench).status = {"NV_ESC_RM_ALLOC": 0x1B}
    with pytest.raises(DeviceUnusable, match="NV_ESC_RM_ALLOC: NV_ERR_INSUFFICIENT_PERMISSIONS"):
        bench.open()
    assert bench.kernel.files == {}


@pytest.mark.parametrize(("status", "fine"), [(0x10006, True), (0x56, True), (0x51, False)])
def test_the_memory_notifier_may_be_unnecessary(shared: Path, status: int, fine: bool) -> None:
    bench = bench_of(shared)
    driver(bench).status = {"UVM_MM_INITIALIZE": status}
    if fine:
        bench.open().close()
    else:
        with pytest.raises(AccelError, match="UVM_MM_INITIALIZE: NV_ERR_NO_MEMORY"):
            bench.open()
    assert bench.kernel.files == {}
    assert driver(bench).left() == 0


def test_names_of_statuses_equal_the_table(shared: Path) -> None:
    known = {int(value, 16): name for name, value in table(shared, "nvidia")["status_codes"].items()}
    assert {status: status_name(status) for status in known} == known
    assert len(known) > 140
    for odd in (0x8D, 0x1000A, 0x20001, 0xFFFFFFFF, 0x10000):
        assert status_name(odd) == f"NV_STATUS {odd:#x}"


def test_every_status_has_an_errno() -> None:
    assert {rm.errno_of(status) for status in range(1, 0x8D)} >= {errno.EIO, errno.EINVAL, errno.EBUSY, errno.EPERM}
    assert [rm.errno_of(s) for s in (0x0F, 0x1A, 0x51, 0x56, 0x57, 0x65, 0xFFFF)] == [
        errno.ENODEV,
        errno.ENOSPC,
        errno.ENOMEM,
        errno.EOPNOTSUPP,
        errno.ENOENT,
        errno.ETIMEDOUT,
        errno.EIO,
    ]


# ---- Gaudi


class Gaudi(TableKernel):
    """habanalabs. Handles are numbers of its own; node.vms[0] has what is mapped."""

    def hl_memory(self, node: Node, arg: Arg) -> None:
        operation = arg["in.op"]
        ranges = node.vms.setdefault(0, {})
        if operation == 0:
            assert arg["in.alloc.page_size"] == 0
            arg["out.handle"] = node.take(arg["in.alloc.mem_size"])
        elif operation == 1:
            handle = arg["in.free.handle"]
            if any(held == handle for _, held in ranges.values()):
                raise refuse(errno.EBUSY)
            del node.handles[handle]
        elif operation == 2:
            self._hl_map(node, arg, ranges)
        elif ranges.pop(arg["in.unmap.device_virt_addr"], None) is None:
            raise refuse(errno.EINVAL)

    def _hl_map(self, node: Node, arg: Arg, ranges: dict[int, tuple[int, int]]) -> None:
        if arg["in.flags"]:
            assert arg["in.flags"] == 4
            size, handle = arg["in.map_host.mem_size"], 0
            poke(arg["in.map_host.host_virt_addr"], b"seen")
        else:
            handle = arg["in.map_device.handle"]
            size = node.handles[handle]
        address = max((a + n for a, (n, _) in ranges.items()), default=0x1000000)
        ranges[address] = (size, handle)
        arg["out.device_virt_addr"] = address

    def hl_cb(self, node: Node, arg: Arg) -> None:
        if arg["in.op"] == 1:
            del node.handles[arg["in.cb_handle"] >> 32]
            return
        assert PAGE <= arg["in.cb_size"] <= 0x1FFFE0
        arg["out.cb_handle"] = self.offset(node.take(0))

    def hl_info(self, node: Node, arg: Arg) -> None:
        assert (arg["op"], arg["return_size"]) == (2, 16)
        used = sum(node.handles.values())
        poke(arg["return_pointer"], ((1 << 34) - used).to_bytes(8, "little") + used.to_bytes(8, "little"))


def gaudi_bench(shared: Path) -> Bench:
    target = Target("t", "habanalabs", "habanalabs", ACCEL)
    return Bench(Gaudi(shared, {ACCEL: "habanalabs"}), habanalabs.MANIFEST, gaudi.MEMORY, target)


def test_gaudi_keeps_the_contract(shared: Path) -> None:
    bench = gaudi_bench(shared)
    checks = check_memory(bench.chip, bench.target, bench.env)
    assert {check.name: check.detail for check in checks if check.result == "fail"} == {}
    assert len([check for check in checks if check.result == "pass"]) > 15


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("device", [0, 2, 3, 1]),
        ("host_map", [2, 3]),
        ("command", ["HL_CB", "mmap", "munmap", "HL_CB"]),
    ],
)
def test_gaudi_makes_these_calls(shared: Path, name: str, calls: list[int | str]) -> None:
    bench = gaudi_bench(shared)
    session = bench.open()
    bench.kernel.calls.clear()
    cycle(life(session, name), 5000)
    made = [call.data[24] if call.name == "HL_MEMORY" else call.name for call in bench.kernel.calls]
    assert made == calls
    assert bench.kernel.left() == 0
    session.close()


def test_gaudi_counts_what_is_its_own(shared: Path) -> None:
    session = gaudi_bench(shared).open()
    read = {counter.name: counter.read for counter in session.counters()}
    block = acquire(life(session, "device"), 2 * PAGE)
    assert {name: count() for name, count in read.items()} == {"dram-context": 8192, "dram-free": (1 << 34) - 8192}
    release(block)
    assert read["dram-context"]() == 0
    host = acquire(life(session, "host_map"))
    assert host.map is not None
    assert bytes(host.map[:4]) == b"seen"
    release(host)
    session.close()


def test_gaudi_is_taken_by_name_only() -> None:
    assert habanalabs.MANIFEST.by_name_only
    assert UVM
