"""What tests of back-ends share: calls by numbers written out by hand, and an engine's loop in its simplest form."""

from __future__ import annotations

import array
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Env, Lifecycle, Session, Stage, Target
from accelctl.hal.devfile import open_files
from accelctl.hal.root import open_root
from accelctl.memory.va import GoodFit
from accelctl.stress.failnth import knobs

from .helpers import PCI, driver_of, pci_functions, wait_for

CYCLES = 200
PAGE = 4096
CREATE_DUMB, MAP_DUMB, GEM_CLOSE, VERSION = 0xC02064B2, 0xC01064B3, 0x40086409, 0xC0406400
HEAP_ALLOC, RESOURCE_CREATE = 0xC0184800, 0xC0386444
VFIO_UNMAP_DMA, IOAS_UNMAP = 0x3B72, 0x3B86
CARDS = {"vgem": "vgem", "vkms": "vkms", "bochs": "bochs-drm", "qxl": "qxl", "virtio_gpu": "virtio_gpu"}
"""Chip -> its driver's name."""
FDS = ["dma_heap", "udmabuf"]
BOCHS = (0x1234, 0x1111)
GROUPS = Path("/dev/vfio")
DEBUGFS = Path("/sys/kernel/debug")


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert open_files() == {}
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def vfio_group() -> Iterator[str]:
    """The node of the group of a bochs function that is bound to vfio-pci while the test runs.

    The test binds, and undoes it; the product never does (it writes nothing to sysfs). The last function is the spare
    one: the first is the machine's own VGA.
    """
    address = pci_functions(*BOCHS)[-1]
    folder = PCI / "devices" / address
    node = GROUPS / (folder / "iommu_group").resolve().name
    _bind(address, "vfio-pci")
    try:
        wait_for(node.exists, f"{node} is here")
        yield str(node)
    finally:
        _bind(address, "")
        wait_for(lambda: driver_of(folder) == "bochs-drm", "bochs is back")


def _bind(address: str, driver: str) -> None:
    """driver_override and drivers_probe (Documentation/ABI/testing/sysfs-bus-pci); "": whoever drives it by itself."""
    folder = PCI / "devices" / address
    (folder / "driver_override").write_text(driver + "\n", encoding="ascii")
    (folder / "driver" / "unbind").write_text(address, encoding="ascii")
    (PCI / "drivers_probe").write_text(address, encoding="ascii")
    if driver:
        wait_for(lambda: driver_of(folder) == driver, f"{address} bound to {driver}")


@pytest.fixture
def prepared(request: pytest.FixtureRequest) -> None:
    """What the device of a parametrized test must have before it can be opened: VFIO a group, the others nothing."""
    if any("vfio" in str(value) for value in request.node.callspec.params.values()):
        request.getfixturevalue("vfio_group")


@pytest.fixture
def knobs_set() -> Iterator[None]:
    """As knobs() says to type it; they are put back, because other tests here look at them too."""
    before = {}
    for line in filter(None, knobs(open_root("/")).split("; ")):
        word, value, arrow, path = line.split()
        assert (word, arrow) == ("echo", ">")
        before[path] = Path(path).read_text(encoding="ascii")
        Path(path).write_text(value, encoding="ascii")
    yield
    for path, value in before.items():
        Path(path).write_text(value, encoding="ascii")


# -- calls of our own --


def raw_driver(node: str) -> str:
    """DRM_IOCTL_VERSION: name_len at 16, its pointer at 24."""
    room = array.array("B", bytes(32))
    argument = bytearray(64)
    struct.pack_into("<QQ", argument, 16, 32, room.buffer_info()[0])
    fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, VERSION, argument)
    finally:
        os.close(fd)
    return room.tobytes()[: struct.unpack_from("<Q", argument, 16)[0]].decode()


def raw_dumb(fd: int, count: int) -> tuple[int, int]:
    """A dumb buffer of so many pages: handle and size."""
    argument = bytearray(struct.pack("<IIIIIIQ", count, 1024, 32, 0, 0, 0, 0))
    fcntl.ioctl(fd, CREATE_DUMB, argument)
    _, _, _, _, handle, _, size = struct.unpack("<IIIIIIQ", argument)
    return handle, size


