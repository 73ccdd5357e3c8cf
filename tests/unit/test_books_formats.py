"""Formats of the kernel's book: what a driver prints is counted right, and no text whatever ends in a traceback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelctl.hal import bookfile, fdinfo

PARSERS: list[Callable[[str], object]] = [
    fdinfo.parse_maps, fdinfo.parse_drm, fdinfo.parse_dmabuf, fdinfo.parse_fields, bookfile.number, bookfile.kib_fields,
    bookfile.slabs, bookfile.closing_total, bookfile.clients, bookfile.ttm_usage, bookfile.mm_used,
    bookfile.pooled_pages, bookfile.i915_objects, bookfile.v3d_stats, bookfile.amdgpu_handles, bookfile.qxl_objects,
]  # fmt: skip

MAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
7f0000000000-7f0000001000 rw-s 100000000 00:06 321                       /dev/dri/renderD128
7f0000001000-7f0000002000 rw-s 100000000 00:06 322                       /dev/accel/accel0
7f0000002000-7f0000003000 rw-s 00000000 00:01 12                         /drm mm object (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:0b 13                         /dmabuf:a\\012b
7f0000004000-7f0000005000 rw-s 00000000 00:06 14                         /dev/nvidia0
7f0000005000-7f0000006000 rw-s 00000000 00:01 15                         /memfd:x (deleted)
7f0000006000-7f0000007000 ---p 00000000 00:00 0
7f0000007000-7f0000008000 rw-p 00000000 00:00 0                          [anon:arena]
7f0000008000-7f0000009000 rw-p 00000000 00:00 0                          [stack]
7f0000009000-7f000000a000 rw-s 00000000 00:06 16                         /dev/kfd
7f000000a000-7f000000b000 rw-s 00000000 00:06 17                         /home/u/dev/dri/card0
"""


def test_maps_by_what_is_mapped() -> None:
    assert fdinfo.parse_maps(MAPS) == {
        "drm": 3, "dmabuf": 1, "nvidia": 1, "memfd": 1, "device": 1, "anon": 2, "other": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "00400000-00452000 r-xp 00000000 08:02",
        "00400000-00452000 rwxq 00000000 08:02 1 /bin/true",
        "00400000 r-xp 00000000 08:02 1 /bin/true",
        "00400000-00452000 r-xp 00000000 0802 1 /bin/true",
        " ",
    ],
)
def test_a_line_that_is_none_of_maps_is_said(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of maps"):
        fdinfo.parse_maps(f"{MAPS}{line}\n")


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("/dmabuf:", "dmabuf"),
        ("/dmabuf:name", "dmabuf"),
        ("anon_inode:dmabuf", "dmabuf"),
        ("anon_inode:sync_file", "sync_file"),
        ("anon_inode:syncobj_file", "syncobj"),
        ("/dev/dri/renderD128", "drm"),
        ("/dev/dri/card0 (deleted)", "drm"),
        ("/dev/accel/accel0", "drm"),
        ("/dev/nvidiactl", "nvidia"),
        ("/dev/nvidia-uvm", "nvidia"),
        ("/memfd:dmabuf: (deleted)", "memfd"),
        ("/dev/kfd", "device"),
        ("/dev/vfio/vfio", "device"),
        ("/dev/null", "other"),
        ("pipe:[1]", "other"),
        ("/tmp/dmabuf:", "other"),
        ("/tmp/dev/dri/card0", "other"),
        ("", "other"),
    ],
)
def test_kinds_of_open_files(link: str, kind: str) -> None:
    assert fdinfo.kind_of(link) == kind
    assert kind in fdinfo.KINDS


AMDGPU = """\
pos:\t0
flags:\t02100002
mnt_id:\t26
ino:\t634
drm-driver:\tamdgpu
drm-client-id:\t7
drm-pdev:\t0000:03:00.0
pasid:\t32771
drm-total-vram:\t524288 KiB
drm-shared-vram:\t4 KiB
drm-resident-vram:\t2 MiB
drm-total-cpu:\t100
"""
I915 = "drm-driver: i915\ndrm-pdev: 0000:00:02.0\ndrm-client-id: 7\ndrm-total-system: 102400 KiB\n"


def test_clients_are_known_by_device_and_number() -> None:
    """Two descriptors of one file count once, equal client numbers on two devices are two clients."""
    amd, intel = fdinfo.parse_drm(AMDGPU), fdinfo.parse_drm(I915)
    assert amd is not None
    assert intel is not None
    assert amd.client == ("0000:03:00.0", "7")
    assert fdinfo.sum_clients([amd]) == {"total-vram": 536870912, "resident-vram": 2 << 20, "total-cpu": 100}
    assert fdinfo.sum_clients([amd, amd, intel]) == fdinfo.sum_clients([amd]) | {"total-system": 104857600}
    other = fdinfo.parse_drm(AMDGPU.replace("client-id:\t7", "client-id:\t8"))
    assert other is not None
    assert fdinfo.sum_clients([amd, other])["total-vram"] == 2 * 536870912


def test_drm_files_that_say_nothing_or_nonsense() -> None:
    assert fdinfo.parse_drm("pos:\t0\nflags:\t02\n") is None
    for wrong in ("drm-total-vram:\t5 GiB\n", "drm-total-vram:\t-5\n", "drm-total-vram:\t٣\n", "drm-total-vram:\t\n"):
        with pytest.raises(ValueError, match="not a size"):
            fdinfo.parse_drm("drm-driver: x\ndrm-client-id: 1\n" + wrong)
    with pytest.raises(ValueError, match="client id"):
        fdinfo.parse_drm("drm-driver: x\ndrm-total-vram: 5\n")


