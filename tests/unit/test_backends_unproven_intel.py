"""i915 and xe against a stand-in of their drivers: order, bytes, rollback, and answers that make no sense."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi.conformance import check_memory
from accelctl.abi.lifecycle import Target
from accelctl.backends.intel_gpu import MANIFEST, i915, xe
from accelctl.backends.intel_gpu.memory import MEMORY
from accelctl.errors import DeviceUnusable
from accelctl.hal.devfile import File
from tests.tablekernel import (
    PAGE,
    Arg,
    Bench,
    Node,
    TableKernel,
    acquire,
    cycle,
    life,
    peek,
    poke,
    refuse,
    release,
    table,
)

NODE = "/dev/dri/renderD128"
BIG = 65536
SYSTEM, CARD = 0, 1


class I915(TableKernel):
    """i915. ``card``: with memory of its own."""

    card = False
    modern = True

    def i915_query(self, node: Node, arg: Arg) -> None:
        structs = table(self.shared, "i915")["structs"]
        if not self.modern:
            raise refuse(errno.EINVAL)
        assert arg["num_items"] == 1
        item = Arg(structs, "struct drm_i915_query_item", bytearray(peek(arg["items_ptr"], 24)))
        kinds = [SYSTEM, CARD] if self.card else [SYSTEM]
        answer = struct.pack("<I12x", len(kinds))
        for kind in kinds:
            answer += struct.pack(
                "<HHIQQ64x", kind, 0, 0, 1 << 33, (1 << 33) - sum(s for s, k in node.handles.values() if k == kind)
            )
        if item["length"]:
            assert item["length"] == len(answer)
            poke(item["data_ptr"], answer)
        item["length"] = len(answer)
        poke(arg["items_ptr"], bytes(item.buffer))

    def i915_gem_create(self, node: Node, arg: Arg) -> None:
        arg["size"] = -(-arg["size"] // PAGE) * PAGE
        arg["handle"] = node.take((arg["size"], SYSTEM))

    def i915_gem_create_ext(self, node: Node, arg: Arg) -> None:
        structs = table(self.shared, "i915")["structs"]
        name = "struct drm_i915_gem_create_ext_memory_regions"
        chain = Arg(structs, name, bytearray(peek(arg["extensions"], structs[name]["sizeof"])))
        assert (chain["base.next_extension"], chain["base.name"], chain["num_regions"]) == (0, 0, 1)
        assert struct.unpack("<HH", peek(chain["regions"], 4)) == (CARD, 0)
        arg["size"] = -(-arg["size"] // BIG) * BIG
        arg["handle"] = node.take((arg["size"], CARD))

    def i915_gem_userptr(self, node: Node, arg: Arg) -> None:
        if arg["user_ptr"] % PAGE or arg["user_size"] % PAGE:
            raise refuse(errno.EINVAL)
        poke(arg["user_ptr"], b"seen")
        arg["handle"] = node.take((arg["user_size"], SYSTEM))

    def i915_gem_mmap_offset(self, node: Node, arg: Arg) -> None:
        if (arg["flags"] == 4) is not self.card:
            raise refuse(errno.ENODEV)
        arg["offset"] = self.offset(arg["handle"])


class Xe(TableKernel):
    """xe. ``coherent``: the first index of the page-attribute table that takes cached memory."""

    card = True
    coherent = 3
    bits = 48

    def xe_device_query(self, node: Node, arg: Arg) -> None:
        regions = struct.pack("<IIHHIQQ64x", 2 if self.card else 1, 0, SYSTEM, 0, PAGE, 1 << 34, 0)
        used = sum(size for size, place, _ in node.handles.values() if place == 2)
        regions += struct.pack("<HHIQQ64x", CARD, 1, BIG, 1 << 33, used) if self.card else b""
        config = struct.pack("<II4Q", 4, 0, 0x56A0, 1, PAGE, self.bits)
        answer = {1: regions, 2: config}[arg["query"]]
        if arg["size"]:
            assert arg["size"] == len(answer)
            poke(arg["data"], answer)
        arg["size"] = len(answer)

    def xe_vm_create(self, node: Node, arg: Arg) -> None:
        vm = next(n for n in range(1, 99) if n not in node.vms)
        node.vms[vm] = {}
        arg["vm_id"] = vm

    def xe_vm_destroy(self, node: Node, arg: Arg) -> None:
        if node.vms.pop(arg["vm_id"], None) is None:
            raise refuse(errno.ENOENT)

    def xe_gem_create(self, node: Node, arg: Arg) -> None:
        place, granule = arg["placement"], BIG if arg["placement"] == 2 else PAGE
        assert place in (1, 2)
        assert arg["flags"] == (4 if place == 2 else 0)  # NEEDS_VISIBLE_VRAM
        if arg["size"] % granule or (arg["vm_id"] and arg["vm_id"] not in node.vms):
            raise refuse(errno.EINVAL)
        if arg["cpu_caching"] != (2 if place == 2 else 1):  # VRAM: write-combined
            raise refuse(errno.EINVAL)
        arg["handle"] = node.take((arg["size"], place, arg["vm_id"]))

    def xe_gem_mmap_offset(self, node: Node, arg: Arg) -> None:
        arg["offset"] = self.offset(arg["handle"])

    def xe_vm_bind(self, node: Node, arg: Arg) -> None:
        assert (arg["num_binds"], arg["num_syncs"], arg["exec_queue_id"]) == (1, 0, 0)
        if arg["vm_id"] not in node.vms:
            raise refuse(errno.ENOENT)
        if arg["bind.op"] == 1:
            assert arg["bind.obj"] == 0
            return node.unbind(arg["bind.addr"], arg["bind.range"], arg["vm_id"])
        cached = arg["bind.op"] == 2
        if arg["bind.op"] == 0:
            size, place, vm = node.handles[arg["bind.obj"]]
            cached = place == 1
            assert size == arg["bind.range"]
            if vm not in (0, arg["vm_id"]):
                raise refuse(errno.EINVAL)
        else:
            assert arg["bind.obj"] == 0
            poke(arg["bind.userptr"], b"seen")
        if cached and arg["bind.pat_index"] < self.coherent:
            raise refuse(errno.EINVAL)
        return node.bind(arg["bind.addr"], arg["bind.range"], arg["bind.obj"], arg["vm_id"])


def bench_of(shared: Path, driver: str, **knobs: object) -> Bench:
    kernel = {"i915": I915, "xe": Xe}[driver](shared, {NODE: driver})
    for name, value in knobs.items():
        setattr(kernel, name, value)
    return Bench(kernel, MANIFEST, MEMORY, Target("t", "intel_gpu", driver, NODE))


@pytest.mark.parametrize(("driver", "card"), [("i915", False), ("i915", True), ("xe", False), ("xe", True)])
def test_intel_keeps_the_contract(shared: Path, driver: str, card: bool) -> None:
    bench = bench_of(shared, driver, card=card)
    checks = check_memory(bench.chip, bench.target, bench.env)
    assert {check.name: check.detail for check in checks if check.result == "fail"} == {}
    assert len([check for check in checks if check.result == "pass"]) > 15
    assert bench.balanced()


@pytest.mark.parametrize(
    ("driver", "name", "calls"),
    [
        ("i915", "system", "GEM_CREATE GEM_MMAP_OFFSET mmap munmap GEM_CLOSE"),
        ("i915", "local", "GEM_CREATE_EXT GEM_MMAP_OFFSET mmap munmap GEM_CLOSE"),
        ("i915", "host_map", "GEM_USERPTR GEM_CLOSE"),
        ("xe", "system", "VM_CREATE GEM_CREATE GEM_MMAP_OFFSET mmap VM_BIND VM_BIND munmap GEM_CLOSE VM_DESTROY"),
        ("xe", "vram", "VM_CREATE GEM_CREATE GEM_MMAP_OFFSET mmap VM_BIND VM_BIND munmap GEM_CLOSE VM_DESTROY"),
        ("xe", "shared_vm", "GEM_CREATE GEM_MMAP_OFFSET mmap VM_BIND VM_BIND munmap GEM_CLOSE"),
        ("xe", "host_map", "VM_BIND VM_BIND"),
    ],
)
def test_intel_makes_these_calls(shared: Path, driver: str, name: str, calls: str) -> None:
    bench = bench_of(shared, driver, card=True)
    session = bench.open()
    bench.kernel.calls.clear()
    before = bench.kernel.left()
    cycle(life(session, name), 3 * PAGE)
    names = [one.removeprefix("I915_").removeprefix("XE_") for one in bench.kernel.names()]
    assert " ".join(names) == calls
    assert bench.kernel.left() == before
    assert bench.balanced()
    session.close()


def test_i915_takes_what_the_driver_made_of_the_size(shared: Path) -> None:
    session = bench_of(shared, "i915", card=True).open()
    block = acquire(life(session, "local"), 5000)
    assert block.size == BIG
    assert block.map is not None
    assert len(block.map) == BIG
    release(block)
    session.close()


def test_i915_usage_that_is_hidden_is_said_to_be(shared: Path) -> None:
    """Without CAP_PERFMON the free size is the whole size: no number at all."""
    session = bench_of(shared, "i915", card=True).open()
    read = {counter.name: counter.read for counter in session.counters()}
    assert read.keys() == {"gem-handles", "system0-free", "local0-free"}
    with pytest.raises(ValueError, match="CAP_PERFMON"):
        read["local0-free"]()
    block = acquire(life(session, "local"), BIG)
    assert read["local0-free"]() == (1 << 33) - BIG
    release(block)
    session.close()


def test_an_old_i915_has_system_memory(shared: Path) -> None:
    session = bench_of(shared, "i915", modern=False).open()
    assert [one.name for one in session.lifecycles] == ["system", "host_map"]
    block = acquire(life(session, "host_map"))
    assert block.map is not None
    assert bytes(block.map[:4]) == b"seen"
    release(block)
    session.close()


def test_xe_bytes(shared: Path) -> None:
    bench = bench_of(shared, "xe")
    session = bench.open()
    kernel = bench.kernel
    block = acquire(life(session, "vram"), 5000)
    assert kernel.last("XE_GEM_CREATE").set() == {"size": BIG, "placement": 2, "flags": 4, "vm_id": 2, "cpu_caching": 2}
    bind = {"vm_id": 2, "num_binds": 1, "bind.obj": block.handle, "bind.range": BIG, "bind.addr": block.address}
    assert {**kernel.last("XE_VM_BIND").set(), **bind} == kernel.last("XE_VM_BIND").set()
    assert (kernel.last("XE_VM_BIND")["bind.pat_index"], kernel.last("XE_VM_BIND")["bind.op"]) == (0, 0)
    release(block)
    assert kernel.last("XE_VM_BIND")["bind.op"] == 1
    host = acquire(life(session, "host_map"), 5000)
    assert host.map is not None
    assert bytes(host.map[:4]) == b"seen"
    sent = kernel.last("XE_VM_BIND")
    assert (sent["bind.op"], sent["bind.obj"], sent["bind.userptr"]) == (2, 0, host.extra.address)
    assert (sent["bind.pat_index"], sent["vm_id"]) == (3, 1)
    release(host)
    assert session.census() == {"gem-handles": 0}
    session.close()
    assert kernel.names()[-1] == "XE_VM_DESTROY"


def test_xe_objects_outlive_their_handle(shared: Path) -> None:
    """The address space keeps them: closing the handle first is legal, and the unbind still finds its range."""
    bench = bench_of(shared, "xe")
    session = bench.open()
    for name in ("system", "shared_vm", "vram"):
        assert [stage.name for stage in life(session, name).stages if stage.early] == ["object"]
    session.close()


def test_xe_without_any_coherent_entry_is_refused(shared: Path) -> None:
    bench = bench_of(shared, "xe", coherent=99)
    with pytest.raises(DeviceUnusable, match="XE_VM_BIND: Invalid argument"):
        bench.open()
    assert bench.kernel.files == {}
    assert bench.kernel.names()[-2:] == ["GEM_CLOSE", "XE_VM_DESTROY"]


def test_xe_with_addresses_of_no_width_is_refused(shared: Path) -> None:
    bench = bench_of(shared, "xe", bits=200)
    with pytest.raises(DeviceUnusable, match="addresses of 200 bits"):
        bench.open()
    assert bench.kernel.files == {}


class _Answers(File):
    """A file whose queries answer these bytes."""

    def __init__(self, data: bytes) -> None:
        self.path, self.data = "xe", data

    def ioctl(self, number: int, argument: bytearray | int = 0) -> int:
        assert isinstance(argument, bytearray)
        size, pointer = struct.unpack_from("<IQ", argument, 12)
        if size:
            poke(pointer, self.data[:size])
        struct.pack_into("<I", argument, 12, len(self.data))
        return 0


@given(st.integers(0, 40), st.binary(max_size=400))
def test_any_answer_of_xe_is_regions_or_a_refusal(count: int, tail: bytes) -> None:
    for data in (tail, count.to_bytes(8, "little") + tail):
        try:
            found = xe.regions(_Answers(data))
        except ValueError:
            continue
        assert len(found) * 88 + 8 <= len(data)
        assert all(region.granule >= PAGE and region.instance < 32 for region in found)


@given(st.binary(max_size=64))
def test_any_configuration_of_xe_is_one_or_a_refusal(data: bytes) -> None:
    try:
        align, bits = xe.config(_Answers(data))
    except ValueError:
        return
    assert align >= PAGE
    assert 32 <= bits <= 57


def test_i915_regions_that_do_not_fit_are_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i915, "_query", lambda file, data, length: 16 if not data else poke(data, b"\2" + bytes(15)))
    with pytest.raises(ValueError, match="2 memory regions in 16 bytes"):
        i915.regions(_Answers(b""))
