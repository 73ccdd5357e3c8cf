"""The fake driver itself: calls with bytes written by hand, every order to misbehave, and what it says is left."""

from __future__ import annotations

import ast
import errno
import mmap
import os
import stat
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake import FakeError, FakeMachine
from tests.fakekit import (
    CARD,
    CREATE_DUMB,
    EXPORT,
    FLAGS,
    GEM_CLOSE,
    GEM_CREATE,
    GEM_VA,
    GTT,
    MAP,
    PAGE,
    RENDER,
    UNMAP,
    VA,
    VERSION,
    VRAM,
    Device,
    device,
    m,
    refused,
)
from tests.helpers import ROOT, environment

__all__ = ["device", "m"]  # fixtures


# ---- independence


def test_nothing_of_the_product_but_its_door() -> None:
    allowed = {"accelctl.hal.devfile", "accelctl.abi.lifecycle"}
    for path in sorted((ROOT / "tests" / "fake").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            else:
                continue
            assert {name for name in names if name.startswith("accelctl")} <= allowed, path


def test_no_layout_of_the_product_is_even_loaded() -> None:
    code = "import sys, tests.fake; print([name for name in sys.modules if name.startswith('accelctl.hal.uapi')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_tables_a_test_is_skipped_and_says_so(tmp_path: Path) -> None:
    code = "from tests.fake import FakeMachine\nFakeMachine('amdgpu')"
    changes = {"ACCELCTL_SHARED": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(changes), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "Skipped" in done.stderr
    assert f"no folder {tmp_path}/uapi" in done.stderr


# ---- files


def test_nodes_look_like_character_devices(m: FakeMachine) -> None:
    found = m.stat(RENDER)
    assert stat.S_ISCHR(found.st_mode)
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (226, 128)
    fd = m.open(RENDER, FLAGS)
    assert m.fstat(fd).st_rdev == found.st_rdev
    assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
    m.close(fd)
    refused(errno.ENOENT, m.stat, "/dev/dri/renderD200")
    refused(errno.ENOENT, m.open, "/dev/kfd", FLAGS)


def test_version_is_cut_off_at_the_room_there_is(device: Device) -> None:
    room = array("B", b"........")
    answer = device.call(VERSION, "<8Q", 0, 0, 3, room.buffer_info()[0], 0, 0, 0, 0)
    assert room.tobytes() == b"amd....."
    assert struct.unpack_from("<Q", answer, 16) == (6,)


def test_what_a_render_node_does_not_do(m: FakeMachine, device: Device) -> None:
    refused(errno.EACCES, device.call, CREATE_DUMB, "<6IQ", 1, 1024, 32, 0, 0, 0, 0)
    card = Device(m, CARD)
    answer = card.call(CREATE_DUMB, "<6IQ", 1, 1024, 32, 0, 0, 0, 0)
    assert struct.unpack_from("<IIQ", answer, 16) == (1, 4096, 4096)
    m.close(card.fd)
    assert [text for text in m.dropped if "object" in text]


# ---- sizes and bytes


def test_an_unknown_call_is_loud() -> None:
    for number in (0xC0206477, 0xC0204B02):
        with pytest.raises(FakeError, match="has no ioctl"), FakeMachine("amdgpu") as m:
            Device(m).call(number, "<4Q", 0, 0, 0, 0)


def test_a_swallowed_fake_error_comes_again_at_the_end() -> None:
    def careless() -> None:
        with FakeMachine("amdgpu") as m:
            device = Device(m)
            try:
                device.call(0xC0206477, "<4Q", 0, 0, 0, 0)
            except Exception:
                m.close(device.fd)

    with pytest.raises(FakeError, match="0xc0206477"):
        careless()


@pytest.mark.parametrize(("number", "words"), [(0xC0186440, 3), (0xC0286440, 5)])
def test_a_size_that_no_kernel_has_is_loud(number: int, words: int) -> None:
    with pytest.raises(FakeError, match="kernels have 0xc0206440"), FakeMachine("amdgpu") as m:
        Device(m).call(number, f"<{words}Q", *(PAGE, PAGE, GTT, 1, 0)[:words])


def test_drm_zero_fills_and_cuts_off() -> None:
    """Shorter structures gain zeros; what comes back is no longer than what came (drm_ioctl)."""
    with FakeMachine("amdgpu", strict=False) as m:
        device = Device(m)
        longer = device.call(0xC0286440, "<5Q", PAGE, PAGE, GTT, 1, 0)
        assert struct.unpack_from("<I", longer)[0] == 1
        shorter = device.call(0xC0186440, "<3Q", PAGE, PAGE, GTT)
        assert (struct.unpack_from("<I", shorter)[0], len(shorter)) == (2, 24)
        m.close(device.fd)


def test_known_numbers_of_older_kernels_are_taken(device: Device) -> None:
    handle = device.create()
    device.call(0x40286448, "<IIIIQQQ", handle, 0, MAP, 6, VA, 0, PAGE)
    device.close(handle)


def test_an_argument_shorter_than_its_number_is_loud() -> None:
    with pytest.raises(FakeError, match="write behind"), FakeMachine("amdgpu") as m:
        m.ioctl(m.open(RENDER, FLAGS), GEM_CREATE, bytearray(31))


def test_a_byte_that_no_kernel_reads_is_loud() -> None:
    m = FakeMachine("amdgpu")
    device = Device(m)
    handle = device.create()
    with pytest.raises(FakeError, match=r"byte 4 \(_pad\) is 0x7"):
        device.call(GEM_VA, "<IIIIQQQQIIQ", handle, 7, MAP, 6, VA, 0, PAGE, 0, 0, 0, 0)
    m.finish()


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ((PAGE, 3, GTT, 1), errno.EINVAL),  # alignment, no power of two
        ((PAGE, PAGE, 0, 1), errno.EINVAL),  # no domain
        ((PAGE, PAGE, 1 << 20, 1), errno.EINVAL),  # no such domain
        ((PAGE, PAGE, GTT, 1 << 40), errno.EINVAL),  # no such flag
        ((0, PAGE, GTT, 1), errno.EINVAL),
        ((1 << 40, PAGE, GTT, 1), errno.ENOMEM),
    ],
)
def test_what_gem_create_refuses(device: Device, values: tuple[int, ...], code: int) -> None:
    refused(code, device.call, GEM_CREATE, "<4Q", *values)
    assert device.create() == 1  # nothing of it stays
    device.close(1)


