"""What each family of the fake driver refuses, keeps and forgets; structures by hand, as in ../shared/uapi."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from array import array

import pytest

from tests.fake import FakeError, FakeMachine
from tests.fake import nvtables as nv
from tests.fake.machine import NAMES
from tests.fake.tables import table
from tests.fakekit import FLAGS, PAGE, refused


class File:
    """An open node, and its calls by hand."""

    def __init__(self, m: FakeMachine, path: str) -> None:
        self.m, self.fd = m, m.open(path, FLAGS)

    def __call__(self, number: int, form: str, *values: int | bytes) -> tuple[int, ...]:
        argument = bytearray(struct.pack(form, *values))
        self.m.ioctl(self.fd, number, argument)
        return struct.unpack(form, argument)

    def close(self) -> None:
        self.m.close(self.fd)


@pytest.mark.parametrize("name", NAMES)
def test_each_driver_opens_and_closes(name: str) -> None:
    with FakeMachine(name) as m:
        m.close(m.open(m.target("any").node, FLAGS))
        assert not m.dropped


# ---- KFD


def kfd_memory(kfd: File, address: int = 1 << 33, flags: int = 0x80000002) -> tuple[int, int]:
    answer = kfd(0xC0284B16, "<4QII", address, 2 * PAGE, 0, 0, 0x1000, flags)
    return answer[2], answer[3]


def kfd_map(kfd: File, handle: int, *ids: int, first: int = 0, number: int = 0xC0184B18) -> int:
    gpus = array("I", ids)
    return kfd(number, "<QQII", handle, gpus.buffer_info()[0], len(ids), first)[3]


def test_kfd() -> None:
    unmap = 0xC0184B19
    with FakeMachine("kfd", gpus=2) as m:
        kfd, one, two = File(m, "/dev/kfd"), File(m, "/dev/dri/renderD128"), File(m, "/dev/dri/renderD129")
        refused(errno.ENODEV, kfd_memory, kfd)
        refused(errno.EINVAL, kfd, 0x40084B15, "<II", two.fd, 0x1000)
        kfd(0x40084B15, "<II", one.fd, 0x1000)
        kfd(0x40084B15, "<II", two.fd, 0x1111)
        again = File(m, "/dev/dri/renderD128")
        refused(errno.EBUSY, kfd, 0x40084B15, "<II", again.fd, 0x1000)
        refused(errno.EINVAL, kfd_memory, kfd, 1 << 33, 3)  # VRAM and GTT
        refused(errno.EINVAL, kfd_memory, kfd, (1 << 33) + 1)
        handle, offset = kfd_memory(kfd)
        assert handle == 0x1000 << 32
        mapping = m.map(one.fd, 2 * PAGE, offset)
        m.partial("UNMAP_MEMORY_FROM_GPU", done=1)
        m.partial("MAP_MEMORY_TO_GPU", done=1, nth=2, error=errno.ENOMEM)
        assert kfd_map(kfd, handle, 0x1000, 0x1111) == 2
        refused(errno.EBUSY, kfd, 0x40084B17, "<Q", handle)
        assert kfd_map(kfd, handle, 0x1000, 0x1111, number=unmap) == 1  # success that hides half a failure
        refused(errno.EBUSY, kfd, 0x40084B17, "<Q", handle)
        assert kfd_map(kfd, handle, 0x1000, 0x1111, first=1, number=unmap) == 2
        refused(errno.ENOMEM, kfd_map, kfd, handle, 0x1000, 0x1111)
        assert not m.oddities
        kfd_map(kfd, handle, 0x1000, number=unmap)
        kfd_map(kfd, handle, 0x1000, number=unmap)
        assert len(m.oddities) == 1
        kfd(0x40084B17, "<Q", handle)
        m.unmap(mapping)
        refused(errno.EINVAL, kfd, 0x40084B17, "<Q", handle)
        kept, _ = kfd_memory(kfd)
        kfd_map(kfd, kept, 0x1000)
        for file in (kfd, one, two, again):
            file.close()
        assert m.census() == {"object": 1, "mapping on the device": 1}  # the process has them, not the files
        m.new_process()
        assert not m.leftovers()


# ---- xe, and what keeps addresses as it does


def xe_bind(xe: File, vm: int, handle: int, address: int, op: int = 0, pat: int = 3, size: int = PAGE) -> None:
    one = struct.pack("<QIHHQQQIIII24x", 0, handle, pat, 0, 0, size, address, op, 0, 0, 0)
    xe(0x40886445, "<QIIII80sIIQ16x", 0, vm, 0, 0, 1, one, 0, 0, 0)


def test_xe_keeps_alive_what_is_bound() -> None:
    with FakeMachine("xe") as m:
        xe = File(m, "/dev/dri/renderD128")
        vm = xe(0xC0206443, "<QII16x", 0, 0, 0)[2]
        create = "<QQIIIIHHHH16x"
        refused(errno.EINVAL, xe, 0xC0386441, create, 0, PAGE, 2, 0, 0, 0, 1, 0, 0, 0)  # VRAM, cached
        refused(errno.EINVAL, xe, 0xC0386441, create, 0, PAGE, 4, 0, 0, 0, 2, 0, 0, 0)  # no such region
        refused(errno.EINVAL, xe, 0xC0386441, create, 0, PAGE, 1, 0, 0, 9, 1, 0, 0, 0)  # handle that came in
        refused(errno.ENOENT, xe, 0xC0386441, create, 0, PAGE, 1, 0, 9, 0, 1, 0, 0, 0)
        handle = xe(0xC0386441, create, 0, 4 * PAGE, 1, 0, vm, 0, 1, 0, 0, 0)[5]
        refused(errno.EPERM, xe, 0xC00C642D, "<IIi", handle, 0x80002, 0)  # belongs to an address space
        refused(errno.EINVAL, xe_bind, xe, vm, handle, 0, 0, 0)  # page attributes that are not coherent
        refused(errno.EINVAL, xe_bind, xe, vm, handle, 0, 0, 99)
        refused(errno.EINVAL, xe_bind, xe, vm, handle, PAGE, 1)  # unbind names no object
        refused(errno.EINVAL, xe_bind, xe, vm, handle, 0, 0, 3, 5 * PAGE)
        refused(errno.ENOENT, xe_bind, xe, 9, handle, 0)
        xe_bind(xe, vm, handle, 1 << 20, size=4 * PAGE)
        xe(0x40086409, "<II", handle, 0)
        assert m.census()["object"] == 1
        xe_bind(xe, vm, 0, (1 << 20) + PAGE, 1)  # one page out of the middle: the rest stays
        assert (m.census()["mapping on the device"], m.oddities) == (2, [])
        xe_bind(xe, vm, 0, 1 << 30, 1)
        assert len(m.oddities) == 1
        xe(0x40186444, "<II16x", vm, 0)
        assert not m.alive
        xe.close()
        assert not m.dropped


def test_nouveau_has_the_old_interface_for_good_after_the_first_object() -> None:
    new, init = ("<IIQQQIIII", (0, 4, PAGE, 0, 0, 0, 0, 0, 0)), (0xC0106450, "<QQ", 1 << 39, 1 << 39)
    with FakeMachine("nouveau") as m:
        one, two = File(m, m.node), File(m, m.node)
        one(0xC0306480, new[0], *new[1])
        refused(errno.ENOSYS, one, *init)
        two(*init)
        refused(errno.EBUSY, two, *init)
        assert two(0xC0306480, new[0], *new[1])[0] == 1
        for file in (one, two):
            file.close()


def test_v3d_has_one_address_space_for_all() -> None:
    with FakeMachine("v3d") as m:
        one, two = File(m, m.node), File(m, m.node)
        addresses = [file(0xC0106442, "<4I", PAGE, 0, 0, 0)[3] for file in (one, two, one)]
        assert len(set(addresses)) == 3
        refused(errno.EINVAL, one, 0xC0106442, "<4I", PAGE, 1, 0, 0)
        refused(errno.EINVAL, one, 0xC0106443, "<IIQ", 1, 1, 0)
        for file in (one, two):
            file.close()
        assert len(m.dropped) == 6
    with FakeMachine("v3d", gtt=1 << 34) as m:
        one = File(m, m.node)
        for _ in range(3):
            one(0xC0106442, "<4I", 1 << 30, 0, 0, 0)
        refused(errno.ENOSPC, one, 0xC0106442, "<4I", 1 << 30, 0, 0, 0)
        one(0x40086409, "<II", 1, 0)
        one(0xC0106442, "<4I", 1 << 30, 0, 0, 0)
        one.close()


# ---- habanalabs


def test_habanalabs() -> None:
    with FakeMachine("habanalabs", vram=8 << 20) as m:
        hl = File(m, "/dev/accel/accel0")
        refused(errno.EBUSY, m.open, "/dev/accel/accel0", FLAGS)

        def memory(a: int, b: int, c: int, op: int, flags: int = 0) -> int:
            return hl(0xC0286444, "<3Q4I", a, b, c, op, flags, 0, 0)[0]

        handle = memory(4 << 20, 0, 0, 0)
        refused(errno.ENOMEM, memory, 8 << 20, 0, 0, 0)
        address = memory(0, handle, 0, 2)
        refused(errno.EINVAL, memory, handle, 0, 0, 1)  # mapped
        refused(errno.EINVAL, memory, address + PAGE, 0, 0, 3)
        memory(address, 0, 0, 3)
        memory(handle, 0, 0, 1)
        refused(errno.EINVAL, memory, handle, 0, 0, 1)
        refused(errno.EINVAL, memory, PAGE, 0, 0, 9)
        buffer = hl(0xC0186441, "<Q4I", 0, 0, PAGE, 0, 0)[0]
        mapping = m.map(hl.fd, PAGE, buffer)
        m.unmap(mapping)
        hl(0xC0186441, "<Q4I", buffer, 1, 0, 0, 0)
        assert not m.alive
        hl.close()


# ---- NVIDIA


@pytest.mark.parametrize("release", ["525.147.05", "535.288.01", "550.40.07", "550.163.01", "580.142", "595.45.04"])
def test_sizes_of_releases(release: str) -> None:
    """What the notes and the table say of them; 550.40.07 is before a change inside its major version."""
    which = nv.release_of(release)
    assert nv.layout("NVOS21_PARAMETERS", which).fields["status"].offset == (24 if which < (535,) else 28)
    assert nv.layout("NVOS64_PARAMETERS", which).size == (40 if which < (535,) else 48)
    external = nv.layout("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", which)
    old = which < (550, 40, 53)
    assert (external.size, external.fields["rmStatus"].offset) == ((1200, 1196) if old else (9264, 9260))
    assert nv.layout("UVM_FREE_PARAMS", which).size == (24 if which < (590,) else 16)
    assert len(nv.escapes(which)) >= 11
    assert ("UVM_MM_INITIALIZE" in {call.name for call in nv.uvm_calls(which).values()}) is (which >= (535,))


class Rm(File):
    """A control file of 595 and a client."""

    def __init__(self, m: FakeMachine) -> None:
        super().__init__(m, "/dev/nvidiactl")
        self.client = self(0xC020462B, "<IIIIQII", 0, 0, 0, 0x41, 0, 0, 0)[2]

    def alloc(self, parent: int, kind: int, params: bytes, size: int = 0) -> tuple[int, int]:
        held = array("B", params)
        values = (self.client, parent, 0, kind, held.buffer_info()[0], 0, size, 0, 0)
        answer = self(0xC030462B, "<IIIIQQIII4x", *values)
        return answer[2], answer[8]

    def memory(self, parent: int, size: int = PAGE) -> tuple[int, int]:
        made = table("nvidia").layout("NV_MEMORY_ALLOCATION_PARAMS")
        return self.alloc(parent, 0x40, bytes(made.pack(owner=self.client, size=size, alignment=PAGE)), made.size)

    def free(self, handle: int) -> int:
        return self(0xC0104629, "<4I", self.client, self.client, handle, 0)[3]


def test_rm_has_a_tree_and_says_statuses() -> None:
    with FakeMachine("nvidia", vram=1 << 20) as m:
        rm = Rm(m)
        device, status = rm.alloc(rm.client, 0x80, struct.pack("<4I40x", 2, rm.client, 0, 0), 56)
        assert (device > 0, status) == (True, 0)
        assert rm.alloc(rm.client, 0x80, bytes(56), 48)[1] == nv.status("INVALID_PARAM_STRUCT")
        assert rm.alloc(77, 0x80, bytes(56), 56)[1] == nv.status("OBJECT_NOT_FOUND")
        memory, status = rm.memory(device)
        assert status == 0
        assert rm.memory(device, 1 << 20)[1] == nv.status("NO_MEMORY")
        m.fail("RM_FREE", error=nv.status("IN_USE"))
        assert rm.free(memory) == nv.status("IN_USE")
        m.fail("RM_FREE", error=-errno.EIO)
        refused(errno.EIO, rm.free, memory)
        assert m.census()["RM object"] == 3
        m.swallow("RM_FREE", every=1)
        assert rm.free(memory) == 0
        m.calm()
        assert m.census()["RM object"] == 3
        assert rm.free(device) == 0  # and what is below it
        assert m.census()["RM object"] == 1
        assert rm.free(memory) == nv.status("OBJECT_NOT_FOUND")
        rm.close()
        assert len(m.dropped) == 1


def test_rm_maps_in_a_file_of_its_own() -> None:
    with FakeMachine("nvidia") as m:
        rm, gpu = Rm(m), File(m, "/dev/nvidia0")
        device, _ = rm.alloc(rm.client, 0x80, struct.pack("<I52x", 2), 56)
        memory, _ = rm.memory(device, 2 * PAGE)
        ask = (rm.client, device, memory, 0, 0, 2 * PAGE, 0, 0, 0)
        call, form = 0xC038464E, "<4IQQQIIi4x"
        assert rm(call, form, *ask, rm.fd)[7] == nv.status("INVALID_ARGUMENT")  # the wrong node
        refused(errno.EINVAL, gpu, call, form, *ask, gpu.fd)
        answer = rm(call, form, *ask, gpu.fd)
        assert answer[7] == 0
        assert rm(call, form, *ask, gpu.fd)[7] == nv.status("STATE_IN_USE")
        refused(errno.EINVAL, m.map, gpu.fd, PAGE, 0)  # not the whole
        mapping = m.map(gpu.fd, 2 * PAGE, 0)
        unmap = (0xC020464F, "<4IQII", rm.client, device, memory, 0)
        assert rm(*unmap, 0x1234, 0, 0)[5] == nv.status("OBJECT_NOT_FOUND")
        assert rm(*unmap, answer[6], 0, 0)[5] == 0
        m.unmap(mapping)
        gpu.close()
        rm.free(rm.client)
        assert not m.alive
        rm.close()


def test_wrong_sizes_of_nvidia_are_loud() -> None:
    m = FakeMachine("nvidia", release="525.147.05")
    control, uvm = File(m, "/dev/nvidiactl"), File(m, "/dev/nvidia-uvm")
    with pytest.raises(FakeError, match=r"48 bytes; \(525, 147, 5\) has sizes \[32, 40\]"):
        control(0xC030462B, "<48s", bytes(48))
    with pytest.raises(FakeError, match="copies 1200 bytes"):
        uvm(33, "<1199s", bytes(1199))
    with pytest.raises(FakeError, match="no call 0x4b"):
        uvm(75, "<8s", bytes(8))
    m.finish()


def test_uvm_wants_to_be_initialized_and_keeps_ranges() -> None:
    with FakeMachine("nvidia") as m:
        uvm = File(m, "/dev/nvidia-uvm")

        def create(base: int, size: int) -> int:
            return uvm(73, "<QQI4x", base, size, 0)[2]

        assert create(1 << 30, PAGE) == nv.status("ILLEGAL_ACTION")
        assert uvm(0x30000001, "<QI4x", 0, 99)[1] == 0
        assert create(1 << 30, 4 * PAGE) == 0
        assert create((1 << 30) + PAGE, PAGE) == nv.status("UVM_ADDRESS_IN_USE")
        assert create(1 << 31, PAGE + 1) == nv.status("INVALID_ADDRESS")
        assert uvm(34, "<QI4x", 1 << 31, 0)[1] == nv.status("INVALID_ADDRESS")
        assert uvm(34, "<QI4x", 1 << 30, 0)[1] == 0
        assert not m.alive
        uvm.close()


# ---- no DRM


def test_a_lost_reply_of_dma_heap_leaves_nothing() -> None:
    with FakeMachine("dma_heap") as m:
        heap = File(m, "/dev/dma_heap/system")
        ask = (0xC0184800, "<QIIQ", PAGE, 0, os.O_RDWR | os.O_CLOEXEC, 0)
        m.lose_reply("DMA_HEAP_IOCTL_ALLOC")
        refused(errno.EFAULT, heap, *ask)
        assert not m.alive
        fd = heap(*ask)[1]
        refused(errno.EINVAL, heap, 0xC0184800, "<QIIQ", PAGE, fd, os.O_RDWR | os.O_CLOEXEC, 0)
        refused(errno.EINVAL, heap, 0xC0184800, "<QIIQ", PAGE, 0, os.O_RDWR | os.O_CLOEXEC, 1)
        m.close(fd)
        heap.close()


def test_udmabuf_wants_the_right_seals_and_pins_the_pages() -> None:
    with FakeMachine("udmabuf") as m:
        node = File(m, "/dev/udmabuf")
        good, bad = m.memfd("good", 2 * PAGE, 2), m.memfd("bad", PAGE, 0)

        def make(fd: int, size: int) -> int:
            return m.ioctl(node.fd, 0x40187542, bytearray(struct.pack("<IIQQ", fd, 1, 0, size)))

        refused(errno.EINVAL, make, bad, PAGE)
        refused(errno.EINVAL, make, good, 3 * PAGE)
        refused(errno.EBADF, make, node.fd, PAGE)
        fd = make(good, 2 * PAGE)
        os.pwrite(good, b"abc", PAGE)
        m.close(good)
        mapping = m.map(fd, 2 * PAGE, 0)
        assert mapping[PAGE : PAGE + 3] == b"abc"
        m.unmap(mapping)
        for one in (fd, bad, node.fd):
            m.close(one)


def pages() -> tuple[mmap.mmap | array[int], int]:
    held = array("B", bytes(3 * PAGE))
    return held, -(-held.buffer_info()[0] // PAGE) * PAGE


def test_vfio() -> None:
    held, where = pages()
    with FakeMachine("vfio", slots=1) as m:
        box, group = File(m, "/dev/vfio/vfio"), File(m, "/dev/vfio/7")

        def into(at: int, va: int = where) -> int:
            return box(0x3B71, "<IIQQQ", 32, 3, va, at, PAGE)[0]

        def out(at: int, size: int = PAGE, flags: int = 0) -> int:
            return box(0x3B72, "<IIQQ", 24, flags, at, size)[3]

        refused(errno.EINVAL, m.ioctl, box.fd, 0x3B66, 3)  # no group yet
        refused(errno.EBUSY, m.open, "/dev/vfio/7", FLAGS)
        group(0x3B68, "<i", box.fd)
        refused(errno.EINVAL, into, 0)
        m.ioctl(box.fd, 0x3B66, 3)
        refused(errno.EINVAL, into, 0xFEE00000)  # not usable
        refused(errno.EFAULT, into, 0, PAGE)
        into(0)
        refused(errno.EEXIST, into, 0)
        refused(errno.ENOSPC, into, PAGE)
        refused(errno.EINVAL, box, 0x3B71, "<IIQQQ", 31, 3, where, PAGE, PAGE)  # argsz
        assert out(PAGE) == 0  # nothing there is no error
        m.partial("UNMAP_DMA", done=0)
        assert out(0) == 0
        assert m.census()["mapping on the device"] == 1
        refused(errno.EINVAL, out, PAGE, PAGE, 9)
        assert out(0) == PAGE
        into(0)
        assert out(0, 0, 2) == PAGE
        into(0)
        m.ioctl(group.fd, 0x3B69, 0)
        assert not m.alive  # with the group went the IOMMU
        group.close()
        box.close()
    with pytest.raises(FakeError, match="never to be called"), FakeMachine("vfio") as m:
        m.ioctl(m.open("/dev/vfio/7", FLAGS), 0x3B6A, bytearray(16))
    del held


def test_iommufd() -> None:
    held, where = pages()
    with FakeMachine("iommufd") as m:
        node = File(m, "/dev/iommu")

        def alloc() -> int:
            return node(0x3B81, "<III", 12, 0, 0)[2]

        def put(ioas: int, at: int, flags: int = 7, size: int = 40) -> int:
            return node(0x3B85, "<4I3Q", size, flags, ioas, 0, where, PAGE, at)[6]

        assert [alloc(), alloc()] == [1, 2]
        assert [put(1, 0, 6), put(1, 0, 6), put(2, 0, 6)] == [PAGE, 2 * PAGE, PAGE]
        refused(errno.EEXIST, put, 1, PAGE)
        refused(errno.EOPNOTSUPP, put, 1, 0, 0x16)
        refused(errno.ENOENT, put, 9, 0)
        refused(errno.EINVAL, put, 1, 0, 6, 39)
        refused(errno.E2BIG, node, 0x3B80, "<III", 12, 1, 1)
        refused(errno.ENOENT, node, 0x3B86, "<IIQQ", 24, 1, PAGE, PAGE // 2)  # that would cut
        refused(errno.ENOENT, node, 0x3B86, "<IIQQ", 24, 1, 1 << 30, PAGE)
        assert node(0x3B86, "<IIQQ", 24, 1, PAGE, 2 * PAGE)[3] == 2 * PAGE
        m.lose_reply("IOAS_MAP")
        refused(errno.EFAULT, put, 1, 0, 6)
        assert m.census()["mapping on the device"] == 2
        for number in (1, 2):
            node(0x3B80, "<II", 8, number)
        assert not m.alive
        node.close()
    del held
