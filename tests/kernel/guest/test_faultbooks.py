"""The kernel's books on real drivers: each object, mapping and descriptor held shows in the book that is for it, by as
many as are held, and is gone from it afterwards. And the kernel's own faults and leak detector, used as in a sweep."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from accelctl.abi.lifecycle import Block, Counter, Target
from accelctl.hal.devfile import SYSCALLS, DevFile
from accelctl.hal.failnth import FailNth, path_of_thread
from accelctl.hal.root import open_root
from accelctl.stress import failnth, kmemleak, limits
from accelctl.stress.books import books_for
from accelctl.stress.failnth import FailNthCalls

from .backendkit import (
    CARDS,
    CREATE_DUMB,
    PAGE,
    acquire,
    cycle,
    life_of,
    nodes,
    nothing_open,
    opened,
    raw_close,
    raw_dumb,
    release,
    target_of,
)
from .helpers import needs, unprivileged, wait_for

__all__ = ["nothing_open"]  # used by every test here

HELD = 5
DRM = [pytest.param(chip, marks=needs("debug")) if chip == "vkms" else chip for chip in CARDS]
DEBUG = Path("/sys/kernel/debug")
CGROUP = Path("/sys/fs/cgroup")


def read(target: Target, *names: str) -> dict[str, int]:
    counters = {counter.name: counter for counter in books_for(target)[0]}
    return {name: counters[name].read() for name in names}


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - value for name, value in before.items() if after[name] != value}


def settled(counters: dict[str, Counter], before: dict[str, int]) -> None:
    wait_for(lambda: {name: counters[name].read() for name in before} == before, f"back to {before}", 20)


# -- books --


@pytest.mark.parametrize("chip", DRM)
def test_objects_and_mappings_of_each_driver(chip: str) -> None:
    target = target_of(chip)
    with opened(target) as session:
        life = life_of(session, "dumb")
        counters = {counter.name: counter for counter in books_for(target)[0]}
        reasons = dict(books_for(target)[1])
        cycle(life, 3)
        names = [name for name, counter in counters.items() if counter.exact]
        before = {name: counters[name].read() for name in names}
        blocks = [acquire(life, Block(4 * PAGE, serial)) for serial in range(HELD)]
        grown = moved(before, {name: counters[name].read() for name in names})
        assert grown.pop("maps-drm") == HELD
        assert grown.pop("fds-drm") in (0, HELD)  # Python's duplicates of the mapped file
        if chip == "qxl":
            assert grown.pop("qxl-objects") == HELD
            assert grown.pop("qxl-vram", 0) in (0, HELD * 4 * PAGE)  # placed there only when it is used
        assert grown == {}
        assert before["drm-clients"] >= 1
        assert reasons.get("fdinfo") == f"{target.driver} prints no drm lines in fdinfo"
        for block in blocks:
            release(block)
        settled(counters, before)


@pytest.mark.parametrize("chip", DRM)
def test_clients_of_the_device_are_its_open_files(chip: str) -> None:
    target = target_of(chip)
    before = read(target, "drm-clients", "fds-drm")
    files = [DevFile(target.node) for _ in range(3)]
    grown = moved(before, read(target, "drm-clients", "fds-drm"))
    for file in files:
        file.close()
    assert grown == {"drm-clients": 3, "fds-drm": 3}
    assert read(target, "drm-clients", "fds-drm") == before


def test_a_leaked_object_without_a_handle_shows_in_qxls_own_list() -> None:
    """Mapped, and its handle closed: no count of handles has it any more, the driver's list and the mappings do."""
    target = target_of("qxl")
    with opened(target) as session:
        life = life_of(session, "dumb")
        cycle(life, 1)
        (handles,) = session.counters()
        before = read(target, "qxl-objects", "maps-drm")
        block = acquire(life, Block(PAGE, 1))
        raw_close(session.files[0].fd, block.handle)
        assert handles.read() == 0
        assert moved(before, read(target, "qxl-objects", "maps-drm")) == {"qxl-objects": 1, "maps-drm": 1}
        assert block.map is not None
        session.files[0].unmap(block.map)
        wait_for(lambda: read(target, "qxl-objects", "maps-drm") == before, "gone with its mapping", 20)


