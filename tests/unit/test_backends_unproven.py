"""amdgpu and KFD against a stand-in of their drivers: order, bytes, rollback, and successes that hide a failure."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.conformance import check_memory
from accelctl.abi.lifecycle import DriverStatus, NotOffered, Target
from accelctl.backends.amdgpu import MANIFEST, gem, kfd
from accelctl.backends.amdgpu.memory import MEMORY
from accelctl.errors import AbiError, AccelError, DeviceUnusable, UsageError
from accelctl.hal.devfile import DevFile, open_files
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree
from accelctl.hal.uapi import amdgpu
from tests.tablekernel import PAGE, Arg, Bench, Node, TableKernel, acquire, cycle, life, poke, refuse, release, table

RENDER, RENDER2, KFD = "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"
VRAM, GTT = 4, 2


class Amdgpu(TableKernel):
    """GEM of amdgpu and KFD. ``full``: VRAM is, so the kernel falls back; ``slow``: KFD maps on so many GPUs only."""

    full = False
    reach = 99
    acquired: dict[int, str]
    info: dict[str, int] = {  # noqa: RUF012
        "virtual_address_offset": 0x200000,
        "virtual_address_max": 0x800000000000,
        "virtual_address_alignment": 4096,
        "gart_page_size": 4096,
    }
    gpus: tuple[tuple[int, int, int], ...] = ((0x1234, 0x4000, (1 << 47) - 1),)

    def amdgpu_info(self, node: Node, arg: Arg) -> None:
        structs = table(self.shared, "amdgpu")["structs"]
        if arg["query"] != 0x16:
            assert arg["query"] in (0x10, 0x11, 0x17)
            assert arg["return_size"] == 8
            used = sum(
                size for size, domain in node.handles.values() if domain == (GTT if arg["query"] == 0x11 else VRAM)
            )
            return poke(arg["return_pointer"], used.to_bytes(8, "little"))
        answer = Arg(
            structs, "struct drm_amdgpu_info_device", bytearray(structs["struct drm_amdgpu_info_device"]["sizeof"])
        )
        for name, value in self.info.items():
            answer[name] = value
        return poke(arg["return_pointer"], bytes(answer.buffer[: arg["return_size"]]))

    def amdgpu_gem_create(self, node: Node, arg: Arg) -> None:
        size, domain = arg["in.bo_size"], arg["in.domains"]
        assert size % PAGE == 0
        if domain == VRAM and self.full:
            domain = VRAM | GTT
        arg.buffer[8:32] = bytes(24)  # the reply is a union with the question
        arg["out.handle"] = node.take((size, domain))

    def amdgpu_gem_op(self, node: Node, arg: Arg) -> None:
        assert arg["op"] == 0
        size, domains = node.handles[arg["handle"]]
        poke(arg["value"], b"".join(value.to_bytes(8, "little") for value in (size, PAGE, domains, 1)))

    def amdgpu_gem_mmap(self, node: Node, arg: Arg) -> None:
        arg["out.addr_ptr"] = self.offset(arg["in.handle"])

    def amdgpu_gem_va(self, node: Node, arg: Arg) -> None:
        if arg["handle"] not in node.handles:
            raise refuse(errno.ENOENT)
        if arg["operation"] == 1:
            if not 0x10000 <= arg["va_address"] < 0x800000000000:
                raise refuse(errno.EINVAL)
            node.bind(arg["va_address"], arg["map_size"], arg["handle"])
        else:
            node.unbind(arg["va_address"], arg["map_size"])

    def amdgpu_gem_userptr(self, node: Node, arg: Arg) -> None:
        assert arg["flags"] & 8  # AMDGPU_GEM_USERPTR_REGISTER
        if arg["addr"] % PAGE or arg["size"] % PAGE:
            raise refuse(errno.EINVAL)
        poke(arg["addr"], b"seen")
        arg["handle"] = node.take((arg["size"], GTT))

    def gem_close(self, node: Node, arg: Arg) -> None:
        super().gem_close(node, arg)
        node.ranges = {a: entry for a, entry in node.ranges.items() if entry[1] != arg["handle"]}

    def get_version(self, node: Node, arg: Arg) -> None:
        arg["major_version"], arg["minor_version"] = 1, 23

    def get_process_apertures_new(self, node: Node, arg: Arg) -> None:
        entry = table(self.shared, "kfd")["structs"]["struct kfd_process_device_apertures"]["sizeof"]
        for place, (gpu, base, limit) in enumerate(self.gpus[: arg["num_of_nodes"]]):
            one = Arg(table(self.shared, "kfd")["structs"], "struct kfd_process_device_apertures", bytearray(entry))
            one["gpu_id"], one["gpuvm_base"], one["gpuvm_limit"] = gpu, base, limit
            poke(arg["kfd_process_device_apertures_ptr"] + place * entry, bytes(one.buffer))
        arg["num_of_nodes"] = len(self.gpus)

    def acquire_vm(self, node: Node, arg: Arg) -> None:
        assert self.files[arg["drm_fd"]].driver == "amdgpu"
        assert arg["gpu_id"] in {gpu for gpu, _, _ in self.gpus}

    def alloc_memory_of_gpu(self, node: Node, arg: Arg) -> None:
        assert arg["va_addr"]
        handle = node.take({"gpus": set(), "flags": arg["flags"]}, 0)
        if arg["flags"] & 4:  # USERPTR: where our pages are comes in as the offset
            poke(arg["mmap_offset"], b"seen")
        arg["handle"], arg["mmap_offset"] = arg["gpu_id"] << 32 | handle, 0x7000 << 32 | handle << 12

    def mapped(self, node: Node, size: int, offset: int) -> None:
        if offset >> 44 != 7:
            return super().mapped(node, size, offset)
        assert node.driver == "amdgpu"
        return None

    def _gpu(self, node: Node, arg: Arg, change: Callable[[set[int], int], None]) -> None:
        thing = node.handles[arg["handle"] & 0xFFFFFFFF]
        assert arg["n_success"] == 0  # an input: where to start
        for place in range(arg["n_devices"]):
            if place >= self.reach:
                raise refuse(errno.ENOMEM)
            change(thing["gpus"], place)
            arg["n_success"] = place + 1

    def map_memory_to_gpu(self, node: Node, arg: Arg) -> None:
        self._gpu(node, arg, set.add)

    def unmap_memory_from_gpu(self, node: Node, arg: Arg) -> None:
        self._gpu(node, arg, set.discard)

    def free_memory_of_gpu(self, node: Node, arg: Arg) -> None:
        if node.handles[arg["handle"] & 0xFFFFFFFF]["gpus"]:
            raise refuse(errno.EBUSY)
        del node.handles[arg["handle"] & 0xFFFFFFFF]

    def available_memory(self, node: Node, arg: Arg) -> None:
        arg["available"] = 1 << 30


def amd(shared: Path, *others: str) -> Bench:
    kernel = Amdgpu(shared, {RENDER: "amdgpu", RENDER2: "amdgpu", KFD: "kfd"})
    return Bench(kernel, MANIFEST, MEMORY, Target("t", "amdgpu", "amdgpu", RENDER, others))


def compute(shared: Path, *renders: str, **options: str) -> Bench:
    kernel = Amdgpu(shared, {RENDER: "amdgpu", RENDER2: "amdgpu", KFD: "kfd"})
    return Bench(kernel, MANIFEST, MEMORY, Target("t", "amdgpu", "kfd", KFD, renders or (RENDER,)), **options)


def driver(bench: Bench) -> Amdgpu:
    assert isinstance(bench.kernel, Amdgpu)
    return bench.kernel


def failures(bench: Bench) -> dict[str, str]:
    checks = check_memory(bench.chip, bench.target, bench.env)
    assert len([check for check in checks if check.result == "pass"]) > 20
    return {check.name: check.detail for check in checks if check.result == "fail"}


@pytest.mark.parametrize("others", [(), (RENDER2,)], ids=["alone", "peer"])
def test_amdgpu_keeps_the_contract(shared: Path, others: tuple[str, ...]) -> None:
    bench = amd(shared, *others)
    assert failures(bench) == {}
    assert bench.balanced()


def test_kfd_keeps_the_contract(shared: Path) -> None:
    bench = compute(shared)
    assert failures(bench) == {}
    assert bench.balanced()


# ---- amdgpu


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("vram", "CREATE OP MMAP mmap VA VA munmap CLOSE"),
        ("gtt", "CREATE MMAP mmap VA VA munmap CLOSE"),
        ("host_map", "USERPTR VA VA CLOSE"),
        ("peer_map", "CREATE VA HANDLE_TO_FD FD_TO_HANDLE VA VA CLOSE VA CLOSE"),
    ],
)
def test_amdgpu_makes_these_calls(shared: Path, name: str, calls: str) -> None:
    bench = amd(shared, RENDER2)
    session = bench.open()
    bench.kernel.calls.clear()
    cycle(life(session, name), 3 * PAGE)
    names = [one.removeprefix("AMDGPU_").removeprefix("GEM_").removeprefix("PRIME_") for one in bench.kernel.names()]
    assert " ".join(names) == calls
    assert bench.kernel.left() == 0
    assert bench.balanced()
    session.close()


def test_amdgpu_bytes(shared: Path) -> None:
    bench = amd(shared)
    session = bench.open()
    block = acquire(life(session, "vram"), 5000)
    kernel = bench.kernel
    create = {"in.bo_size": 8192, "in.alignment": 4096, "in.domains": VRAM, "in.domain_flags": 1}
    found = kernel.last("AMDGPU_GEM_CREATE").set()
    assert {name: value for name, value in found.items() if name.startswith("in.")} == create
    mapping = {"handle": 1, "operation": 1, "flags": 14, "va_address": block.address, "map_size": 8192}
    assert kernel.last("AMDGPU_GEM_VA").set() == mapping
    assert block.address % 4096 == 0
    assert 0x200000 <= block.address < 0x800000000000
    release(block)
    assert kernel.last("AMDGPU_GEM_VA").set() == {**mapping, "operation": 2}
    host = acquire(life(session, "host_map"), 5000)
    assert host.map is not None
    assert bytes(host.map[:4]) == b"seen"  # the address in the structure is that of the pages
    assert kernel.last("AMDGPU_GEM_USERPTR").set() == {"addr": host.extra.address, "size": 8192, "flags": 12}
    release(host)
    session.close()


def test_vram_that_became_gtt_is_given_back(shared: Path) -> None:
    bench = amd(shared)
    session = bench.open()
    driver(bench).full = True
    with pytest.raises(OSError, match="asked for 4096 bytes of VRAM, got 4096 in domains 0x6") as caught:
        acquire(life(session, "vram"))
    assert caught.value.errno == errno.ENOMEM
    assert bench.kernel.left() == 0
    assert bench.balanced()
    cycle(life(session, "gtt"))
    session.close()


def test_no_object_goes_before_its_mapping(shared: Path) -> None:
    """GEM_CLOSE drops the mapping, and FREE is EBUSY: none of these stages is early."""
    for session in (amd(shared, RENDER2).open(), compute(shared).open()):
        mapped = [stages for _, stages, *_ in session.lifecycles if any(s.kind == "gpu_map" for s in stages)]
        assert mapped
        assert [s.name for stages in mapped for s in stages if s.kind == "handle" and s.early] == []
        session.close()


def test_amdgpu_counters(shared: Path) -> None:
    session = amd(shared).open()
    read = {counter.name: counter.read for counter in session.counters()}
    before = {name: count() for name, count in read.items()}
    assert before == {"gem-handles": 0, "vram-used": 0, "visible-vram-used": 0, "gtt-used": 0}
    blocks = [acquire(life(session, "vram"), 2 * PAGE), acquire(life(session, "gtt"), PAGE)]
    after = {name: count() for name, count in read.items()}
    assert after == {"gem-handles": 2, "vram-used": 8192, "visible-vram-used": 8192, "gtt-used": 4096}
    for block in blocks:
        release(block)
    assert session.census() == {"gem-handles": 0}
    session.close()


def test_another_driver_is_refused(shared: Path) -> None:
    kernel = Amdgpu(shared, {RENDER: "vgem"})
    with pytest.raises(DeviceUnusable, match="its driver is vgem, not amdgpu"):
        Bench(kernel, MANIFEST, MEMORY, Target("t", "amdgpu", "amdgpu", RENDER)).open()
    assert kernel.files == {}


@given(st.binary(min_size=424, max_size=424))
def test_any_device_info_is_a_window_or_a_refusal(data: bytes) -> None:
    size = amdgpu.INFO_DEVICE.size
    try:
        base, length, granule = gem.window(data.ljust(size, b"\0")[:size])
    except ValueError:
        return
    assert base > 0
    assert length > 0
    assert base % granule == length % granule == granule & (granule - 1) == 0


def test_an_odd_alignment_is_refused(shared: Path) -> None:
    bench = amd(shared)
    driver(bench).info = {**Amdgpu.info, "virtual_address_alignment": 12288}
    with pytest.raises(DeviceUnusable, match="alignment of device addresses is 12288"):
        bench.open()
    assert bench.kernel.files == {}


# ---- KFD


def test_kfd_makes_these_calls(shared: Path) -> None:
    bench = compute(shared)
    session = bench.open()
    opening = "VERSION GET_VERSION GET_PROCESS_APERTURES_NEW GET_PROCESS_APERTURES_NEW VERSION ACQUIRE_VM"
    assert bench.kernel.names() == opening.split()[1:]
    bench.kernel.calls.clear()
    block = cycle(life(session, "gtt"), 2 * PAGE)
    stages = "ALLOC_MEMORY_OF_GPU mmap MAP_MEMORY_TO_GPU UNMAP_MEMORY_FROM_GPU munmap FREE_MEMORY_OF_GPU"
    assert bench.kernel.names() == stages.split()
    flags = 0x80000000 | 0x10000000 | 0x4000000 | 2  # writable, no substitute, coherent, GTT
    alloc = bench.kernel.last("ALLOC_MEMORY_OF_GPU")
    assert alloc.set() == {"va_addr": alloc["va_addr"], "size": 8192, "gpu_id": 0x1234, "flags": flags}
    assert 0x4000 <= alloc["va_addr"] < 1 << 47
    mapping = bench.kernel.last("MAP_MEMORY_TO_GPU")
    assert (mapping["handle"], mapping["n_devices"], mapping["n_success"]) == (block.handle, 1, 0)
    assert bench.kernel.left() == 0
    assert bench.balanced()
    session.close()
    assert open_files() == {}


def test_kfd_takes_our_pages(shared: Path) -> None:
    bench = compute(shared)
    session = bench.open()
    block = acquire(life(session, "host_map"))
    assert block.map is not None
    assert bytes(block.map[:4]) == b"seen"
    assert bench.kernel.last("ALLOC_MEMORY_OF_GPU")["flags"] & 7 == 4
    release(block)
    session.close()


def two(shared: Path) -> Bench:
    bench = compute(shared, RENDER, RENDER2)
    driver(bench).gpus = ((7, 0x4000, (1 << 47) - 1), (8, 0x8000, (1 << 46) - 1))
    return bench


def test_a_map_that_reaches_one_of_two_gpus_is_undone(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfd, "_choose", _in_order)
    bench = two(shared)
    session = bench.open()
    cycle(life(session, "peer_map"))
    bench.kernel.calls.clear()
    driver(bench).reach = 1
    with pytest.raises(OSError, match="Cannot allocate memory"):
        acquire(life(session, "peer_map"))
    stages = "ALLOC_MEMORY_OF_GPU mmap MAP_MEMORY_TO_GPU UNMAP_MEMORY_FROM_GPU munmap FREE_MEMORY_OF_GPU"
    assert bench.kernel.names() == stages.split()
    assert bench.kernel.last("MAP_MEMORY_TO_GPU")["n_devices"] == 2
    assert bench.kernel.last("UNMAP_MEMORY_FROM_GPU")["n_devices"] == 1
    assert bench.kernel.left() == 0
    assert bench.balanced()
    assert all(space.base + space.size <= 1 << 46 for space in bench.spaces)  # addresses that both have
    session.close()


def _in_order(known: list[kfd.Gpu], render: DevFile, options: str) -> kfd.Gpu:
    return known[render.path == RENDER2]


@pytest.mark.parametrize("name", ["MAP_MEMORY_TO_GPU", "UNMAP_MEMORY_FROM_GPU"])
def test_a_call_that_says_0_and_did_nothing(shared: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = compute(shared)
    session = bench.open()
    block = acquire(life(session, "vram"), depth=3)
    mapping = life(session, "vram").stages[3]
    if name.startswith("UNMAP"):
        mapping.acquire(block)
    monkeypatch.setattr(Amdgpu, name.lower(), lambda self, node, arg: None)
    with pytest.raises(DriverStatus, match="done on 0 of 1 GPUs") as caught:
        mapping.acquire(block) if name.startswith("MAP") else mapping.release(block)  # type: ignore[misc]
    assert caught.value.status == 0
    monkeypatch.undo()
    if name.startswith("UNMAP"):
        mapping.release(block)  # type: ignore[misc]
    release(block)
    assert bench.kernel.left() == 0
    session.close()


def test_vram_behind_a_small_bar_is_not_offered(shared: Path) -> None:
    bench = compute(shared)
    session = bench.open()
    bench.kernel.fail = {"ALLOC_MEMORY_OF_GPU": errno.EINVAL}
    with pytest.raises(NotOffered, match="BAR is too small"):
        acquire(life(session, "vram"))
    with pytest.raises(OSError, match="Invalid argument") as caught:
        acquire(life(session, "gtt"))
    assert not isinstance(caught.value, NotOffered)
    assert bench.balanced()
    session.close()


def refused(bench: Bench, kind: type[AccelError], says: str) -> None:
    with pytest.raises(kind, match=says):
        bench.open()
    assert bench.kernel.files == {}


def test_kfd_refusals(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Bench(amd(shared).kernel, MANIFEST, MEMORY, Target("t", "amdgpu", "kfd", KFD))
    monkeypatch.setattr(kfd, "_topology", dict)
    refused(alone, UsageError, "render node of a GPU")
    monkeypatch.setattr(kfd, "_topology", lambda: {128: 0x1234, 129: 7})
    alone.open().close()
    assert f"open {RENDER}" in [call.name for call in alone.kernel.calls]
    busy = compute(shared)
    busy.kernel.fail = {"ACQUIRE_VM": errno.EBUSY}
    refused(busy, DeviceUnusable, "by another file, until it ends")
    refused(compute(shared, gpu_id="0x99"), DeviceUnusable, "which of them this is cannot be told")
    monkeypatch.setattr(Amdgpu, "get_version", lambda self, node, arg: arg.put("major_version", b"\x02"))
    refused(compute(shared), AbiError, "interface is version 2")


def test_a_render_node_is_found_in_the_topology(tmp_path: Path) -> None:
    nodes = tmp_path / kfd.TOPOLOGY
    for number, (gpu, properties) in enumerate(
        [
            ("0", "simd_count 0\ndrm_render_minor 0"),
            ("51234", "simd_count 8\ndrm_render_minor 129"),
            ("x", "drm_render_minor"),
        ]
    ):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(gpu + "\n")
        (nodes / str(number) / "properties").write_text(properties + "\n")
    assert kfd.render_minors(SysRoot(DirTree(str(tmp_path)))) == {129: 51234}