# ---- objects, references, addresses


def test_handles_are_the_lowest_free(device: Device) -> None:
    assert [device.create() for _ in range(4)] == [1, 2, 3, 4]
    device.close(2)
    device.close(1)
    assert [device.create() for _ in range(3)] == [1, 2, 5]
    for handle in range(1, 6):
        device.close(handle)
    refused(errno.EINVAL, device.close, 1)
    refused(errno.ENOENT, device.offset, 1)


def test_handles_belong_to_a_file(m: FakeMachine, device: Device) -> None:
    other = Device(m)
    handle = device.create()
    refused(errno.ENOENT, other.offset, handle)
    other.create()
    refused(errno.EACCES, m.map, other.fd, PAGE, device.offset(handle))
    m.close(other.fd)
    device.close(handle)


def test_two_mappings_share_their_bytes_and_hold_the_object(m: FakeMachine, device: Device) -> None:
    handle = device.create(2 * PAGE)
    one, two = (m.map(device.fd, 2 * PAGE, device.offset(handle)) for _ in range(2))
    one[PAGE : PAGE + 3] = b"abc"
    assert two[PAGE : PAGE + 3] == b"abc"
    device.close(handle)
    assert m.census()["object"] == 1
    m.unmap(one)
    assert two[PAGE : PAGE + 3] == b"abc"
    m.unmap(two)
    assert m.census()["object"] == 0
    fresh = device.create(2 * PAGE)
    mapping = m.map(device.fd, 2 * PAGE, device.offset(fresh))
    assert not any(mapping[:])  # zeroed
    m.unmap(mapping)
    device.close(fresh)


