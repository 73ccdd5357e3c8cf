"""Broadcom V3D (include/uapi/drm/v3d_drm.h): one 4 GiB space for all clients, so fragmentation crosses processes."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

CREATE_BO = iowr(
    "DRM_IOCTL_V3D_CREATE_BO", "d", 0x42, Struct("struct drm_v3d_create_bo", "IIII", "size flags handle offset")
)
MMAP_BO = iowr("DRM_IOCTL_V3D_MMAP_BO", "d", 0x43, Struct("struct drm_v3d_mmap_bo", "IIQ", "handle flags offset"))
GET_BO_OFFSET = iowr(
    "DRM_IOCTL_V3D_GET_BO_OFFSET", "d", 0x45, Struct("struct drm_v3d_get_bo_offset", "II", "handle offset")
)
