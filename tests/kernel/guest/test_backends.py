"""The back-ends against the drivers themselves: hundreds of cycles leave nothing, and what is left is counted.

Each claim is checked a second time with calls made here, by numbers written out by hand (Linux 6.12 headers, x86-64).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

import pytest

from accelctl.abi import registry
from accelctl.abi.lifecycle import Block, Lifecycle, NotOffered, Session, Target

from .backendkit import (
    CARDS,
    CYCLES,
    FDS,
    HEAP_ALLOC,
    IOAS_UNMAP,
    MAP_DUMB,
    PAGE,
    RESOURCE_CREATE,
    VFIO_UNMAP_DMA,
    acquire,
    cycle,
    dmabufs,
    give,
    life_of,
    locked_kib,
    nodes,
    nothing_open,
    opened,
    raw_close,
    raw_driver,
    raw_dumb,
    raw_unmap,
    release,
    target_of,
    touch,
    vfio_group,
)  # fmt: skip
from .helpers import needs, unprivileged

__all__ = ["nothing_open", "vfio_group"]  # fixtures

LIVES = {
    "vgem": {"dumb", "export"},
    "vkms": {"dumb"},
    "bochs": {"dumb"},
    "qxl": {"dumb", "bo"},
    "virtio_gpu": {"dumb", "resource"},
    "dma_heap": {"buffer", "import-vgem"},
    "udmabuf": {"buffer", "import-vgem"},
    "iommufd": {"ioas", "map", "map-fixed"},
    "vfio": {"map"},
}
"""Chip -> lifecycles that work in these guests."""
DRM = [pytest.param(chip, marks=needs("debug")) if chip == "vkms" else chip for chip in CARDS]


def check_cycles(session: Session, chip: str) -> None:
    offered = [life for life in session.lifecycles if not life.unsupported]
    assert {life.name for life in offered} == LIVES[chip]
    before = [counter.read() for counter in session.counters()]
    assert before == [0] * len(before)
    for life in offered:
        cycle(life, CYCLES)
        assert [counter.read() for counter in session.counters()] == before, life.name
    assert set(session.census().values()) <= {0}


# -- DRM --


@pytest.mark.parametrize("chip", DRM)
def test_drm_cycles_leave_nothing(chip: str) -> None:
    with opened(target_of(chip)) as session:
        assert [counter.name for counter in session.counters()] == ["gem-handles"]
        check_cycles(session, chip)


@pytest.mark.parametrize("chip", DRM)
def test_drm_objects_are_what_the_session_says(chip: str) -> None:
    """Handles are lowest-free, MAP_DUMB names the same place, and a second mapping made here holds the same bytes."""
    with opened(target_of(chip)) as session:
        fd = session.files[0].fd
        for name in sorted(LIVES[chip] - {"export"}):
            life = life_of(session, name)
            block = acquire(life, Block(3 * PAGE - 5, 9))
            assert block.size == 3 * PAGE
            assert raw_dumb(fd, 3) == (block.handle + 1, 3 * PAGE)
            raw_close(fd, block.handle + 1)
            argument = bytearray(struct.pack("<IIQ", block.handle, 0, 0))
            fcntl.ioctl(fd, MAP_DUMB, argument)
            assert struct.unpack_from("<Q", argument, 8)[0] == block.offset
            touch(life, block)
            with mmap.mmap(fd, block.size, offset=block.offset) as second:
                assert block.map is not None
                assert second[:] == block.map[:]
                assert second[0:8] != bytes(8)
            raw_close(fd, block.handle)
            with pytest.raises(OSError, match="Invalid argument"):
                release(block)  # it was that handle


@pytest.mark.parametrize("chip", DRM)
def test_drm_leaks_are_counted(chip: str) -> None:
    with opened(target_of(chip)) as session:
        (counter,) = session.counters()
        for number, life in enumerate((life for life in session.lifecycles if not life.unsupported), 1):
            blocks = [acquire(life, Block(PAGE, serial)) for serial in range(4)]
            for block in blocks:
                release(block, keep="object" if block.serial == 1 else "")
            assert counter.read() == number, life.name
        lost = raw_dumb(session.files[0].fd, 1)[0]  # a handle that the session was never told of
        assert counter.read() == number + 1
        assert session.census() == {"gem-handles": number + 1}
        with pytest.raises(OSError, match="Invalid argument"):
            raw_close(session.files[0].fd, lost)


def test_virtio_gpu_on_its_render_node() -> None:
    """DRM_RENDER_ALLOW: its own calls work there, dumb buffers do not; no blobs without blob=true on the device."""
    render = next(str(p) for p in sorted(Path("/dev/dri").glob("renderD*")) if raw_driver(str(p)) == "virtio_gpu")
    with opened(Target("render", "virtio_gpu", "virtio_gpu", render)) as session:
        assert life_of(session, "dumb").unsupported == "dumb buffers need the card node; this is a render node"
        assert "the device offers no blob resources" in life_of(session, "blob").unsupported
        with pytest.raises(PermissionError):
            raw_dumb(session.files[0].fd, 1)
        cycle(life_of(session, "resource"), 20)
        assert session.counters()[0].read() == 0
        leaked = acquire(life_of(session, "resource"), Block(PAGE))
        release(leaked, keep="object")
        assert session.census() == {"gem-handles": 1}


def test_virtio_gpu_without_3d_takes_flat_textures_only() -> None:
    """virtgpu_ioctl.c: no 3D, so target 2, and none of the further dimensions. A format that the host does not know is
    no error of the call: the answer comes later, and only in the kernel log."""
    (fd, sure) = (
        os.open(nodes("virtio_gpu")[0], os.O_RDWR | os.O_CLOEXEC),
        (2, 2, 2, 1024, 1, 1, 1, 0, 0, 0, 0, 0, PAGE, 0),
    )
    try:
        for place, value in ((0, 0), (0, 3), (5, 2), (6, 2), (7, 2), (8, 2)):
            with pytest.raises(OSError, match="Invalid argument"):
                raw_resource(fd, (*sure[:place], value, *sure[place + 1 :]))
        assert raw_resource(fd, sure) == 1
        assert raw_resource(fd, (2, 9999, *sure[2:])) == 2
    finally:
        os.close(fd)


def raw_resource(fd: int, fields: tuple[int, ...]) -> int:
    """DRM_IOCTL_VIRTGPU_RESOURCE_CREATE: the handle."""
    argument = bytearray(struct.pack("<14I", *fields))
    fcntl.ioctl(fd, RESOURCE_CREATE, argument)
    handle: int = struct.unpack_from("<I", argument, 40)[0]
    return handle


def test_qxl_says_why_its_own_calls_are_refused() -> None:
    """DRM_AUTH: whoever is neither root nor came as the card's first master gets EACCES."""
    (card,) = nodes("qxl")
    mode = os.stat(card).st_mode & 0o777
    master = os.open(card, os.O_RDWR | os.O_CLOEXEC)
    os.chmod(card, 0o666)

    def ask() -> tuple[str, str]:
        with opened(Target("qxl", "qxl", "qxl", card)) as session:
            cycle(life_of(session, "dumb"), 3)
            return life_of(session, "dumb").unsupported, life_of(session, "bo").unsupported

    registry.load("qxl")  # the child may not read everything
    try:
        dumb, own = unprivileged(1234, 1234, (), ask)
    finally:
        os.chmod(card, mode)
        os.close(master)
    assert dumb == ""
    assert "Permission denied" in own


