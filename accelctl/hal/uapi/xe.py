"""Intel Xe (include/uapi/drm/xe_drm.h): address spaces, objects, and binds.

An address space keeps what is bound in it alive after GEM_CLOSE. VRAM wants write-combined caching; an object of
one address space (vm_id not 0) cannot be exported.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow, iowr

DRM_XE_DEVICE_QUERY_MEM_REGIONS = 1
DRM_XE_DEVICE_QUERY_CONFIG = 2
DRM_XE_QUERY_CONFIG_MIN_ALIGNMENT = 2
DRM_XE_QUERY_CONFIG_VA_BITS = 3
DRM_XE_MEM_REGION_CLASS_SYSMEM = 0
DRM_XE_MEM_REGION_CLASS_VRAM = 1
DRM_XE_GEM_CREATE_FLAG_DEFER_BACKING = 1
DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM = 4
DRM_XE_GEM_CPU_CACHING_WB = 1
DRM_XE_GEM_CPU_CACHING_WC = 2
DRM_XE_VM_BIND_OP_MAP = 0
DRM_XE_VM_BIND_OP_UNMAP = 1
DRM_XE_VM_BIND_OP_MAP_USERPTR = 2

MEM_REGION = Struct(
    "struct drm_xe_mem_region",
    "HHIQQQQ6Q",
    "mem_class instance min_page_size total_size used cpu_visible_size cpu_visible_used reserved",
)
QUERY_MEM_REGIONS = Struct("struct drm_xe_query_mem_regions", "II", "num_mem_regions pad")
QUERY_CONFIG = Struct("struct drm_xe_query_config", "II", "num_params pad")
"""Followed by ``num_params`` numbers of 8 bytes, indexed by DRM_XE_QUERY_CONFIG_*."""

DEVICE_QUERY = iowr(
    "DRM_IOCTL_XE_DEVICE_QUERY",
    "d",
    0x40,
    Struct("struct drm_xe_device_query", "QIIQ2Q", "extensions query size data reserved"),
)
GEM_CREATE = iowr(
    "DRM_IOCTL_XE_GEM_CREATE",
    "d",
    0x41,
    Struct(
        "struct drm_xe_gem_create",
        "QQIIIIH3H2Q",
        "extensions size placement flags vm_id handle cpu_caching pad reserved",
    ),
)
GEM_MMAP_OFFSET = iowr(
    "DRM_IOCTL_XE_GEM_MMAP_OFFSET",
    "d",
    0x42,
    Struct("struct drm_xe_gem_mmap_offset", "QIIQ2Q", "extensions handle flags offset reserved"),
)
VM_CREATE = iowr(
    "DRM_IOCTL_XE_VM_CREATE", "d", 0x43, Struct("struct drm_xe_vm_create", "QII2Q", "extensions flags vm_id reserved")
)
VM_DESTROY = iow("DRM_IOCTL_XE_VM_DESTROY", "d", 0x44, Struct("struct drm_xe_vm_destroy", "II2Q", "vm_id pad reserved"))
VM_BIND = iow(
    "DRM_IOCTL_XE_VM_BIND",
    "d",
    0x45,
    Struct(
        "struct drm_xe_vm_bind",
        "QIIIIQIHHQQQIIII3QIIQ2Q",
        "extensions vm_id exec_queue_id pad num_binds bind.extensions bind.obj bind.pat_index bind.pad "
        "bind.obj_offset bind.range bind.addr bind.op bind.flags bind.prefetch_mem_region_instance "
        "bind.pad2 bind.reserved pad2 num_syncs syncs reserved",
        views={"bind.userptr": ("Q", 40), "vector_of_binds": ("Q", 24)},
    ),
)
