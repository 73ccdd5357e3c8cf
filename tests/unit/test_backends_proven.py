"""Back-ends that guests prove, here against a small stand-in for the kernel: order, rollback, lost replies, refusals.

Whether real kernels agree is for tests/kernel/guest/test_backends.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.abi import dumb, hostmem
from accelctl.abi.lifecycle import Block, Env, Lifecycle, NotOffered, Session, Stage, Target
from accelctl.errors import AccelError, DeviceUnusable, PermissionDenied
from accelctl.hal.devfile import open_files
from accelctl.memory.va import GoodFit
from tests.tinykernel import PAGE, Kernel

CARD0, CARD1 = "/dev/dri/card0", "/dev/dri/card1"


class Chip(NamedTuple):
    """A chip, its nodes in the stand-in, and per lifecycle the calls of one cycle, releases after the bar."""

    nodes: dict[str, str]
    node: str
    others: tuple[str, ...]
    lives: dict[str, str]


DUMB = "create_dumb map_dumb mmap | munmap gem_close"
CHIPS = {
    "vgem": Chip(
        {"dri__card0": "vgem"},
        CARD0,
        (),
        {"dumb": DUMB, "export": "create_dumb export mmap | munmap close_dmabuf gem_close"},
    ),
    "vkms": Chip({"dri__card0": "vkms"}, CARD0, (), {"dumb": DUMB}),
    "bochs": Chip({"dri__card0": "bochs-drm"}, CARD0, (), {"dumb": DUMB}),
    "qxl": Chip({"dri__card0": "qxl"}, CARD0, (), {"dumb": DUMB, "bo": "qxl_alloc obj_map mmap | munmap gem_close"}),
    "virtio_gpu": Chip(
        {"dri__card0": "virtio_gpu"},
        CARD0,
        (),
        {
            "dumb": DUMB,
            "resource": "resource_create obj_map mmap | munmap gem_close",
            "blob": "create_blob obj_map mmap | munmap gem_close",
        },
    ),
    "dma_heap": Chip(
        {"dma_heap__system": "heap", "dri__card1": "vgem"},
        "/dev/dma_heap/system",
        (CARD1,),
        {
            "buffer": "heap_alloc mmap | munmap close_dmabuf",
            "import-vgem": "heap_alloc import mmap | munmap gem_close close_dmabuf",
        },
    ),
    "udmabuf": Chip(
        {"udmabuf": "udmabuf", "dri__card1": "vgem"},
        "/dev/udmabuf",
        (CARD1,),
        {
            "buffer": "memfd udmabuf mmap | munmap close_dmabuf close_memfd",
            "import-vgem": "memfd udmabuf import mmap | munmap gem_close close_dmabuf close_memfd",
        },
    ),
    "prime": Chip(
        {"dri__card0": "virtio_gpu", "dri__card1": "vgem"},
        CARD0,
        (CARD1,),
        {
            "virtio_gpu-export": "create_dumb export mmap | munmap close_dmabuf gem_close",
            "virtio_gpu-to-vgem": "create_dumb export import | gem_close close_dmabuf gem_close",
            "virtio_gpu-to-vgem-mapped": "create_dumb export import mmap | munmap gem_close close_dmabuf gem_close",
        },
    ),
    "vfio": Chip(
        {"vfio__vfio": "vfio", "vfio__7": "group"},
        "/dev/vfio/vfio",
        ("/dev/vfio/7",),
        {"map": "map_dma | unmap_dma"},
    ),
    "iommufd": Chip(
        {"iommu": "iommu"},
        "/dev/iommu",
        (),
        {
            "ioas": "ioas_alloc ioas_map | ioas_unmap destroy",
            "map": "ioas_map | ioas_unmap",
            "map-fixed": "ioas_map | ioas_unmap",
        },
    ),
}
LIVES = [(chip, life) for chip, row in CHIPS.items() for life in row.lives]
FAULTS = [
    (chip, life, call)
    for chip, life in LIVES
    for call in CHIPS[chip].lives[life].partition("|")[0].split()
]  # fmt: skip


def space(base: int, size: int, granule: int) -> GoodFit:
    return GoodFit(base, size, granule=granule)


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    yield
    assert open_files() == {}


def kernel_of(chip: str) -> Kernel:
    return Kernel(**CHIPS[chip].nodes)


def open_chip(chip: str, kernel: Kernel, **changed: Any) -> Session:
    row = CHIPS[chip]
    target = Target(f"{chip}:0", chip, "", row.node, row.others)._replace(**changed)
    module = import_module(f"accelctl.backends.{chip}.memory")
    session: Session = module.MEMORY.open(target, Env(kernel, space))
    return session


def life_of(session: Session, name: str) -> Lifecycle:
    return next(life for life in session.lifecycles if life.name == name)


def acquire(life: Lifecycle, block: Block) -> Block:
    """What an engine does: stop at the first failure, and give back in reverse order what was acquired."""
    for stage in life.stages:
        try:
            stage.acquire(block)
        except OSError:
            release(block)
            raise
        block.held.append(stage)
    return block


def release(block: Block) -> None:
    while block.held:
        stage = block.held.pop()
        if stage.release is not None:
            stage.release(block)


@pytest.mark.parametrize("chip", list(CHIPS))
def test_lifecycles_are_these(chip: str) -> None:
    session = open_chip(chip, kernel_of(chip))
    assert [life.name for life in session.lifecycles] == list(CHIPS[chip].lives)
    assert [life.unsupported for life in session.lifecycles] == [""] * len(session.lifecycles)
    session.close()


@pytest.mark.parametrize(("chip", "name"), LIVES)
def test_order_of_calls_and_nothing_left(chip: str, name: str) -> None:
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    base, life = kernel.left(), life_of(session, name)
    kernel.calls.clear()
    block = acquire(life, Block(5000, 3))
    assert block.size == 2 * PAGE
    kernel.calls.append("|")
    release(block)
    assert " ".join(call.replace(" ", "_") for call in kernel.calls) == CHIPS[chip].lives[name]
    assert kernel.left() == base
    session.close()
    assert kernel.left() == 0
    assert kernel.files == {}


@pytest.mark.parametrize(("chip", "name", "call"), FAULTS)
def test_a_failed_call_leaves_nothing(chip: str, name: str, call: str) -> None:
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    base, files = kernel.left(), len(kernel.files)
    kernel.fail[call] = errno.ENOMEM
    with pytest.raises(OSError, match="Cannot allocate memory"):
        acquire(life_of(session, name), Block(PAGE))
    assert (kernel.left(), len(kernel.files)) == (base, files)
    kernel.fail.clear()
    assert set(session.census().values()) <= {0}
    session.close()


CREATES = {
    "vgem": "create_dumb", "qxl": "qxl_alloc", "virtio_gpu": "resource_create", "dma_heap": "import",
    "udmabuf": "import", "prime": "import", "vfio": "map_dma", "iommufd": "ioas_alloc",
}  # fmt: skip


@pytest.mark.parametrize(("chip", "call"), CREATES.items())
def test_a_lost_reply_is_counted(chip: str, call: str) -> None:
    """The kernel made it and the answer was lost: no number of it was ever seen, and the kernel's book knows it."""
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    life = next(life for life in session.lifecycles if call in CHIPS[chip].lives[life.name].split())
    counters = [counter for counter in session.counters() if counter.unit != "bytes"]
    before = [counter.read() for counter in counters]
    kernel.lose.add(call)
    for _ in range(1 if chip == "vfio" else 3):
        with pytest.raises(OSError, match="Bad address"):
            acquire(life, Block(PAGE))
    kernel.lose.clear()
    lost = 1 if chip == "vfio" else 3
    assert sum(counter.read() for counter in counters) - sum(before) == lost
    assert sum(count for name, count in session.census().items() if "bytes" not in name) == lost
    assert sum(counter.read() for counter in counters) == sum(before)
    session.close()


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip not in ("dma_heap", "udmabuf")])
def test_a_skipped_release_is_counted(chip: str) -> None:
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    life = session.lifecycles[0]
    counter = session.counters()[0]
    assert counter.read() == 0
    blocks = [acquire(life, Block(PAGE, serial)) for serial in range(5)]
    assert counter.read() == 5
    leaked = blocks.pop(1)
    for block in blocks:
        release(block)
    assert counter.read() == 1
    kept = leaked.held[:]  # everything but the object itself goes back
    while len(kept) > (3 if chip == "vfio" else 1):
        stage = kept.pop()
        if stage.release is not None:
            stage.release(leaked)
    assert next(iter(session.census().values())) == 1
    assert counter.read() == 0
    session.close()