@pytest.mark.parametrize("chip", ["dma_heap", "udmabuf"])
def test_buffers_in_the_books_of_the_process_and_of_the_system(chip: str) -> None:
    target = target_of(chip)
    names = ("fds-dmabuf", "maps-dmabuf", "dmabuf-bytes", "dmabuf-references", "dmabuf-objects", "dmabuf-all-bytes")
    with opened(target) as session:
        life = life_of(session, "buffer")
        cycle(life, 2)
        before = read(target, *names)
        blocks = [acquire(life, Block(2 * PAGE, serial)) for serial in range(HELD)]
        grown = moved(before, read(target, *names))
        size = HELD * 2 * PAGE
        assert {name: grown[name] for name in ("maps-dmabuf", "dmabuf-objects")} == {
            "maps-dmabuf": HELD, "dmabuf-objects": HELD,
        }  # fmt: skip
        assert (grown["dmabuf-bytes"], grown["dmabuf-all-bytes"]) == (size, size)
        assert grown["fds-dmabuf"] == 2 * HELD  # its own, and Python's duplicate for the mapping
        assert grown["dmabuf-references"] >= 2 * HELD
        for block in blocks:
            release(block)
        wait_for(lambda: read(target, *names) == before, "all buffers given back", 20)


def test_a_buffer_that_only_a_device_holds_is_in_the_systems_book_alone() -> None:
    """Exported, imported by another device, its descriptor closed: what lives on has no descriptor and no mapping."""
    target = target_of("dma_heap")
    names = ("fds-dmabuf", "maps-dmabuf", "dmabuf-objects")
    with opened(target) as session:
        life = life_of(session, "import-vgem")
        cycle(life, 2)
        before = read(target, *names)
        stages = life.stages[: 1 + next(index for index, stage in enumerate(life.stages) if stage.name == "import")]
        block = acquire(life._replace(stages=stages), Block(PAGE, 1))
        assert block.file is not None
        block.file.close()
        assert moved(before, read(target, *names)) == {"dmabuf-objects": 1}
        release(block)
        wait_for(lambda: read(target, *names) == before, "given back", 20)


def test_shmem_sees_the_pages_of_vgem() -> None:
    """Give or take what each CPU has not yet added to the total (125 pages, mm/vmstat.c)."""
    target = target_of("vgem")
    with opened(target) as session:
        life = life_of(session, "dumb")
        before = read(target, "shmem")["shmem"]
        block = acquire(life, Block(8 << 20, 1))
        assert block.map is not None
        for at in range(0, block.size, PAGE):
            block.map[at] = 1
        grown = read(target, "shmem")["shmem"] - before
        assert abs(grown - (8 << 20)) < 2 << 20
        release(block)


def test_without_root_the_process_has_its_books_and_the_rest_its_reasons() -> None:
    target = target_of("vgem")

    def look() -> tuple[list[str], dict[str, str]]:
        found, missing = books_for(target)
        return [counter.name for counter in found], dict(missing)

    found, missing = unprivileged(65534, 65534, [], look)
    assert {"fds-dmabuf", "maps-drm", "rss", "shmem"} <= set(found)
    assert missing["drm-clients"] == missing["dmabuf-objects"] == "debugfs is root's"
    assert missing["slab-kmalloc-64"].startswith("no permission for proc/slabinfo")


def test_reading_all_books_opens_no_node_of_a_device() -> None:
    clients = {node: (DEBUG / f"dri/{node.removeprefix('/dev/dri/card')}/clients") for node in nodes("vgem")}
    before = {node: file.read_text(encoding="ascii") for node, file in clients.items()}
    for chip in ("vgem", "qxl", "virtio_gpu", "bochs"):
        for counter in books_for(target_of(chip))[0]:
            counter.read()
    assert {node: file.read_text(encoding="ascii") for node, file in clients.items()} == before


# -- faults inside the kernel --


@contextmanager
def knobs_set() -> Iterator[None]:
    for kind in ("failslab", "fail_page_alloc"):
        (DEBUG / kind / "ignore-gfp-wait").write_text("N", encoding="ascii")
        (DEBUG / kind / "verbose").write_text("0", encoding="ascii")
    (DEBUG / "fail_usercopy/verbose").write_text("0", encoding="ascii")
    yield


@needs("debug")
def test_the_hint_is_what_makes_the_knobs_right() -> None:
    root = open_root("/")
    assert failnth.available(root) is None
    (DEBUG / "failslab/ignore-gfp-wait").write_text("Y", encoding="ascii")
    (DEBUG / "fail_usercopy/verbose").write_text("2", encoding="ascii")
    hint = failnth.knobs(root)
    assert hint.startswith("echo N > /sys/kernel/debug/failslab/ignore-gfp-wait")
    assert os.waitstatus_to_exitcode(os.system(hint)) == 0
    assert failnth.knobs(root) == ""


