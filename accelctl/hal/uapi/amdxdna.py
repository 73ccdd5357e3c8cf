"""AMD XDNA NPU (include/uapi/drm/amdxdna_accel.h): a heap object first, then objects in it."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

AMDXDNA_BO_SHMEM = 1
AMDXDNA_BO_DEV_HEAP = 2
AMDXDNA_BO_DEV = 3
AMDXDNA_BO_CMD = 4

CREATE_BO = iowr(
    "DRM_IOCTL_AMDXDNA_CREATE_BO",
    "d",
    0x43,
    Struct("struct amdxdna_drm_create_bo", "QQQII", "flags vaddr size type handle"),
)
GET_BO_INFO = iowr(
    "DRM_IOCTL_AMDXDNA_GET_BO_INFO",
    "d",
    0x44,
    Struct("struct amdxdna_drm_get_bo_info", "QQIIQQQ", "ext ext_flags handle pad map_offset vaddr xdna_addr"),
)