def test_iova_bytes_counts_both_windows_and_lost_mappings() -> None:
    kernel = kernel_of("iommufd")
    session = open_chip("iommufd", kernel)
    counter = session.counters()[1]
    assert counter.read() == 0
    blocks = [
        acquire(life_of(session, name), Block(size)) for name in ("map", "map-fixed") for size in (PAGE, 9 * PAGE)
    ]
    assert counter.read() == 20 * PAGE
    release(blocks.pop(0))
    assert counter.read() == 19 * PAGE
    kernel.lose.add("ioas_map")
    with pytest.raises(OSError, match="Bad address"):
        acquire(life_of(session, "map"), Block(32 * PAGE))
    kernel.lose.clear()
    assert counter.read() == 51 * PAGE
    assert session.census() == {"ioas": 0, "iova-bytes": 51 * PAGE}
    assert counter.read() == 0
    session.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=12), st.integers(0, 1 << 30))
def test_ranges_counts_what_is_mapped(plan: list[tuple[bool, int]], order: int) -> None:
    kernel = kernel_of("iommufd")
    session = open_chip("iommufd", kernel)
    blocks = [acquire(life_of(session, "map-fixed" if fixed else "map"), Block(count * PAGE)) for fixed, count in plan]
    for place, block in enumerate(blocks):
        if order >> place & 1:
            release(block)
    assert session.counters()[1].read() == sum(block.size for block in blocks if block.held)
    session.close()


