"""Mali Midgard and Bifrost (include/uapi/drm/panfrost_drm.h): an object gets its GPU address when it is made."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

PANFROST_BO_NOEXEC = 1
PANFROST_BO_HEAP = 2

CREATE_BO = iowr(
    "DRM_IOCTL_PANFROST_CREATE_BO",
    "d",
    0x42,
    Struct("struct drm_panfrost_create_bo", "IIIIQ", "size flags handle pad offset"),
)
MMAP_BO = iowr(
    "DRM_IOCTL_PANFROST_MMAP_BO", "d", 0x43, Struct("struct drm_panfrost_mmap_bo", "IIQ", "handle flags offset")
)
GET_BO_OFFSET = iowr(
    "DRM_IOCTL_PANFROST_GET_BO_OFFSET",
    "d",
    0x45,
    Struct("struct drm_panfrost_get_bo_offset", "IIQ", "handle pad offset"),
)
