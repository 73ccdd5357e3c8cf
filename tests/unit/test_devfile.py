"""Device nodes and ioctl numbers: checked by hand, and on devices that every Linux has."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import struct
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.errors import AccelError, DeviceUnusable, NoDeviceError, PermissionDenied, UsageError
from accelctl.hal import devfile, ioc
from accelctl.hal.devfile import DevFile, Syscalls, open_files

# Evaluated by a C compiler from the kernel's public headers (Linux 7.3, x86-64) and, for the last row, from
# NVIDIA's open-gpu-kernel-modules 595.45.04: name, direction, type, command, size, number.
BY_HAND = [
    ("DRM_IOCTL_VERSION", ioc.READ | ioc.WRITE, "d", 0x00, 64, 0xC0406400),
    ("DRM_IOCTL_GEM_CLOSE", ioc.WRITE, "d", 0x09, 8, 0x40086409),
    ("DRM_IOCTL_AMDGPU_GEM_CREATE", ioc.READ | ioc.WRITE, "d", 0x40, 32, 0xC0206440),
    ("AMDKFD_IOC_ALLOC_MEMORY_OF_GPU", ioc.READ | ioc.WRITE, "K", 0x16, 40, 0xC0284B16),
    ("DMA_HEAP_IOCTL_ALLOC", ioc.READ | ioc.WRITE, "H", 0x00, 24, 0xC0184800),
    ("UDMABUF_CREATE", ioc.WRITE, "u", 0x42, 24, 0x40187542),
    ("VFIO_IOMMU_MAP_DMA", ioc.NONE, ";", 113, 0, 0x00003B71),
    ("IOMMU_IOAS_MAP", ioc.NONE, ";", 0x85, 0, 0x00003B85),
    ("NV_ESC_RM_ALLOC", ioc.READ | ioc.WRITE, "F", 0x2B, 32, 0xC020462B),
]


@pytest.mark.parametrize(("name", "direction", "kind", "command", "size", "number"), BY_HAND)
def test_numbers_checked_by_hand(name: str, direction: int, kind: str, command: int, size: int, number: int) -> None:
    assert ioc.encode(direction, kind, command, size) == number, name
    assert ioc.decode(number) == ioc.Ioc(direction, kind, command, size)


def test_short_forms() -> None:
    assert ioc.iowr("d", 0, 64) == 0xC0406400
    assert ioc.iow("d", 9, 8) == 0x40086409
    assert ioc.io(";", 113) == 0x3B71
    assert ioc.ior("T", 0x30, 4) == termios.__dict__.get("TIOCGPTN", 0x80045430) == 0x80045430  # asm-generic/ioctls.h


@given(st.integers(0, 3), st.characters(max_codepoint=255), st.integers(0, 255), st.integers(0, ioc.MAX_SIZE))
def test_numbers_survive_a_round_trip(direction: int, kind: str, command: int, size: int) -> None:
    assert ioc.decode(ioc.encode(direction, kind, command, size)) == ioc.Ioc(direction, kind, command, size)


@pytest.mark.parametrize(
    "parts", [(4, "d", 0, 0), (0, "dd", 0, 0), (0, "d", 256, 0), (0, "d", 0, 1 << 14), (0, "d", -1, 0)]
)
def test_parts_that_do_not_fit(parts: tuple[int, str, int, int]) -> None:
    with pytest.raises(ValueError, match="not the parts"):
        ioc.encode(*parts)


def test_what_is_no_number() -> None:
    for number in (-1, 1 << 32):
        with pytest.raises(ValueError, match="not an ioctl number"):
            ioc.decode(number)
    assert ioc.encoding_known("x86_64")
    assert ioc.encoding_known("aarch64")
    assert not ioc.encoding_known("ppc64le")


# -- nodes --


@pytest.fixture(autouse=True)
def nothing_open() -> object:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert open_files() == {}
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_open_ioctl_and_close() -> None:
    """A pseudo terminal answers a real ioctl: its number."""
    with DevFile("/dev/ptmx") as file:
        assert open_files() == {file.fd: "/dev/ptmx"}
        assert file.number == (5, 2)
        answer = bytearray(4)
        assert file.ioctl(ioc.ior("T", 0x30, 4), answer) == 0
        expected = array.array("I", [0])
        fcntl.ioctl(file.fd, 0x80045430, expected)
        assert struct.unpack("=I", answer)[0] == expected[0]
        assert not os.get_inheritable(file.fd)
    assert file.fd == -1
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.ioctl(0, bytearray())
    with pytest.raises(ValueError, match="closed"):
        file.map(4096, 0)


def test_kernels_refusal_comes_through() -> None:
    with DevFile("/dev/null") as file, pytest.raises(OSError, match="ioctl") as caught:
        file.ioctl(ioc.iowr("d", 0, 64), bytearray(64))
    assert caught.value.errno == errno.ENOTTY


def test_short_argument_is_refused_before_the_kernel_writes_behind_its_end() -> None:
    with DevFile("/dev/null") as file, pytest.raises(ValueError, match="argument of 63 bytes, its number says 64"):
        file.ioctl(ioc.iowr("d", 0, 64), bytearray(63))


def test_mapping_and_its_release() -> None:
    with DevFile("/dev/zero") as file:
        first, second = file.map(4096, 0), file.map(8192, 0)
        first[:2] = b"ab"
        assert (bytes(first[:3]), len(second), file.mappings) == (b"ab\0", 8192, 2)
        file.unmap(first)
        assert file.mappings == 1
    assert file.mappings == 0
    assert second.closed


class Block:
    """What stages map: see devfile.Thing."""

    size, offset, serial = 4096, 0, 7
    map: devfile.Mapped | None = None


def test_a_thing_is_mapped_and_given_back() -> None:
    file, block = DevFile("/dev/zero"), Block()
    assert file.map_thing(block) == 7
    mapping = block.map
    assert mapping is not None
    mapping[:2] = b"ab"
    assert file.mappings == 1
    with memoryview(mapping), pytest.raises(BufferError):
        file.unmap_thing(block)
    assert (mapping[:3], block.map, file.mappings) == (b"ab\0", mapping, 1)  # it can be tried again
    file.unmap_thing(block)
    assert (mapping.closed, vars(block)["map"], file.mappings) == (True, None, 0)
    file.close()
    with pytest.raises(ValueError, match="closed"):  # and does not become pages of our own
        file.map_thing(block)
    with pytest.raises(ValueError, match="negative"):
        file.call(file.fd, 0, bytearray())


def test_mapping_with_a_living_view_does_not_keep_the_descriptor() -> None:
    file = DevFile("/dev/zero")
    mapping = file.map(4096, 0)
    view = memoryview(mapping)
    with pytest.raises(BufferError):
        file.close()
    assert open_files() == {}
    assert file.mappings == 1  # still accounted for
    view.release()
    file.unmap(mapping)
    assert file.mappings == 0


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).touch()])
def test_only_character_devices_are_opened(make: object, tmp_path: Path) -> None:
    path = str(tmp_path / "thing")
    assert callable(make)
    make(path)
    with pytest.raises(UsageError, match="not a character device"):
        DevFile(path)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, NoDeviceError),
        (errno.ENXIO, NoDeviceError),
        (errno.EACCES, PermissionDenied),
        (errno.EPERM, PermissionDenied),
        (errno.EIO, DeviceUnusable),
        (errno.EBUSY, DeviceUnusable),
    ],
)
def test_refusals_have_their_kind(code: int, kind: type[AccelError]) -> None:
    class Refusing(Syscalls):
        def open(self, path: str, flags: int) -> int:
            raise OSError(code, os.strerror(code), path)

    with pytest.raises(kind, match="/dev/null"):
        DevFile("/dev/null", syscalls=Refusing())


def test_absent_node() -> None:
    with pytest.raises(NoDeviceError, match="No such file"):
        DevFile("/dev/accelctl-does-not-exist")


def test_node_that_changes_under_our_hands() -> None:
    class Swapped(Syscalls):
        def open(self, path: str, flags: int) -> int:
            return os.open("/dev/zero", flags)

    with pytest.raises(DeviceUnusable, match="replaced by another device"):
        DevFile("/dev/null", syscalls=Swapped())


class Interrupted(Syscalls):
    """Answers with errors before it answers."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.calls = 0

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        self.calls += 1
        if self.codes:
            raise OSError(self.codes.pop(0), "try again")
        assert isinstance(argument, bytearray)
        argument[:] = b"done"
        return 0


