"""Reports of kmemleak: both shapes that kernels print, whatever a command calls itself, and what of it is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelctl.hal import kmemleak as hal
from accelctl.stress.kmemleak import AGE_S, Entry, available, parse, search, since, sort_out

NEW = """\
unreferenced object 0xffff8880041f2c00 (size 256):
  comm "python", pid 211, jiffies 4294910872
  hex dump (first 32 bytes):
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
    08 2c 1f 04 80 88 ff ff 08 2c 1f 04 80 88 ff ff  .,.......,......
  backtrace (crc 5c1a7d2a):
    [<0000000012345678>] kmalloc_trace_noprof+0x1d7/0x2a0
    [<00000000abcdef01>] virtio_gpu_object_create+0x4b/0x3d0
    drm_ioctl_kernel+0xa6/0x100
unreferenced object 0xffff888004a00000 (size 4096):
  comm "kworker/0:1", pid 12, jiffies 4294911000
  backtrace (crc 0):
"""
OLD = """\
unreferenced object 0xffff8880041f2c00 (size 64):
  comm "a", pid 9, jiffies 4294910872 (age 61.280s)
  hex dump (first 8 bytes):
    00 00 00 00 00 00 00 00                          ........
  backtrace:
    [<ffffffff81234567>] kmem_cache_alloc+0x1d7/0x2a0
"""


def test_both_shapes() -> None:
    first, second = parse(NEW)
    assert first == Entry(
        0xFFFF8880041F2C00,
        256,
        "python",
        211,
        4294910872,
        ("kmalloc_trace_noprof+0x1d7/0x2a0", "virtio_gpu_object_create+0x4b/0x3d0", "drm_ioctl_kernel+0xa6/0x100"),
    )
    assert second == Entry(0xFFFF888004A00000, 4096, "kworker/0:1", 12, 4294911000, ())
    assert parse(OLD) == (Entry(0xFFFF8880041F2C00, 64, "a", 9, 4294910872, ("kmem_cache_alloc+0x1d7/0x2a0",)),)
    assert parse("") == ()


def test_in_words() -> None:
    first, second = parse(NEW)
    assert str(first) == (
        '256 bytes at 0xffff8880041f2c00 by "python" (pid 211): '
        "kmalloc_trace_noprof < virtio_gpu_object_create < drm_ioctl_kernel"
    )
    assert str(second).endswith("(pid 12): no backtrace")


@pytest.mark.parametrize("text", ["x", "unreferenced object 0x1 (size 2):\n  comm", "kmemleak is off\n" + NEW])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a report|without its process"):
        parse(text)


COMM = st.text(st.characters(codec="latin-1", exclude_characters="\r\0"), max_size=15)
FRAME = st.from_regex(r"[a-z_][a-z0-9_.]{0,20}\+0x[0-9a-f]{1,4}/0x[0-9a-f]{1,4}( \[[a-z]{1,8}\])?", fullmatch=True)
ENTRY = st.builds(
    Entry,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    COMM,
    st.integers(0, 2**22),
    st.integers(0, 2**64 - 1),
    st.lists(FRAME, max_size=16).map(tuple),
)


def printed(entry: Entry) -> str:
    """As mm/kmemleak.c prints it (print_unreferenced)."""
    return (
        f"unreferenced object 0x{entry.address:08x} (size {entry.size}):\n"
        f'  comm "{entry.comm}", pid {entry.pid}, jiffies {entry.jiffies}\n'
        "  hex dump (first 16 bytes):\n"
        "    5b 3c 30 3e 5d 20 61 2b 30 78 30 00 00 00 00 00  [<0>] a+0x0.....\n"
        "  backtrace (crc 1f):\n" + "".join(f"    [<00000000deadbeef>] {frame}\n" for frame in entry.backtrace)
    )


@settings(max_examples=40)
@given(st.lists(ENTRY, max_size=3))
def test_what_is_printed_is_read_back(entries: list[Entry]) -> None:
    assert parse("".join(map(printed, entries))) == tuple(entries)


@given(st.text(max_size=200) | st.tuples(st.just(NEW), st.text(max_size=40), st.integers(0, len(NEW))).map(
    lambda t: t[0][: t[2]] + t[1] + t[0][t[2] :]
))  # fmt: skip
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


@settings(max_examples=40)
@given(st.lists(ENTRY, max_size=3), st.lists(ENTRY, max_size=3), st.sets(st.integers(0, 2**22)))
def test_old_ones_are_never_new_and_every_new_one_is_somewhere(
    old: list[Entry], new: list[Entry], pids: set[int]
) -> None:
    assert since(old, old) == ()
    found = sort_out(old, [*old, *new], pids)
    assert sorted((*found.ours, *found.others)) == sorted(since(old, new))
    assert all(entry.pid in pids for entry in found.ours)


def test_ours_by_thread_or_by_command() -> None:
    now = parse(NEW)
    assert sort_out((), now, {211}) == (now[:1], now[1:])
    assert sort_out((), now, (), {"python"}) == (now[:1], now[1:])
    assert sort_out(now[:1], now, {211}) == ((), now[1:])
    long = now[0]._replace(comm="accelctl-worker")
    assert sort_out((), (long,), (), {"accelctl-worker-7"}).ours == (long,)
    again = now[0]._replace(jiffies=now[0].jiffies + 1)
    assert since(now, (again,)) == (again,)


def test_a_search_waits_then_scans_twice_then_reads() -> None:
    log: list[object] = []
    found = search(sleep=log.append, scan=lambda: log.append("scan"), report=lambda: NEW)
    assert log == [AGE_S, "scan", "scan"]
    assert AGE_S > 5
    assert len(found) == 2


def test_the_file(tmp_path: Path) -> None:
    root, file = str(tmp_path), tmp_path / "sys/kernel/debug/kmemleak"
    file.parent.mkdir(parents=True)
    assert "no kmemleak" in hal.available(root)
    file.mkdir()
    assert "Is a directory" in hal.available(root)
    file.rmdir()
    file.write_text(NEW * 300, encoding="ascii")
    assert hal.available(root) == ""
    assert hal.report(root) == NEW * 300
    hal.scan(root)
    assert file.read_text(encoding="ascii").startswith("scan")
    assert available is hal.available
