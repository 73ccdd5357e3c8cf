"""Books of one device. Most are debugfs files of its driver: root's, and other clients of the device move them too.

Formats and names: Linux 6.12 sources of the drivers, amdgpu_vram_mgr.c and kfd_process.c for sysfs. Not read: files
that wake the device (xe's ggtt) or act when read (ttm/page_pool_shrink).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from accelctl.abi.lifecycle import HANDLE
from accelctl.hal import bookfile
from accelctl.hal.allowlist import FREE
from accelctl.stress.books.book import DEBUGFS, Book, NotApplicable, Place

_SETTLE_S = 1.0
"""TTM destroys busy objects on a workqueue."""
_KFD = "sys/class/kfd/kfd/proc"


def minor(place: Place) -> str:
    """The debugfs folder of the device: dri/N of its card node, or accel/N. OSError where it is neither."""
    name = place.target.node.rpartition("/")[2]
    if name.startswith("accel") and name[5:].isdigit():
        return f"{DEBUGFS}/accel/{name[5:]}"
    if not name.startswith(("card", "renderD")):
        raise NotApplicable(errno.ENODEV, f"{place.target.node} is no DRM device")
    siblings = [name, *place.root.listdir(f"sys/class/drm/{name}/device/drm")]  # a render node's card has the files
    for sibling in siblings:
        if sibling.startswith("card") and sibling[4:].isdigit():
            return f"{DEBUGFS}/dri/{sibling[4:]}"
    raise OSError(errno.ENODEV, f"{place.target.node} has no card node, whose number its debugfs folder bears")


def _debugfs(file: str, parse: Callable[[str], int]) -> Callable[[Place], int]:
    return lambda place: parse(place.text(f"{minor(place)}/{file}"))


def _sysfs(file: str) -> Callable[[Place], int]:
    def read(place: Place) -> int:
        name = place.target.node.rpartition("/")[2]
        if not name.startswith(("card", "renderD")):
            raise NotApplicable(errno.ENODEV, f"{place.target.node} is no DRM device")
        place.root.allow.add(file, FREE)  # as the chip's own table of attributes has it
        return bookfile.number(place.text(f"sys/class/drm/{name}/device/{file}"))

    return read


def _first(parse: Callable[[str], tuple[int, int]]) -> Callable[[str], int]:
    return lambda text: parse(text)[0]


def _second(parse: Callable[[str], tuple[int, int]]) -> Callable[[str], int]:
    return lambda text: parse(text)[1]


def _kfd_vram(place: Place) -> int:
    """Bytes over all GPUs. The process has a folder from its first open of the node until after its end."""
    folder = f"{_KFD}/{place.pid or os.getpid()}"
    place.root.allow.add("kfd/kfd/proc/*/vram_*", FREE)
    try:
        names = [name for name in place.root.tree.listdir(folder) if name.startswith("vram_")]
    except FileNotFoundError:
        raise OSError(errno.ENODEV, "KFD knows nothing of this process: it has not opened its node") from None
    return sum(bookfile.number(place.text(f"{folder}/{name}")) for name in names)


def _kfd_processes(place: Place) -> int:
    return sum(name.isdigit() for name in place.root.tree.listdir(_KFD))


def _row(
    name: str, unit: str, file: str, parse: Callable[[str], int], catches: str, drivers: tuple[str, ...] = ()
) -> Book:
    kind = HANDLE if unit in ("objects", "handles") else ""
    source = f"{DEBUGFS}/dri/N/{file}"
    return Book(name, unit, "device", source, catches, _debugfs(file, parse), True, _SETTLE_S, kind, drivers)


def _memory(pool: str) -> Book:
    name, source = f"mem-{pool}", f"mem_info_{pool}_used"
    return Book(
        name, "bytes", "device", source, f"{pool} of all clients", _sysfs(source), False, _SETTLE_S, drivers=("amdgpu",)
    )


def _total(driver: str) -> tuple[Book, Book]:
    """Drivers whose list of objects ends with a total."""
    return (
        _row(
            f"{driver}-objects", "objects", "gem", _first(bookfile.closing_total), "objects of all clients", (driver,)
        ),
        _row(f"{driver}-bytes", "bytes", "gem", _second(bookfile.closing_total), "objects of all clients", (driver,)),
    )


_OLD_VRAM = "video memory (drivers on the VRAM helpers; bochs until 6.12 or so)"
BOOKS: tuple[Book, ...] = (
    _row("drm-clients", "files", "clients", bookfile.clients, "open files of the device"),
    _row("qxl-objects", "objects", "qxl_buffers", bookfile.qxl_objects, "objects, also without a handle", ("qxl",)),
    _row("qxl-vram", "bytes", "qxl_mem_mm", bookfile.ttm_usage, "VRAM that TTM gave out", ("qxl",)),
    _row("qxl-surfaces", "bytes", "qxl_surf_mm", bookfile.ttm_usage, "surface memory that TTM gave out", ("qxl",)),
    _row("vram-mm", "bytes", "vram-mm", bookfile.ttm_usage, _OLD_VRAM, ("bochs-drm", "ast", "hibmc")),
    _row(
        "virtio-gpu-host-visible", "bytes", "virtio-gpu-host-visible-mm", bookfile.mm_used,
        "host-visible window", ("virtio_gpu",),
    ),
    _memory("vram"),
    _memory("vis_vram"),
    _memory("gtt"),
    _row("amdgpu-handles", "handles", "amdgpu_gem_info", bookfile.amdgpu_handles, "of all clients", ("amdgpu",)),
    _row("amdgpu-vram-mm", "bytes", "amdgpu_vram_mm", bookfile.ttm_usage, "VRAM that TTM gave out", ("amdgpu",)),
    _row("amdgpu-gtt-mm", "bytes", "amdgpu_gtt_mm", bookfile.ttm_usage, "GTT that TTM gave out", ("amdgpu",)),
    Book("kfd-vram", "bytes", "process", f"{_KFD}/PID/vram_*", "VRAM of KFD allocations", _kfd_vram,
         settle_s=_SETTLE_S, drivers=("amdgpu", "amdkfd", "kfd")),
    Book("kfd-processes", "processes", "device", _KFD, "process objects that outlive their process", _kfd_processes,
         exact=False, settle_s=10.0, drivers=("amdgpu", "amdkfd", "kfd")),
    _row("xe-gtt-mm", "bytes", "gtt_mm", bookfile.ttm_usage, "system memory that TTM gave out", ("xe",)),
    _row("xe-vram0-mm", "bytes", "vram0_mm", bookfile.ttm_usage, "VRAM that TTM gave out", ("xe",)),
    _row("xe-stolen-mm", "bytes", "stolen_mm", bookfile.ttm_usage, "stolen memory that TTM gave out", ("xe",)),
    _row("i915-objects", "objects", "i915_gem_objects", _first(bookfile.i915_objects), "objects with pages", ("i915",)),
    _row("i915-bytes", "bytes", "i915_gem_objects", _second(bookfile.i915_objects), "objects with pages", ("i915",)),
    _row("v3d-objects", "objects", "bo_stats", _first(bookfile.v3d_stats), "objects of all clients", ("v3d",)),
    _row("v3d-bytes", "bytes", "bo_stats", _second(bookfile.v3d_stats), "objects of all clients", ("v3d",)),
    *_total("msm"),
    *_total("etnaviv"),
)  # fmt: skip