def test_calls_are_restarted_as_libdrm_does() -> None:
    system = Interrupted(errno.EINTR, errno.EAGAIN, errno.EINTR)
    with DevFile("/dev/null", syscalls=system) as file:
        answer = bytearray(4)
        assert file.ioctl(ioc.ior("x", 1, 4), answer) == 0
    assert bytes(answer) == b"done"
    assert system.calls == 4


def test_a_bare_call_is_restarted_by_who_makes_it() -> None:
    system = Interrupted(errno.EINTR, errno.EAGAIN, errno.EINTR)
    with DevFile("/dev/null", syscalls=system) as file:
        answer = bytearray(4)
        with pytest.raises(OSError, match="try again") as caught:
            file.call(file.fd, 0, answer)
        assert file.again(caught.value, 0, answer) == 0
    assert (bytes(answer), system.calls) == (b"done", 4)


def test_restarting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devfile, "_RESTART_S", 0.05)
    system = Interrupted(*[errno.EAGAIN] * 100_000)
    with DevFile("/dev/null", syscalls=system) as file, pytest.raises(OSError, match="try again"):
        file.ioctl(ioc.ior("x", 1, 4), bytearray(4))
    assert system.calls > 1


def test_other_errors_are_not_restarted() -> None:
    system = Interrupted(errno.EINVAL)
    with DevFile("/dev/null", syscalls=system) as file, pytest.raises(OSError, match="try again"):
        file.ioctl(ioc.ior("x", 1, 4), bytearray(4))
    assert system.calls == 1


def test_stand_in_is_used_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Interrupted()
    monkeypatch.setattr(devfile, "SYSCALLS", system)
    with DevFile("/dev/null") as file:
        file.ioctl(ioc.ior("x", 1, 4), bytearray(4))
    assert system.calls == 1