# -- dma-bufs --


@pytest.mark.parametrize("chip", FDS)
def test_dma_buf_cycles_leave_nothing(chip: str) -> None:
    with opened(target_of(chip)) as session:
        assert [counter.name for counter in session.counters()] == ["gem-handles import 1 (vgem)"]
        check_cycles(session, chip)
        assert dmabufs() == 0
    assert dmabufs() == 0


@pytest.mark.parametrize("chip", FDS)
def test_dma_bufs_are_what_the_session_says(chip: str) -> None:
    with opened(target_of(chip)) as session:
        life = life_of(session, "import-vgem")
        block = acquire(life, Block(5 * PAGE - 1, 1))
        assert block.size == 5 * PAGE
        assert block.file is not None
        assert dmabufs() == 2  # ours, and Python's duplicate for the mapping
        assert os.lseek(block.file.fd, 0, os.SEEK_END) == block.size  # dma_buf_llseek
        if chip == "dma_heap":
            argument = bytearray(struct.pack("<QIIQ", 5 * PAGE, 0, os.O_RDWR | os.O_CLOEXEC, 0))
            fcntl.ioctl(session.files[0].fd, HEAP_ALLOC, argument)
            other = struct.unpack_from("<I", argument, 8)[0]
            assert os.lseek(other, 0, os.SEEK_END) == block.size
            os.close(other)
        else:
            touch(life, block)  # the dma-buf is the memfd's own pages
            assert block.map is not None
            assert os.pread(block.fd, 8, 0) == block.map[0:8] != bytes(8)
        release(block)
        assert dmabufs() == 0


@pytest.mark.parametrize("chip", FDS)
def test_dma_buf_leaks_are_counted(chip: str) -> None:
    with opened(target_of(chip)) as session:
        life = life_of(session, "import-vgem")
        blocks = [acquire(life, Block(PAGE, serial)) for serial in range(3)]
        for block in blocks:
            release(block, keep="import" if block.serial == 1 else "")
        assert session.counters()[0].read() == 1
        assert session.census() == {"gem-handles import 1 (vgem)": 1}
        block = acquire(life_of(session, "buffer"), Block(PAGE))
        release(block, keep="buffer_fd")
        assert dmabufs() == 1
        release(block)
        assert dmabufs() == 0


# -- PRIME --


def test_prime_maps_the_same_pages() -> None:
    with opened(Target("prime", "prime", "vgem", nodes("vgem")[0])) as session:
        life = life_of(session, "vgem-export")
        block = acquire(life, Block(PAGE, 5))
        touch(life, block)
        argument = bytearray(struct.pack("<IIQ", block.handle, 0, 0))
        fcntl.ioctl(session.files[0].fd, MAP_DUMB, argument)
        with mmap.mmap(session.files[0].fd, PAGE, offset=struct.unpack_from("<Q", argument, 8)[0]) as other:
            assert block.map is not None
            assert other[:] == block.map[:]
            assert other[0:8] != bytes(8)
        release(block)