@needs("stock")
def test_a_kernel_without_it_says_so() -> None:
    root = open_root("/")
    assert "CONFIG_FAULT_INJECTION" in str(failnth.available(root))
    assert failnth.knobs(root) == ""
    with pytest.raises(FileNotFoundError):
        FailNth()
    assert "CONFIG_DEBUG_KMEMLEAK" in kmemleak.available()


@needs("debug")
@pytest.mark.parametrize("chip", ["vgem", "qxl", "virtio_gpu"])
def test_a_walk_over_one_call_strikes_each_point_once(chip: str) -> None:
    """CREATE_DUMB fails at 1, 2, 3, ... and then succeeds; what a failed copy of the answer left goes at close."""
    target = target_of(chip)
    with knobs_set(), closing(FailNth()) as fail:
        calls = FailNthCalls(SYSCALLS, fail)
        first, left = walk(target, calls)
        second, _ = walk(target, calls)
    assert 5 <= len(first) <= 80
    assert abs(len(first) - len(second)) <= 8  # slab caches and page pools fill up
    names = {struck.errno for struck in first}
    assert errno.EFAULT in names
    assert errno.ENOMEM in names
    assert names <= {0, errno.EFAULT, errno.ENOMEM, errno.ENOSPC}
    assert left == 1
    assert Path(path_of_thread()).read_text(encoding="ascii").strip() == "0"


def walk(target: Target, calls: FailNthCalls) -> tuple[list[failnth.Struck], int]:
    """The points of a CREATE_DUMB; how many handles nobody was told of (their numbers are lowest-free)."""
    struck: list[failnth.Struck] = []
    with DevFile(target.node, syscalls=calls) as file:
        raw_close(file.fd, raw_dumb(file.fd, 1)[0])

        def run() -> None:
            calls.at("object")
            argument = bytearray(32)
            argument[0:12] = b"\x01\0\0\0\0\x04\0\0\x20\0\0\0"  # height 1, width 1024, 32 bits
            try:
                file.ioctl(CREATE_DUMB, argument)
            except OSError:
                return
            finally:
                calls.at("")
            raw_close(file.fd, int.from_bytes(argument[16:20], "little"))

        for point in failnth.sweep(calls, "object", run):
            struck.append(point)
        handle = raw_dumb(file.fd, 1)[0]
    return struck, handle - 1


@needs("debug")
def test_reading_back_is_never_taken_for_a_hit() -> None:
    """The read and the write of fail-nth have fault points of their own: with nothing in between nothing is hit."""
    with knobs_set(), closing(FailNth()) as fail:
        for n in range(1, 12):
            fail.arm(n)
            assert fail.stop() is False, n


@needs("debug")
def test_only_the_thread_that_opened_it_is_failed() -> None:
    with knobs_set(), closing(FailNth()) as fail:
        wrong: list[BaseException] = []

        def other() -> None:
            try:
                fail.arm(1)
            except ValueError as error:
                wrong.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(wrong) == 1
        assert Path(path_of_thread()).read_text(encoding="ascii").strip() == "0"


# -- kmemleak, limits --


@needs("debug")
def test_cycles_of_each_driver_lose_no_kernel_memory() -> None:
    assert kmemleak.available() == ""
    baseline = kmemleak.search()
    for chip in ("vgem", "qxl", "virtio_gpu", "bochs", "vkms"):
        with opened(target_of(chip)) as session:
            cycle(life_of(session, "dumb"), 100)
    found = kmemleak.sort_out(baseline, kmemleak.search(), {threading.get_native_id(), os.getpid()})
    assert [str(entry) for entry in found.ours] == []


@needs("stock")
def test_a_memory_cgroup_ends_a_worker_that_takes_too_much() -> None:
    assert "memory" in (CGROUP / "cgroup.controllers").read_text(encoding="ascii").split()
    (CGROUP / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    child = os.fork()
    if child == 0:
        limits.worker((limits.parse_limit("memory=48MiB"),))
        held = bytearray()
        while len(held) < 256 << 20:
            held += b"x" * (4 << 20)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    group = CGROUP / f"accelctl-{child}"
    assert (group / "memory.max").read_text(encoding="ascii").strip() == str(48 << 20)
    group.rmdir()


def test_a_worker_is_what_the_oom_killer_takes() -> None:
    child = os.fork()
    if child == 0:
        limits.worker()
        os._exit(Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip() == "1000")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