def test_dmabuf_fields_come_before_the_name_that_anybody_gives() -> None:
    text = "pos:\t0\nino:\t42\nsize:\t8192\ncount:\t3\nexp_name:\tudmabuf\nname:\tx\nsize:\t1\ncount:\t99\n"
    assert fdinfo.parse_dmabuf(text) == fdinfo.DmaBuf(8192, 3, 42)
    assert fdinfo.parse_dmabuf("size:\t1\ncount:\t1\n").inode == 0
    with pytest.raises(ValueError, match="count"):
        fdinfo.parse_dmabuf("size:\t1\n")


BUFINFO = """\

Dma-buf Objects:
size    \tflags   \tmode    \tcount   \texp_name\tino     \tname
00004096\t00000002\t00080007\t00000002\tdrm\t00000012\tTotal 9 objects, 9 bytes
Total 7 objects, 7 bytes

\tAttached Devices:
Total 0 devices attached


Total 1 objects, 4096 bytes
"""


def test_only_the_closing_line_is_the_total() -> None:
    assert bookfile.closing_total(BUFINFO) == (1, 4096)
    assert bookfile.closing_total("Total:      12 objects,      8192 bytes\n") == (12, 8192)
    with pytest.raises(ValueError, match="closing"):
        bookfile.closing_total(BUFINFO + "cut")


CLIENTS = """\
             command  tgid dev master a   uid      magic
               weird    12   0   y    y     0          0
                 Xorg   812 128   n    n  1000          7
line break
and more     13   0   n    n     0          0
"""


def test_clients_of_both_forms() -> None:
    assert bookfile.clients(CLIENTS) == 3
    assert bookfile.clients(CLIENTS.partition("\n")[0]) == 0
    newer = (
        "             command  tgid dev master a   uid      magic                             name                 id\n"
        "             python3   215   0   y    y     0          0                          <unset>                  9\n"
    )
    assert bookfile.clients(newer) == 1
    with pytest.raises(ValueError, match="not a table"):
        bookfile.clients("nothing")


TTM = """\
  use_type: 1
  use_tt: 0
  size: 16777216
  usage: 4128768
0x0-0x10: 16: used
total: 4096, used 1008 free 3088
"""


def test_managers_and_pools() -> None:
    assert bookfile.ttm_usage(TTM) == 4128768
    assert bookfile.mm_used(TTM) == 1008
    assert bookfile.pooled_pages("\t ---0---\nwc\t:  1 2\n\ntotal\t:       12 of    97000\n") == 12
    assert bookfile.i915_objects("12 shrinkable [0 free] objects, 8192 bytes\nsystem: ...\n") == (12, 8192)
    assert bookfile.v3d_stats("allocated bos:          193\nallocated bo size (kb): 551940\n") == (193, 551940 << 10)
    assert bookfile.qxl_objects("size 4096, pc 0, num releases 0\nsize 8192, pc 1, num releases 2\n") == 2
    assert bookfile.qxl_objects("") == 0
    gem = "pid     1234 command x:\n\t0x00000001:      4096 byte VRAM\n\t0x00000002:  8192 byte GTT exported as 0\n"
    assert bookfile.amdgpu_handles(gem) == 2
    with pytest.raises(ValueError, match="range manager"):
        bookfile.mm_used("Host allocations not visible to guest\n")


SLABINFO = """\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> ...
drm_i915_gem_object     12     34   1024    8    2 : tunables    0    0    0 : slabdata      5      5      0
kmalloc-64         3600   4096     64   64    1 : tunables    0    0    0 : slabdata     64     64      0
"""


def test_slab_caches_and_fields_in_kib() -> None:
    assert bookfile.slabs(SLABINFO) == {"drm_i915_gem_object": 12, "kmalloc-64": 3600}
    with pytest.raises(ValueError, match="version 2"):
        bookfile.slabs("slabinfo - version: 3.0\n")
    fields = bookfile.kib_fields("Name:\tpython3\nVmLck:\t    8192 kB\nThreads:\t1\nVmRSS:\t 9 kB\n")
    assert fields == {"VmLck": 8388608, "VmRSS": 9216}
    with pytest.raises(ValueError, match="VmPin"):
        bookfile.field(fields, "VmPin")
    assert bookfile.number("123\n") == 123
    for wrong in ("", "-1", "0x10", "1 2", "٣"):
        with pytest.raises(ValueError, match="not a number"):
            bookfile.number(wrong)


PIECES = st.sampled_from(
    [MAPS, AMDGPU, BUFINFO, CLIENTS, TTM, SLABINFO, "\n", "\0", "drm-driver: x\n", "ino: ", "size: ", "9" * 30, "kB",
     "Total 1 objects, 2 bytes", "usage: 1", "allocated bos: 1\n"]
)  # fmt: skip
HOSTILE = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=6).map("".join))


@given(HOSTILE)
def test_no_text_is_too_hostile(text: str) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except ValueError:
            continue


@given(st.dictionaries(st.sampled_from(list(fdinfo.MAP_KINDS)), st.integers(0, 5)))
def test_every_mapping_is_counted_once(wanted: dict[str, int]) -> None:
    names = {
        "drm": "/dev/dri/card1", "dmabuf": "/dmabuf:x", "nvidia": "/dev/nvidia0", "memfd": "/memfd:a (deleted)",
        "device": "/dev/vfio/7", "anon": "", "other": "/bin/true",
    }  # fmt: skip
    lines = [f"1000-2000 rw-s 0 00:06 1 {names[kind]}".rstrip() for kind, count in wanted.items() for _ in range(count)]
    found = fdinfo.parse_maps("".join(f"{line}\n" for line in lines))
    assert found == dict.fromkeys(fdinfo.MAP_KINDS, 0) | wanted
    assert sum(found.values()) == len(lines)