def answer(life: Lifecycle) -> str:
    """What becomes of one cycle: works, or the error's name."""
    try:
        cycle(life, 20)
    except OSError as error:
        kind = "" if isinstance(error, NotOffered) else "!"
        return kind + errno.errorcode[error.errno or 0]
    return "works"


def pairs(target: Target, importers: list[str]) -> tuple[list[str], list[str]]:
    """Whether it maps at all, and then per importer: imported, imported and mapped."""
    with opened(target) as session:
        lives = [answer(life) for life in session.lifecycles]
        assert set(session.census().values()) <= {0}
    count = len(importers)
    alone = lives[1 : 1 + count]
    return [lives[0]], [a + (f" / {b}" if a != b else "") for a, b in zip(alone, lives[-count:], strict=True)]


def test_prime_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Exporter by importer, as these kernels have them. What a pair does not do is "not offered", nothing else."""
    cards = {f"{name}": found[0] for name in CARDS.values() if (found := nodes(name))}
    second = nodes("virtio_gpu")[1]
    importers = [*cards.values(), second]
    heads = [*cards, "virtio_gpu 2"]
    table: dict[str, list[str]] = {}
    for name, card in cards.items():
        own, row = pairs(Target("prime", "prime", name, card, tuple(importers)), importers)
        table[name] = own + row
    for chip, node in (("dma_heap", "/dev/dma_heap/system"), ("udmabuf", "/dev/udmabuf")):
        own, row = pairs(Target(chip, chip, "", node, tuple(importers)), importers)
        table[chip] = own + row
    with capsys.disabled():
        print(f"\nPRIME, {os.uname().release}: exporter | mmap | into {' | '.join(heads)}")
        for name, cells in table.items():
            print(f"{name} | {' | '.join(cells)}")
    wanted = {name: ["works", *(expected(name, head) for head in heads)] for name in table}
    assert table == wanted


def expected(exporter: str, importer: str) -> str:
    """As observed on Linux 6.12, not derived: what changes here is news about a kernel, not yet a defect of ours."""
    if exporter == importer:
        return "works"  # the driver sees its own object
    if importer in ("bochs-drm", "qxl"):
        return {"bochs-drm": "EINVAL", "qxl": "ENOSYS"}[importer]
    if exporter in ("bochs-drm", "qxl"):
        return "ENOSYS"
    return "ENODEV" if importer.startswith("virtio_gpu") else "works"


# -- host pages for devices --


def test_vfio(vfio_group: str) -> None:
    target = target_of("vfio")
    assert target.others == (vfio_group,)
    with opened(target) as session:
        assert [counter.name for counter in session.counters()] == ["dma-mappings"]
        check_cycles(session, "vfio")
        counter, life = session.counters()[0], session.lifecycles[0]
        before = locked_kib()
        block = acquire(life, Block(16 * PAGE, 1))
        touch(life, block)
        assert locked_kib() - before == 64  # pinned, by the process's own account
        assert raw_unmap(session.files[0].fd, VFIO_UNMAP_DMA, 0, block.address, block.size) == 16 * PAGE
        assert locked_kib() == before
        assert counter.read() == 0
        with pytest.raises(OSError, match="unmapped 0 of 65536 bytes"):
            give(life.stages[2], block)
        release(block)
        leaked = [acquire(life, Block(PAGE, serial)) for serial in range(3)]
        for block in leaked[1:]:
            release(block)
        assert counter.read() == 1
        assert session.census() == {"dma-mappings": 1}
        assert locked_kib() == before


def test_vfio_without_a_group_is_unsupported() -> None:
    with opened(Target("vfio", "vfio", "", "/dev/vfio/vfio")) as session:
        assert "no group bound to vfio-pci" in session.lifecycles[0].unsupported
        assert session.counters() == ()


@needs("debug")
def test_iommufd() -> None:
    with opened(target_of("iommufd")) as session:
        check_cycles(session, "iommufd")
        objects, mapped = session.counters()
        for name in ("map", "map-fixed"):
            life = life_of(session, name)
            block = acquire(life, Block(9 * PAGE, 1))
            assert mapped.read() == 9 * PAGE
            assert raw_unmap(session.files[0].fd, IOAS_UNMAP, 1, block.address, block.size) == 9 * PAGE
            assert mapped.read() == 0
            with pytest.raises(FileNotFoundError):
                give(life.stages[-1], block)
            release(block)
        kept = [acquire(life_of(session, name), Block(2 * PAGE)) for name in ("ioas", "map", "map-fixed")]
        assert (objects.read(), mapped.read()) == (1, 4 * PAGE)
        assert session.census() == {"ioas": 1, "iova-bytes": 4 * PAGE}
        assert (objects.read(), mapped.read()) == (0, 0)
        assert kept[0].handle == 2
