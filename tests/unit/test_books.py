"""Books as counters: what they count in a real process, what they say of files they cannot read, what they never do."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from accelctl.abi.lifecycle import Counter, Target
from accelctl.hal.root import SysRoot
from accelctl.hal.tree import DirTree, LiveTree
from accelctl.stress import books
from accelctl.stress.books import books_for, every_book
from accelctl.stress.books.book import one_pass

NONE = Target("node:dma_heap/system", "dma_heap", "", "/dev/dma_heap/system")
CARD = Target("drm:card1", "qxl", "qxl", "/dev/dri/card1", ("/dev/dri/renderD129",))
AMD = Target("pci:0000:03:00.0", "amdgpu", "amdgpu", "/dev/dri/renderD128", ("/dev/dri/card0",))


def by_name(found: tuple[Counter, ...]) -> dict[str, Counter]:
    return {counter.name: counter for counter in found}


# -- this process --


def test_open_files_and_mappings_of_this_process_by_kind() -> None:
    counters = by_name(books_for(NONE)[0])
    names = ("fds-memfd", "fds-other", "maps-memfd", "maps-dmabuf", "fds-dmabuf")

    def read() -> dict[str, int]:
        return {name: counters[name].read() for name in names}

    before = read()
    fd = os.memfd_create("dmabuf:")
    os.ftruncate(fd, 8192)
    maps = [mmap.mmap(fd, 4096, offset=offset) for offset in (4096, 0)]  # not neighbours: they would be merged
    grown = {name: value - before[name] for name, value in read().items() if value != before[name]}
    assert grown.pop("fds-memfd") == 1 + len(maps)  # Python keeps a duplicate for each mapping
    assert grown.pop("maps-memfd") in (1, 2)
    assert grown == {}
    for mapping in maps:
        mapping.close()
    os.close(fd)
    assert read() == before


def test_the_listing_does_not_count_itself() -> None:
    counters = by_name(books_for(NONE)[0])
    total = sum(counter.read() for name, counter in counters.items() if name.startswith("fds-"))
    assert total == len(os.listdir("/proc/self/fd")) - 1


def test_a_leak_of_one_descriptor_each_time_is_seen_after_a_handful() -> None:
    """MEM-02: one more per iteration, of one kind, nothing else moves."""
    counter = by_name(books_for(NONE)[0])["fds-memfd"]
    series, fds = [], []
    for _ in range(6):
        series.append(counter.read())
        fds.append(os.memfd_create("leaked"))
    for fd in fds:
        os.close(fd)
    assert series == list(range(series[0], series[0] + 6))
    assert (counter.exact, counter.unit, counter.scope) == (True, "descriptors", "process")


def test_counters_made_before_a_fork_count_the_child() -> None:
    counter = by_name(books_for(NONE)[0])["fds-memfd"]
    before = counter.read()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.memfd_create("a")
        os.memfd_create("b")
        os.write(theirs, b"%d" % counter.read())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(ours, 9)) == before + 2
    assert counter.read() == before
    os.close(ours)
    os.close(theirs)


def test_another_process_is_counted_from_outside() -> None:
    ready, wait = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.memfd_create("theirs")
        os.write(ready[1], b"x")
        os.read(wait[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    theirs, mine = (by_name(books_for(NONE, pid)[0])["fds-memfd"].read() for pid in (child, None))
    os.write(wait[1], b"x")
    os.waitpid(child, 0)
    assert theirs == mine + 1
    for fd in (*ready, *wait):
        os.close(fd)
    gone, reasons = books_for(NONE, child)
    assert not [counter for counter in gone if counter.scope == "process"]
    assert {reason for _, reason in reasons if "process" in reason} == {f"process {child} has ended, or is hidden"}


def test_no_device_node_is_opened_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def spy(path: str, flags: int, *rest: int, **more: int) -> int:
        opened.append((path, flags))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", spy)
    for target in (NONE, CARD, AMD):
        for counter in books_for(target)[0]:
            counter.read()
    assert opened
    assert {flags & os.O_ACCMODE for _, flags in opened} == {os.O_RDONLY}
    assert {path.split("/")[1] for path, _ in opened} <= {"proc", "sys"}


# -- a machine in a folder --


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with a process that has files open, a card of qxl's and one of amdgpu's."""
    proc = tmp_path / "proc/self"
    (proc / "fd").mkdir(parents=True)
    (proc / "fdinfo").mkdir()
    drm = "drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-pdev:\t0000:03:00.0\ndrm-total-vram:\t4 KiB\n"
    for number, (link, text) in enumerate(
        [
            ("/dev/dri/renderD128", drm),
            ("/dev/dri/renderD128", drm),  # a duplicate
            ("/dev/dri/card0", drm.replace("id:\t7", "id:\t8").replace("4 KiB", "2 MiB")),
            ("/dev/dri/card1", "pos:\t0\n"),
            ("/dmabuf:", "ino:\t5\nsize:\t4096\ncount:\t2\n"),
            ("/dmabuf:", "ino:\t5\nsize:\t4096\ncount:\t2\n"),
            ("/dmabuf:other", "ino:\t6\nsize:\t8192\ncount:\t1\n"),
        ],
        3,
    ):
        os.symlink(link, proc / f"fd/{number}")
        (proc / f"fdinfo/{number}").write_text(text, encoding="ascii")
    (proc / "maps").write_text("1000-2000 rw-s 0 00:06 1  /dev/dri/card1\n", encoding="ascii")
    (proc / "status").write_text("VmRSS:\t100 kB\nVmLck:\t8192 kB\nVmPin:\t4 kB\n", encoding="ascii")
    debug = tmp_path / "sys/kernel/debug"
    put(debug / "dri/1/clients", "command  tgid dev master a   uid      magic\n   x  1 0 y y 0 0\n")
    put(debug / "dri/1/qxl_mem_mm", "  size: 100\n  usage: 4096\n")
    put(debug / "dri/1/qxl_buffers", "size 4096, pc 0, num releases 0\n")
    put(debug / "ttm/buffer_objects", "17\n")
    put(debug / "ttm/page_pool", "wc\t: 1\n\ntotal\t:       12 of    97000\n")
    put(debug / "dri/0/clients", "command  tgid dev master a   uid      magic\n")
    put(debug / "dri/0/amdgpu_vram_mm", "nonsense\n")
    card = tmp_path / "sys/devices/pci0000:00/0000:03:00.0"
    for name in ("card0", "renderD128"):
        (card / "drm" / name).mkdir(parents=True)
        os.symlink("../..", card / "drm" / name / "device")
        (tmp_path / "sys/class/drm").mkdir(parents=True, exist_ok=True)
        os.symlink(f"/sys/devices/pci0000:00/0000:03:00.0/drm/{name}", tmp_path / f"sys/class/drm/{name}")
    put(card / "mem_info_vram_used", "123456\n")
    put(card / "mem_info_gtt_used", "\n")
    put(tmp_path / "sys/class/kfd/kfd/proc/77/vram_4711", "8192\n")
    put(tmp_path / "sys/class/kfd/kfd/proc/77/vram_4712", "4096\n")
    put(tmp_path / "proc/77/status", "VmRSS:\t1 kB\n")
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def values(machine: Path, target: Target, pid: int | None = None) -> tuple[dict[str, int], dict[str, str]]:
    found, missing = books_for(target, pid, root=SysRoot(DirTree(str(machine))))
    return {counter.name: counter.read() for counter in found}, dict(missing)