def test_room_comes_back_zeroed_while_others_live(m: FakeMachine, device: Device) -> None:
    keeper, dirty = device.create(), device.create()
    for handle in (keeper, dirty):
        mapping = m.map(device.fd, PAGE, device.offset(handle))
        mapping[:] = bytes([handle]) * PAGE
        m.unmap(mapping)
    device.close(dirty)
    fresh = device.create()
    mapping, kept = m.map(device.fd, PAGE, device.offset(fresh)), m.map(device.fd, PAGE, device.offset(keeper))
    assert not any(mapping[:])
    assert kept[:] == bytes([keeper]) * PAGE
    for one in (mapping, kept):
        m.unmap(one)


def test_offsets_are_checked(m: FakeMachine, device: Device) -> None:
    handle = device.create()
    refused(errno.EINVAL, m.map, device.fd, PAGE, 1 << 40)
    refused(errno.EINVAL, m.map, device.fd, 2 * PAGE, device.offset(handle))
    refused(errno.EINVAL, m.map, device.fd, PAGE, device.offset(handle) + 1)
    device.close(handle)


def test_addresses(m: FakeMachine, device: Device) -> None:
    one, two = device.create(4 * PAGE), device.create(4 * PAGE)
    device.bind(MAP, one, VA, 4 * PAGE)
    refused(errno.EINVAL, device.bind, MAP, two, VA + PAGE, PAGE)  # taken
    refused(errno.EINVAL, device.bind, MAP, two, VA - PAGE, 2 * PAGE)
    refused(errno.EINVAL, device.bind, MAP, two, 0x1000, PAGE)  # reserved
    refused(errno.EINVAL, device.bind, MAP, two, VA + 8 * PAGE, 5 * PAGE)  # larger than the object
    refused(errno.EINVAL, device.bind, MAP, two, VA + 8 * PAGE + 1, PAGE)
    refused(errno.ENOENT, device.bind, UNMAP, two, VA, 4 * PAGE)
    refused(errno.ENOENT, device.bind, UNMAP, one, VA + PAGE, PAGE)
    refused(errno.ENOENT, device.bind, MAP, 9, VA + 8 * PAGE, PAGE)
    device.bind(MAP, two, VA + 4 * PAGE, 4 * PAGE)
    device.close(one)  # takes its address with it
    assert m.census()["mapping on the device"] == 1
    device.bind(MAP, two, VA, 4 * PAGE)
    device.close(two)
    assert not m.alive


def test_vram_that_is_full_becomes_gtt_silently() -> None:
    with FakeMachine("amdgpu", vram=2 * PAGE, gtt=2 * PAGE) as m:
        device = Device(m)
        handles = [device.create(PAGE, VRAM) for _ in range(4)]
        refused(errno.ENOMEM, device.create, PAGE, VRAM)
        told = array("Q", [0, 0, 0, 0])
        device.call(0xC0186450, "<IIQII", handles[3], 0, told.buffer_info()[0], 0, 0)
        assert told[2] == VRAM | GTT
        device.close(handles[0])
        told = array("Q", [0, 0, 0, 0])
        device.call(0xC0186450, "<IIQII", device.create(PAGE, VRAM), 0, told.buffer_info()[0], 0, 0)
        assert told[2] == VRAM
        m.close(device.fd)