@given(st.integers(1, 1 << 32))
def test_geometry_gives_what_was_asked(size: int) -> None:
    width, height = dumb.geometry(size)
    given_ = width * height * 4
    assert height <= 16384
    assert width % 1024 == 0
    assert size <= given_
    if size <= 64 << 20:
        assert given_ == dumb.pages(size)
    assert given_ - size <= max(PAGE, size // 4096)


@given(st.integers(1, 300_000))
def test_host_pages_are_pages_of_ours(size: int) -> None:
    mine = hostmem.pages(size)
    assert mine.address % hostmem.PAGE == 0
    assert size <= len(mine.view) < size + hostmem.PAGE
    mine.view[0 : len(mine.view)] = b"\xa5" * len(mine.view)
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        assert os.pread(fd, len(mine.view), mine.address) == mine.view[0 : len(mine.view)] == b"\xa5" * len(mine.view)
    finally:
        os.close(fd)


def test_host_pages_that_there_are_not() -> None:
    with pytest.raises(OSError, match="no memory for host pages") as caught:
        hostmem.pages(1 << 60)
    assert caught.value.errno == errno.ENOMEM


def test_a_render_node_has_no_dumb_buffers() -> None:
    kernel = Kernel(dri__renderD128="virtio_gpu")
    session = open_chip("virtio_gpu", kernel, node="/dev/dri/renderD128")
    assert [life.unsupported for life in session.lifecycles] == [dumb.NEEDS_CARD, "", ""]
    release(acquire(life_of(session, "resource"), Block(PAGE)))
    assert session.counters()[0].read() == 0
    session.close()
    session = open_chip("vgem", Kernel(dri__renderD129="vgem"), node="/dev/dri/renderD129")
    assert {life.unsupported for life in session.lifecycles} == {dumb.NEEDS_CARD}
    assert session.counters() == ()
    assert session.census() == {"gem-handles": 0}
    session.close()


def test_a_driver_without_dumb_buffers() -> None:
    kernel = kernel_of("vkms")
    kernel.fail["create_dumb"] = errno.ENOSYS
    session = open_chip("vkms", kernel)
    assert session.lifecycles[0].unsupported.endswith("the driver makes no dumb buffers (Function not implemented)")
    assert session.counters() == ()
    session.close()


def test_what_the_device_does_not_offer_is_said() -> None:
    kernel = kernel_of("virtio_gpu")
    kernel.refuse = True
    session = open_chip("virtio_gpu", kernel)
    assert life_of(session, "blob").unsupported == f"{CARD0}: the device offers no blob resources (GETPARAM 3 is 0)"
    session.close()
    kernel = kernel_of("virtio_gpu")
    kernel.fail["virt_getparam"] = errno.EINVAL
    session = open_chip("virtio_gpu", kernel)
    assert life_of(session, "blob").unsupported == f"{CARD0}: no blob resources (GETPARAM 3: Invalid argument)"
    session.close()
    kernel = kernel_of("qxl")
    kernel.fail["qxl_getparam"] = errno.EACCES
    session = open_chip("qxl", kernel)
    assert "need root or the display's master (Permission denied)" in life_of(session, "bo").unsupported
    assert life_of(session, "dumb").unsupported == ""
    session.close()
    session = open_chip("vfio", kernel_of("vfio"), others=())
    assert session.lifecycles[0].unsupported.startswith("no group bound to vfio-pci")
    assert session.counters() == ()
    session.close()


@pytest.mark.parametrize("chip", ["vfio", "iommufd"])
def test_without_an_allocator_the_lifecycle_is_unsupported(chip: str) -> None:
    row, kernel = CHIPS[chip], kernel_of(chip)
    module = import_module(f"accelctl.backends.{chip}.memory")
    session = module.MEMORY.open(Target(chip, chip, "", row.node, row.others), Env(kernel))
    assert session.lifecycles[-1].unsupported == "no address-space allocator was given"
    session.close()


def test_a_pair_that_does_not_work_is_not_offered() -> None:
    kernel = kernel_of("prime")
    session = open_chip("prime", kernel)
    for call, number in (("import", errno.ENODEV), ("export", errno.ENOSYS)):
        kernel.fail = {call: number}
        with pytest.raises(NotOffered) as caught:
            acquire(life_of(session, "virtio_gpu-to-vgem"), Block(PAGE))
        assert caught.value.errno == number
        assert kernel.left() == 0
    kernel.fail, kernel.refuse = {}, True
    with pytest.raises(NotOffered, match="cannot be mapped"):
        acquire(life_of(session, "virtio_gpu-export"), Block(PAGE))
    assert kernel.left() == 0
    session.close()


def test_an_unmap_that_unmaps_less_is_a_failure() -> None:
    """VFIO answers 0 for it; only the size tells."""
    kernel = kernel_of("vfio")
    session = open_chip("vfio", kernel)
    block = acquire(session.lifecycles[0], Block(PAGE))
    kernel.files[session.files[0].fd].ranges.clear()
    with pytest.raises(OSError, match="unmapped 0 of 4096 bytes"):
        release(block)
    session.close()


OPENS: list[tuple[str, Callable[[Kernel], object], type[AccelError], str]] = [
    ("vgem", lambda kernel: kernel.nodes.update({CARD0: "i915"}), DeviceUnusable, "its driver is i915, not vgem"),
    ("prime", lambda kernel: kernel.fail.update(version=errno.ENOTTY), DeviceUnusable, "card0: "),
    ("dma_heap", lambda kernel: kernel.fail.update(version=errno.ENOTTY), DeviceUnusable, "card1: "),
    ("vgem", lambda kernel: kernel.fail.update(create_dumb=errno.ENOMEM), DeviceUnusable, "Cannot allocate memory"),
    ("virtio_gpu", lambda kernel: kernel.fail.update(create_dumb=errno.ENOMEM), DeviceUnusable, "card0: Cannot"),
    ("udmabuf", lambda kernel: kernel.nodes.pop(CARD1), AccelError, "No such file"),
    ("vfio", lambda kernel: setattr(kernel, "refuse", True), DeviceUnusable, "not every device of the group"),
    ("vfio", lambda kernel: kernel.fail.update(group_status=errno.ENOTTY), DeviceUnusable, "not a VFIO group"),
    ("vfio", lambda kernel: kernel.fail.update(set_container=errno.EBUSY), DeviceUnusable, "does not join"),
    ("vfio", lambda kernel: kernel.fail.update(set_iommu=errno.EPERM), PermissionDenied, "SET_IOMMU"),
    ("vfio", lambda kernel: kernel.fail.update(set_iommu=errno.ENODEV), DeviceUnusable, "SET_IOMMU"),
    ("vfio", lambda kernel: kernel.fail.update(get_info=errno.ENOTTY), DeviceUnusable, "vfio"),
    ("iommufd", lambda kernel: kernel.fail.update(ioas_alloc=errno.ENOMEM), DeviceUnusable, "IOAS_ALLOC"),
]


@pytest.mark.parametrize(("chip", "change", "kind", "text"), OPENS, ids=[f"{row[0]}-{row[3]}" for row in OPENS])
def test_an_open_that_fails_leaves_nothing_open(
    chip: str, change: Callable[[Kernel], object], kind: type[AccelError], text: str
) -> None:
    kernel = kernel_of(chip)
    change(kernel)
    with pytest.raises(kind, match=text):
        open_chip(chip, kernel)
    assert kernel.files == {}


@pytest.mark.parametrize("chip", ["dma_heap", "udmabuf", "prime", "vgem"])
def test_sync_goes_to_the_dma_buf(chip: str) -> None:
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    life = next(life for life in session.lifecycles if life.sync is not None)
    block = acquire(life, Block(PAGE))
    kernel.calls.clear()
    assert life.sync is not None
    life.sync(block, True)
    life.sync(block, False)
    assert kernel.calls == ["sync", "sync"]
    release(block)
    session.close()


@pytest.mark.parametrize(("chip", "name"), LIVES)
def test_an_early_release_is_one(chip: str, name: str) -> None:
    """A stage that says it may go before later ones: the others are given back as ever after it."""
    kernel = kernel_of(chip)
    session = open_chip(chip, kernel)
    base, life = kernel.left(), life_of(session, name)
    for stage in life.stages:
        if not stage.early:
            continue
        block = acquire(life, Block(PAGE))
        _give(stage, block)
        release(block)
        assert kernel.left() == base
    session.close()


def _give(stage: Stage, block: Block) -> None:
    block.held.remove(stage)
    assert stage.release is not None
    stage.release(block)


@pytest.mark.parametrize("chip", list(CHIPS))
def test_manifest_says_where_it_is_proven(chip: str) -> None:
    package = import_module(f"accelctl.backends.{chip}")
    offered: list[tuple[Any, Any]] = []
    package.load_backend(SimpleNamespace(register=lambda manifest, memory: offered.append((manifest, memory))))
    manifest, memory = offered[0]
    assert (manifest.name, manifest.tier, manifest.proven) == (chip, "proven", "kernel guest 6.12")
    assert memory is import_module(f"accelctl.backends.{chip}.memory").MEMORY