def test_books_of_a_process(machine: Path) -> None:
    found, _ = values(machine, AMD)
    assert (found["fds-drm"], found["fds-dmabuf"], found["fds-other"]) == (4, 3, 0)
    assert (found["rss"], found["vmlck"], found["vmpin"]) == (102400, 8388608, 4096)
    assert (found["maps-drm"], found["maps-anon"]) == (1, 0)
    assert found["fdinfo-total-vram"] == 4096 + (2 << 20)
    assert (found["dmabuf-bytes"], found["dmabuf-references"]) == (12288, 3)


def test_books_of_a_device_and_why_the_others_are_not_there(machine: Path) -> None:
    found, missing = values(machine, CARD)
    assert (found["drm-clients"], found["qxl-vram"], found["qxl-objects"]) == (1, 4096, 1)
    assert (found["ttm-objects"], found["ttm-pool"]) == (17, 12)
    assert missing["qxl-surfaces"] == "not offered by the driver qxl"
    assert missing["fdinfo"] == "qxl prints no drm lines in fdinfo"
    assert not [name for name in (*found, *missing) if name.startswith(("amdgpu", "mem-", "kfd", "i915"))]


def test_a_render_node_finds_the_files_of_its_card(machine: Path) -> None:
    found, missing = values(machine, AMD)
    assert (found["drm-clients"], found["mem-vram"], found["kfd-processes"]) == (0, 123456, 1)
    assert missing["amdgpu-vram-mm"] == "no usage line"
    assert missing["mem-gtt"].startswith("not a number")
    assert missing["mem-vis_vram"] == "not offered by the driver amdgpu"
    assert "KFD knows nothing of this process" in missing["kfd-vram"]
    assert values(machine, AMD, 77)[0]["kfd-vram"] == 12288