def test_the_callers_pages_are_looked_at(m: FakeMachine, device: Device) -> None:
    room = mmap.mmap(-1, 2 * PAGE)
    held = array("B", bytes(3 * PAGE))
    start = -(-held.buffer_info()[0] // PAGE) * PAGE
    answer = device.call(0xC0186451, "<QQII", start, PAGE, 12, 0)
    handle = struct.unpack_from("<I", answer, 20)[0]
    assert m.census()["user pages"] == 1
    refused(errno.EPERM, device.offset, handle)
    refused(errno.EACCES, device.call, 0xC0186451, "<QQII", start, PAGE, 4, 0)  # no notifier
    refused(errno.EINVAL, device.call, 0xC0186451, "<QQII", start + 1, PAGE, 12, 0)
    refused(errno.EFAULT, device.call, 0xC0186451, "<QQII", 0x1000, PAGE, 12, 0)
    device.close(handle)
    assert not m.alive
    room.close()


# ---- dma-bufs


def test_importing_twice_is_one_handle_with_one_reference() -> None:
    with FakeMachine("amdgpu", "vgem") as m:
        one, other = Device(m), Device(m, "/dev/dri/card1")
        handle = one.create()
        fd = one.export(handle)
        assert one.take(fd) == handle  # its own
        assert [other.take(fd), other.take(fd)] == [1, 1]
        m.close(fd)
        one.close(handle)
        assert m.census()["object"] == 2  # the import keeps the exporter's
        other.close(1)
        refused(errno.EINVAL, other.close, 1)
        assert not m.alive
        for file in (one, other):
            m.close(file.fd)
        assert not m.dropped


def test_a_dma_buf_shares_bytes_with_its_object(m: FakeMachine, device: Device) -> None:
    handle = device.create()
    fd = device.export(handle)
    mine, its = m.map(device.fd, PAGE, device.offset(handle)), m.map(fd, PAGE, 0)
    mine[:3] = b"abc"
    assert its[:3] == b"abc"
    for flags in (3, 7):
        m.ioctl(fd, 0x40086200, bytearray(struct.pack("<Q", flags)))
    refused(errno.EINVAL, m.ioctl, fd, 0x40086200, bytearray(struct.pack("<Q", 8)))
    m.close(fd)
    device.close(handle)
    m.unmap(mine)
    assert m.census()["dma-buf"] == 1
    assert its[:3] == b"abc"
    m.unmap(its)
    assert not m.alive


def test_what_is_no_dma_buf(m: FakeMachine, device: Device) -> None:
    refused(errno.EBADF, device.take, 9999)
    refused(errno.EINVAL, device.take, device.fd)
    refused(errno.ENOENT, device.export, 1)
    handle = device.create()
    refused(errno.EINVAL, device.call, EXPORT, "<IIi", handle, 0x80003, 0)
    device.close(handle)


# ---- the end


def test_what_is_left_is_named() -> None:
    m = FakeMachine("amdgpu")
    device = Device(m)
    handle = device.create(8192)
    device.bind(MAP, handle)
    fd = device.export(handle)
    mapping = m.map(device.fd, PAGE, device.offset(handle))
    left = "\n".join(m.leftovers())
    assert f"fd {device.fd} ({RENDER})" in left
    assert f"fd {fd} (dma-buf)" in left
    assert f"object gtt of 8192 bytes, held by handle {handle} of {device.fd}, bound at 0x100000, dma-buf" in left
    assert "mapping on the device at 0x100000 of 4096 bytes" in left
    assert "mapping of 4096 bytes of object gtt" in left
    with pytest.raises(AssertionError, match="left over"), m:
        pass
    assert not m.leftovers()
    assert mapping.closed


def test_close_drops_what_the_file_owned_and_says_so(m: FakeMachine, device: Device) -> None:
    handle = device.create()
    device.bind(MAP, handle)
    mapping = m.map(device.fd, PAGE, device.offset(handle))
    m.close(device.fd)
    assert m.census()["object"] == 1  # a mapping holds its file
    assert not m.dropped
    m.unmap(mapping)
    assert not m.leftovers()
    assert len(m.dropped) == 2


def test_an_error_in_the_test_is_not_hidden_by_leftovers() -> None:
    def broken() -> None:
        with FakeMachine("amdgpu") as m:
            Device(m).create()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()


MISUSE: dict[str, Callable[[FakeMachine], object]] = {
    "close": lambda m: m.close(9999),
    "ioctl": lambda m: m.ioctl(9999, GEM_CLOSE, bytearray(8)),
    "munmap": lambda m: m.unmap(mmap.mmap(-1, PAGE)),
    "open": lambda m: m.open(RENDER, os.O_RDWR),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_of_descriptors_and_mappings_is_loud(what: str) -> None:
    m = FakeMachine("amdgpu")
    with pytest.raises(FakeError, match=r"not open here|not mapped|children inherit"):
        MISUSE[what](m)
    m.finish()
