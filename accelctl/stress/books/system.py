"""Books of the whole system: everybody moves them, so only statistics decide; they see what no process's book shows."""

from __future__ import annotations

import errno
from collections.abc import Callable

from accelctl.hal import bookfile
from accelctl.stress.books.book import DEBUGFS, Book, Place

_MEMINFO, _SLABINFO, _BUFINFO = "proc/meminfo", "proc/slabinfo", f"{DEBUGFS}/dma_buf/bufinfo"
_RCU_S = 2.0
"""Slab memory comes back after RCU grace periods."""

_SLABS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("drm_buddy_block", ("amdgpu", "xe", "i915")),
    ("gpu_buddy_block", ("amdgpu", "xe", "i915")),
    ("drm_sched_fence", ("amdgpu", "xe", "panfrost", "panthor", "msm", "v3d", "etnaviv", "lima", "nouveau")),
    ("amdgpu_sync_entry", ("amdgpu",)),
    ("i915_vma", ("i915",)),
    ("i915_request", ("i915",)),
    ("drm_i915_gem_object", ("i915",)),
    ("xe_sched_job", ("xe",)),
    ("xe_hw_fence", ("xe",)),
    ("uvm_va_range_external_t", ("nvidia",)),
    ("uvm_va_block_t", ("nvidia",)),
    ("virtio-gpu-vbufs", ("virtio_gpu",)),
    ("kmalloc-64", ()),
    ("kmalloc-128", ()),
    ("kmalloc-256", ()),
    ("kmalloc-1k", ()),
    ("shmem_inode_cache", ()),
    ("vm_area_struct", ()),
    ("filp", ()),
)
"""Caches whose growth named a leak before (kmalloc-64: open-gpu-kernel-modules#1331; kmalloc-128: linux#2293), and
those of files, inodes and mappings."""


def _meminfo(name: str) -> Callable[[Place], int]:
    return lambda place: bookfile.field(place.shared(_MEMINFO, bookfile.kib_fields), name)


def _slab(cache: str) -> Callable[[Place], int]:
    def read(place: Place) -> int:
        found = place.shared(_SLABINFO, bookfile.slabs).get(cache)
        if found is None:
            raise OSError(errno.ENOENT, "no such cache: its driver is not loaded, or it is merged with another")
        return found

    return read


def _pools(place: Place) -> int:
    return bookfile.pooled_pages(place.text(f"{DEBUGFS}/ttm/page_pool"))


def _tmpfs(place: Place) -> int:
    size, free = place.root.space("dev/shm")
    for reading in (size, free):
        if reading.absence is not None:
            code = getattr(errno, reading.absence.errno or "", errno.EOPNOTSUPP)
            raise OSError(code, "no file system there", "dev/shm")
    return int(size.value) - int(free.value)


def _row(name: str, unit: str, source: str, catches: str, read: Callable[[Place], int], settle_s: float = 0.0) -> Book:
    return Book(name, unit, "system", source, catches, read, exact=False, settle_s=settle_s)


BOOKS: tuple[Book, ...] = (
    _row("dmabuf-objects", "objects", _BUFINFO, "dma-bufs that anybody or anything holds",
         lambda place: bookfile.closing_total(place.text(_BUFINFO))[0]),
    _row("dmabuf-all-bytes", "bytes", _BUFINFO, "their bytes",
         lambda place: bookfile.closing_total(place.text(_BUFINFO))[1]),
    _row("ttm-objects", "objects", f"{DEBUGFS}/ttm/buffer_objects", "objects of all TTM drivers, handle or not",
         lambda place: bookfile.number(place.text(f"{DEBUGFS}/ttm/buffer_objects")), 1.0),
    _row("ttm-pool", "pages", f"{DEBUGFS}/ttm/page_pool", "pages that TTM keeps for later: a cache, no leak", _pools),
    _row("shmem", "bytes", f"{_MEMINFO} Shmem", "pages of GEM objects in shmem, memfds, tmpfs", _meminfo("Shmem")),
    _row("slab-unreclaimable", "bytes", f"{_MEMINFO} SUnreclaim", "kernel objects", _meminfo("SUnreclaim"), _RCU_S),
    _row("tmpfs", "bytes", "dev/shm", "files in shared memory", _tmpfs),
    *(
        Book(f"slab-{cache}", "objects", "system", _SLABINFO, "kernel objects of this cache", _slab(cache), False,
             _RCU_S, drivers=drivers)
        for cache, drivers in _SLABS
    ),
)  # fmt: skip