def test_what_cannot_apply_is_not_complained_about(machine: Path) -> None:
    found, missing = values(machine, NONE)
    assert not [name for name in (*found, *missing) if name.startswith(("drm-", "fdinfo"))]


def test_a_counter_whose_file_vanishes_says_so(machine: Path) -> None:
    root = SysRoot(DirTree(str(machine)))
    counters = by_name(books_for(CARD, root=root)[0])
    (machine / "sys/kernel/debug/dri/1/clients").unlink()
    with pytest.raises(OSError, match=r"not contain|not provide"):
        counters["drm-clients"].read()
    (machine / "proc/self/status").write_text("VmRSS: lots\n", encoding="ascii")
    with pytest.raises(ValueError, match="VmRSS"):
        counters["rss"].read()


class Refusing(LiveTree):
    """The running machine, with some files that answer with an errno."""

    def __init__(self, answer: Callable[[str], int]) -> None:
        self._answer = answer

    def read(self, path: str, limit: int) -> bytes:
        code = self._answer(path)
        if code:
            raise OSError(code, os.strerror(code), path)
        return super().read(path, limit)

    def listdir(self, path: str) -> list[str]:
        return [] if path == "sys/kernel/debug" else super().listdir(path)


@pytest.mark.parametrize(
    ("code", "euid", "reason"),
    [
        (errno.EACCES, 1000, "debugfs is root's"),
        (errno.ENOENT, 0, "debugfs is not mounted"),
        (errno.ENOENT, 1000, "debugfs is root's, or not mounted"),
        (errno.EACCES, 0, "no permission for sys/kernel/debug/dma_buf/bufinfo"),
    ],
)
def test_debugfs_reasons(monkeypatch: pytest.MonkeyPatch, code: int, euid: int, reason: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    root = SysRoot(Refusing(lambda path: code if path.startswith("sys/kernel/debug") else 0))
    assert dict(books_for(NONE, root=root)[1])["dmabuf-objects"] == reason


def test_slabinfo_is_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    root = SysRoot(Refusing(lambda path: errno.EACCES if path == "proc/slabinfo" else 0))
    reasons = dict(books_for(NONE, root=root)[1])
    assert reasons["slab-kmalloc-64"] == "no permission for proc/slabinfo: root may"


def test_one_pass_reads_a_file_once_and_the_next_one_reads_it_again() -> None:
    reads: list[str] = []

    class Counting(LiveTree):
        def read(self, path: str, limit: int) -> bytes:
            reads.append(path)
            return super().read(path, limit)

    found = by_name(books_for(NONE, root=SysRoot(Counting()))[0])
    names = ("shmem", "slab-unreclaimable", "maps-drm", "maps-memfd")
    fd = os.memfd_create("mapped")
    os.ftruncate(fd, 4096)
    mappings: list[mmap.mmap] = []
    for memfds in (0, 1):
        del reads[:]
        with one_pass():
            values = {name: found[name].read() for name in names}
        assert values["maps-memfd"] == memfds
        assert sorted(reads) == ["proc/meminfo", "proc/self/maps"]
        if not mappings:
            mappings.append(mmap.mmap(fd, 4096))
    assert found["maps-memfd"].read() == 1
    mappings.pop().close()
    os.close(fd)
    assert found["maps-memfd"].read() == 0  # outside of a pass nothing is remembered


def test_a_table_of_all_books() -> None:
    rows = every_book()
    names = [book.name for book in rows]
    assert len(names) == len(set(names))
    for book in rows:
        assert (book.read is None) != (book.find is None), book.name
        assert book.catches, book.name
        assert book.scope in books.SCOPES
        assert not book.exact or book.scope != "system", book.name
    only = books_for(NONE, scopes=("process",))
    assert {counter.scope for counter in only[0]} == {"process"}
