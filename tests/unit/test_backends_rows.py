"""The table-driven GEM back-end: every row against a stand-in of its driver that knows the table of ../shared/uapi."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import pytest

from accelctl.abi import registry
from accelctl.abi.conformance import check_memory
from accelctl.abi.gemrows import RowMemory
from accelctl.abi.lifecycle import NotOffered, Target
from accelctl.abi.manifest import Manifest
from accelctl.abi.rooms import in_tree
from accelctl.backends import gem_rows
from accelctl.backends.gem_rows.memory import MEMORY
from accelctl.errors import DeviceUnusable
from accelctl.hal.uapi.gem_table import ROWS
from tests.tablekernel import PAGE, Arg, Bench, Node, TableKernel, acquire, cycle, life, peek, poke, refuse, release

DRIVERS = [row.driver for row in ROWS]
NAMES = {"ivpu": "intel_vpu", "amdxdna": "amdxdna_accel_driver"}
"""What DRM_IOCTL_VERSION answers there (ivpu_drv.h, amdxdna_pci_drv.c)."""
NARROW = ["panfrost", "v3d", "lima", "rocket"]
GIB = 1 << 30
CREATE = {
    "panfrost": ("PANFROST_CREATE_BO", "size"),
    "panthor": ("PANTHOR_BO_CREATE", "size"),
    "msm": ("MSM_GEM_NEW", "size"),
    "v3d": ("V3D_CREATE_BO", "size"),
    "etnaviv": ("ETNAVIV_GEM_NEW", "size"),
    "lima": ("LIMA_GEM_CREATE", "size"),
    "ivpu": ("IVPU_BO_CREATE", "size"),
    "amdxdna": ("AMDXDNA_CREATE_BO", "size"),
    "qaic": ("QAIC_CREATE_BO", "size"),
    "nouveau": ("NOUVEAU_GEM_NEW", "info.size"),
    "rocket": ("ROCKET_CREATE_BO", "size"),
}


class Rows(TableKernel):
    """All drivers of the table. ``old``: without the calls that newer kernels brought."""

    old = False
    broken = 0

    @staticmethod
    def answers(driver: str) -> str:
        return NAMES.get(driver, driver)

    def make(self, node: Node, arg: Arg, address: str = "", size: str = "size", handle: str = "handle") -> int:
        assert arg[size] % PAGE == 0 < arg[size]
        arg[handle] = number = node.take(arg[size])
        if address:
            arg[address] = 0x100000 + (number << 20)
        return number

    def where(self, node: Node, arg: Arg, field: str = "offset") -> None:
        if arg["handle"] not in node.handles:
            raise refuse(errno.ENOENT)
        arg[field] = self.offset(arg["handle"])

    def panfrost_create_bo(self, node: Node, arg: Arg) -> None:
        self.make(node, arg, "offset")

    def panfrost_mmap_bo(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)

    def v3d_create_bo(self, node: Node, arg: Arg) -> None:
        self.make(node, arg, "offset")

    def v3d_mmap_bo(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)

    def lima_gem_create(self, node: Node, arg: Arg) -> None:
        self.make(node, arg)

    def lima_gem_info(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)
        arg["va"] = 0x200000

    def ivpu_bo_create(self, node: Node, arg: Arg) -> None:
        assert arg["flags"] & 2  # mappable
        self.make(node, arg, "vpu_addr")

    def ivpu_bo_create_from_userptr(self, node: Node, arg: Arg) -> None:
        if self.old:
            raise refuse(errno.EINVAL)
        assert arg["user_ptr"] % PAGE == 0
        poke(arg["user_ptr"], b"seen")
        self.make(node, arg, "vpu_addr")

    def ivpu_bo_info(self, node: Node, arg: Arg) -> None:
        self.where(node, arg, "mmap_offset")

    def qaic_create_bo(self, node: Node, arg: Arg) -> None:
        self.make(node, arg)

    def qaic_mmap_bo(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)

    def rocket_create_bo(self, node: Node, arg: Arg) -> None:
        arg["offset"] = self.offset(self.make(node, arg, "dma_address"))

    def etnaviv_gem_new(self, node: Node, arg: Arg) -> None:
        assert arg["flags"] == 0x20000
        self.make(node, arg)

    def etnaviv_gem_info(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)

    def etnaviv_gem_userptr(self, node: Node, arg: Arg) -> None:
        assert (arg["user_ptr"] % PAGE, arg["flags"]) == (0, 3)
        poke(arg["user_ptr"], b"seen")
        self.make(node, arg, size="user_size")

    def amdxdna_create_bo(self, node: Node, arg: Arg) -> None:
        heap = any(kind == 2 for _, kind in node.handles.values())
        if arg["type"] == 2 and (heap or self.old or arg["size"] > 64 << 20):
            raise refuse(errno.EBUSY if heap else errno.EINVAL)
        if arg["type"] == 3 and not heap:
            raise refuse(errno.EINVAL)
        assert arg["type"] in (1, 2, 3)
        arg["handle"] = node.take((arg["size"], arg["type"]))

    def amdxdna_get_bo_info(self, node: Node, arg: Arg) -> None:
        self.where(node, arg, "map_offset")
        arg["xdna_addr"] = 0x4000000
        if node.handles[arg["handle"]][1] == 3:
            arg["map_offset"] = (1 << 64) - 1

    def panthor_vm_create(self, node: Node, arg: Arg) -> None:
        assert arg["user_va_range"] == 4 * GIB
        node.vms[1] = {}
        arg["id"] = 1

    def panthor_vm_destroy(self, node: Node, arg: Arg) -> None:
        del node.vms[arg["id"]]

    def panthor_vm_get_state(self, node: Node, arg: Arg) -> None:
        assert arg["vm_id"] in node.vms
        arg["state"] = self.broken

    def panthor_bo_create(self, node: Node, arg: Arg) -> None:
        self.make(node, arg)

    def panthor_bo_mmap_offset(self, node: Node, arg: Arg) -> None:
        self.where(node, arg)

    def panthor_vm_bind(self, node: Node, arg: Arg) -> None:
        assert (arg["flags"], arg["ops.stride"], arg["ops.count"]) == (0, 48, 1)
        flags, handle, offset, va, size, *syncs = struct.unpack("<IIQQQIIQ", peek(arg["ops.array"], 48))
        assert (offset, syncs) == (0, [0, 0, 0])
        assert va + size <= 4 * GIB
        if flags == 0x10000000:
            assert handle == 0
            return node.unbind(va, size, arg["vm_id"])
        assert flags == 0
        assert handle in node.handles
        return node.bind(va, size, handle, arg["vm_id"])

    def msm_get_param(self, node: Node, arg: Arg) -> None:
        assert arg["pipe"] == 0x10
        if self.old:
            raise refuse(errno.EINVAL)
        arg["value"] = {14: 0x100000000, 15: 0x100000000}[arg["param"]]

    def msm_gem_new(self, node: Node, arg: Arg) -> None:
        self.make(node, arg)

    def msm_gem_info(self, node: Node, arg: Arg) -> None:
        handle = arg["handle"]
        if arg["info"] == 0:
            return self.where(node, arg, "value")
        assert arg["info"] == 4
        if handle not in node.handles:
            raise refuse(errno.ENOENT)
        if not arg["value"]:
            node.ranges = {a: entry for a, entry in node.ranges.items() if entry[1] != handle}
            return None
        assert 0x100000000 <= arg["value"] < 0x200000000
        return node.bind(arg["value"], node.handles[handle], handle)

    def nouveau_vm_init(self, node: Node, arg: Arg) -> None:
        if self.old or node.extra == "old interface":
            raise refuse(errno.ENOSYS)
        node.extra = (arg["kernel_managed_addr"], arg["kernel_managed_addr"] + arg["kernel_managed_size"])

    def nouveau_gem_new(self, node: Node, arg: Arg) -> None:
        assert arg["info.domain"] == 4 | 8
        node.extra = node.extra or "old interface"
        arg["info.map_handle"] = self.offset(self.make(node, arg, size="info.size", handle="info.handle"))

    def nouveau_vm_bind(self, node: Node, arg: Arg) -> None:
        assert (arg["op_count"], arg["flags"], arg["wait_count"], arg["sig_count"]) == (1, 0, 0, 0)
        op, _, handle, _, va, offset, size = struct.unpack("<IIIIQQQ", peek(arg["op_ptr"], 40))
        first, last = node.extra
        assert va + size <= first or va >= last
        assert offset == 0
        if op == 1:
            assert handle == 0
            return node.unbind(va, size)
        assert handle in node.handles
        return node.bind(va, size, handle)


def bench_of(shared: Path, driver: str, **knobs: Any) -> Bench:
    node = "/dev/accel/accel0" if driver in ("ivpu", "amdxdna", "qaic", "rocket") else "/dev/dri/renderD128"
    kernel = Rows(shared, {node: driver})
    for name, value in knobs.items():
        setattr(kernel, name, value)
    manifest = Manifest(name="row", title="a row", tier="table", address_space="user")
    return Bench(kernel, manifest, RowMemory(driver), Target("t", "row", driver, node))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_every_row_keeps_the_contract(shared: Path, driver: str, old: bool) -> None:
    bench = bench_of(shared, driver, old=old)
    checks = check_memory(bench.chip, bench.target, bench.env)
    assert {check.name: check.detail for check in checks if check.result == "fail"} == {}
    assert len([check for check in checks if check.result == "pass"]) > 8
    assert bench.balanced()


@pytest.mark.parametrize("driver", DRIVERS)
def test_sizes_arrive_whole(shared: Path, driver: str) -> None:
    bench = bench_of(shared, driver)
    session = bench.open()
    block = cycle(life(session, "object"), 5000)
    name, field = CREATE[driver]
    assert block.size == bench.kernel.last(name)[field] == 8192
    assert session.census() == {"gem-handles": 0}
    session.close()
    assert bench.kernel.files == {}


@pytest.mark.parametrize("driver", NARROW)
def test_a_size_beyond_32_bits_never_reaches_the_driver(shared: Path, driver: str) -> None:
    bench = bench_of(shared, driver)
    session = bench.open()
    bench.kernel.calls.clear()
    for size in (4 * GIB, 4 * GIB - 1, 5 * GIB):
        with pytest.raises(OSError, match="takes sizes of 32 bits") as caught:
            acquire(life(session, "object"), size)
        assert caught.value.errno == errno.EFBIG
    assert bench.kernel.calls == []
    assert life(session, "object").sizes.largest == 4 * GIB - PAGE
    session.close()


@pytest.mark.parametrize(
    ("driver", "calls"),
    [
        ("panthor", "BO_CREATE BO_MMAP_OFFSET mmap VM_BIND VM_BIND munmap GEM_CLOSE"),
        ("msm", "GEM_NEW GEM_INFO mmap GEM_INFO GEM_INFO munmap GEM_CLOSE"),
        ("nouveau", "GEM_NEW mmap VM_BIND VM_BIND munmap GEM_CLOSE"),
    ],
)
def test_rows_that_bind(shared: Path, driver: str, calls: str) -> None:
    bench = bench_of(shared, driver)
    session = bench.open()
    bench.kernel.calls.clear()
    for size in (PAGE, 5 * PAGE):
        cycle(life(session, "bound"), size)
    names = [name.removeprefix(f"{driver.upper()}_") for name in bench.kernel.names()]
    assert " ".join(names) == f"{calls} {calls}"
    assert bench.balanced()
    session.close()


def test_nouveau_takes_its_address_space_before_any_object(shared: Path) -> None:
    bench = bench_of(shared, "nouveau")
    session = bench.open()
    assert bench.kernel.names()[-1] == "NOUVEAU_VM_INIT"
    assert bench.kernel.last("NOUVEAU_VM_INIT").set() == {
        "kernel_managed_addr": 1 << 39,
        "kernel_managed_size": 1 << 39,
    }
    session.close()


@pytest.mark.parametrize("driver", ["nouveau", "msm"])
def test_a_kernel_without_address_spaces_says_so(shared: Path, driver: str) -> None:
    session = bench_of(shared, driver, old=True).open()
    assert "no address space of our own" in life(session, "bound").unsupported
    cycle(life(session, "object"))
    session.close()


def test_an_address_space_that_is_not_given_for_want_of_memory_is_a_failure(shared: Path) -> None:
    bench = bench_of(shared, "panthor")
    bench.kernel.fail = {"PANTHOR_VM_CREATE": errno.ENOMEM}
    with pytest.raises(DeviceUnusable, match="PANTHOR_VM_CREATE: Cannot allocate memory"):
        bench.open()
    assert bench.kernel.files == {}


def test_a_broken_address_space_is_a_number(shared: Path) -> None:
    bench = bench_of(shared, "panthor")
    session = bench.open()
    read = {counter.name: counter.read for counter in session.counters()}
    assert read["address-space-broken"]() == 0
    bench.kernel.broken = 1  # type: ignore[attr-defined]
    assert read["address-space-broken"]() == 1
    session.close()
    assert bench.kernel.names()[-1] == "PANTHOR_VM_DESTROY"


def test_objects_may_go_early_only_where_the_address_space_keeps_them(shared: Path) -> None:
    for driver, early in (("panthor", True), ("nouveau", True), ("msm", False)):
        session = bench_of(shared, driver).open()
        stages = {stage.name: stage for stage in life(session, "bound").stages}
        assert stages["object"].early is early, driver
        session.close()


@pytest.mark.parametrize("driver", ["etnaviv", "ivpu"])
def test_rows_that_take_our_pages(shared: Path, driver: str) -> None:
    bench = bench_of(shared, driver)
    session = bench.open()
    block = acquire(life(session, "host_map"))
    assert block.map is not None
    assert bytes(block.map[:4]) == b"seen"
    release(block)
    assert bench.kernel.left() == 0
    session.close()


def test_our_pages_on_a_kernel_that_does_not_take_them(shared: Path) -> None:
    session = bench_of(shared, "ivpu", old=True).open()
    with pytest.raises(NotOffered, match=r"no objects of our own pages: DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR"):
        acquire(life(session, "host_map"))
    session.close()


def test_amdxdna_makes_its_heap_first_and_frees_it_last(shared: Path) -> None:
    bench = bench_of(shared, "amdxdna")
    session = bench.open()
    heap = bench.kernel.last("AMDXDNA_CREATE_BO").set()
    assert heap == {"type": 2, "size": 64 << 20}
    block = cycle(life(session, "in_heap"))
    assert block.address == 0x4000000
    assert bench.kernel.last("AMDXDNA_CREATE_BO").set() == {"type": 3, "size": PAGE}
    assert bench.kernel.maps == 1
    assert session.census() == {"gem-handles": 0}  # the heap is the session's, and no leak
    session.close()
    assert (bench.kernel.maps, bench.kernel.files) == (0, {})


def test_amdxdna_without_a_heap(shared: Path) -> None:
    session = bench_of(shared, "amdxdna", old=True).open()
    assert life(session, "in_heap").unsupported.startswith("no heap: DRM_IOCTL_AMDXDNA_CREATE_BO")
    cycle(life(session, "object"))
    session.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_device_address_comes_where_the_row_says(shared: Path, driver: str) -> None:
    session = bench_of(shared, driver).open()
    block = acquire(life(session, "object"))
    given = {"panfrost": 0x200000, "v3d": 0x200000, "rocket": 0x200000, "ivpu": 0x200000, "lima": 0x200000}
    assert block.address == (0x4000000 if driver == "amdxdna" else given.get(driver, 0))
    release(block)
    session.close()


# ---- the chips


def test_every_row_belongs_to_one_chip() -> None:
    served = [driver for memory in MEMORY.values() for driver in memory._drivers]
    assert sorted([*served, "nouveau"]) == sorted(DRIVERS)  # nouveau's is the NVIDIA room's
    assert {manifest.name for manifest in gem_rows.MANIFESTS} == MEMORY.keys()
    assert MEMORY.keys() <= {room.name for room in in_tree()}


@pytest.mark.parametrize("name", [*MEMORY, "amdgpu", "intel_gpu", "nvidia", "habanalabs"])
def test_chips_pass_the_handshake(name: str) -> None:
    chip = registry.load(name)
    assert chip.memory is not None
    assert chip.manifest.proven == "unproven"
    assert chip.manifest.tier == ("table" if name in MEMORY else "unproven")


def test_the_wrong_driver_is_refused(shared: Path) -> None:
    kernel = Rows(shared, {"/dev/dri/renderD128": "lima"})
    with pytest.raises(DeviceUnusable, match="its driver is lima, not v3d"):
        Bench(kernel, gem_rows.MANIFESTS[0], MEMORY["v3d"], Target("t", "v3d", "v3d", "/dev/dri/renderD128")).open()
    assert kernel.files == {}
