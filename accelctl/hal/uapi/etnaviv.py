"""Vivante GPUs and NPUs (include/uapi/drm/etnaviv_drm.h): GPU addresses exist from submission on."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

ETNA_BO_CACHED = 0x10000
ETNA_BO_WC = 0x20000
ETNA_BO_UNCACHED = 0x40000
ETNA_USERPTR_READ = 1
ETNA_USERPTR_WRITE = 2

GET_PARAM = iowr(
    "DRM_IOCTL_ETNAVIV_GET_PARAM", "d", 0x40, Struct("struct drm_etnaviv_param", "IIQ", "pipe param value")
)
GEM_NEW = iowr("DRM_IOCTL_ETNAVIV_GEM_NEW", "d", 0x42, Struct("struct drm_etnaviv_gem_new", "QII", "size flags handle"))
GEM_INFO = iowr(
    "DRM_IOCTL_ETNAVIV_GEM_INFO", "d", 0x43, Struct("struct drm_etnaviv_gem_info", "IIQ", "handle pad offset")
)
GEM_USERPTR = iowr(
    "DRM_IOCTL_ETNAVIV_GEM_USERPTR",
    "d",
    0x48,
    Struct("struct drm_etnaviv_gem_userptr", "QQII", "user_ptr user_size flags handle"),
)