def raw_close(fd: int, handle: int) -> None:
    fcntl.ioctl(fd, GEM_CLOSE, struct.pack("<II", handle, 0))


def raw_unmap(fd: int, number: int, head: int, iova: int, size: int) -> int:
    """VFIO's and iommufd's unmap have one shape: size of the structure, a number, the range; bytes come back last."""
    argument = bytearray(struct.pack("<IIQQ", 24, head, iova, size))
    fcntl.ioctl(fd, number, argument)
    result: int = struct.unpack_from("<Q", argument, 16)[0]
    return result


def dmabufs() -> int:
    """How many dma-bufs this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("/dmabuf:")
        except OSError:
            continue  # the folder's own descriptor, closed by now
    return count


def locked_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmLck:")[2].split()[0])


# -- what an engine does --


def space(base: int, size: int, granule: int) -> GoodFit:
    return GoodFit(base, size, granule=granule)


def nodes(driver: str) -> list[str]:
    """The cards of a driver."""
    cards = sorted(str(path) for path in Path("/dev/dri").glob("card*"))
    return [card for card in cards if raw_driver(card) == driver]


def target_of(chip: str) -> Target:
    if chip in CARDS:
        return Target(chip, chip, CARDS[chip], nodes(CARDS[chip])[0])
    if chip == "prime":
        return Target(chip, chip, "virtio_gpu", nodes("virtio_gpu")[0], (nodes("vgem")[0],))
    if chip == "vfio":
        return Target(chip, chip, "", str(GROUPS / "vfio"), tuple(map(str, sorted(GROUPS.glob("[0-9]*")))))
    node = {"dma_heap": "/dev/dma_heap/system", "udmabuf": "/dev/udmabuf", "iommufd": "/dev/iommu"}[chip]
    return Target(chip, chip, "", node, (nodes("vgem")[0],) if chip in FDS else ())


@contextmanager
def opened(target: Target) -> Iterator[Session]:
    memory = registry.load(target.chip).memory
    assert memory is not None
    session = memory.open(target, Env(space=space))
    try:
        yield session
    finally:
        session.close()


def life_of(session: Session, name: str) -> Lifecycle:
    return next(life for life in session.lifecycles if life.name == name)


def acquire(life: Lifecycle, block: Block) -> Block:
    try:
        for stage in life.stages:
            stage.acquire(block)
            block.held.append(stage)
    except OSError:
        release(block)
        raise
    return block


def give(stage: Stage, block: Block) -> None:
    block.held.remove(stage)
    if stage.release is not None:
        stage.release(block)


def release(block: Block, keep: str = "") -> None:
    for stage in reversed(block.held[:]):
        if stage.name != keep:
            give(stage, block)


def touch(life: Lifecycle, block: Block) -> None:
    """Write both ends, and read them back."""
    if block.map is None:
        return
    tag = struct.pack("<Q", 0xACCE1C71_00000000 | block.serial)
    if life.sync:
        life.sync(block, True)
    block.map[0:8] = block.map[block.size - 8 : block.size] = tag
    if life.sync:
        life.sync(block, False)
        life.sync(block, True)
    assert block.map[0:8] == block.map[block.size - 8 : block.size] == tag
    if life.sync:
        life.sync(block, False)


def cycle(life: Lifecycle, count: int) -> None:
    """Whole lives of 1 to 16 pages, three of them held at a time, some given back early where that is allowed."""
    held: list[Block] = []
    for serial in range(count):
        block = acquire(life, Block(PAGE * (1 + serial * 7 % 16), serial))
        touch(life, block)
        held.append(block)
        if len(held) == 3:
            _let_go(held.pop(serial % 3), early=serial % 2 == 0)
    while held:
        release(held.pop())


def _let_go(block: Block, early: bool) -> None:
    for stage in block.held[:]:
        if early and stage.early:
            give(stage, block)
    if block.map is not None:
        tag = block.map[0:8]
        assert tag == block.map[block.size - 8 : block.size] != bytes(8)  # a mapping keeps its pages
    release(block)
