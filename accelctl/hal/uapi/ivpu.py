"""Intel NPU (include/uapi/drm/ivpu_accel.h): the address comes with the object, the pages with first use."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

DRM_IVPU_BO_MAPPABLE = 2
DRM_IVPU_BO_CACHED = 0
DRM_IVPU_BO_UNCACHED = 0x10000
DRM_IVPU_BO_WC = 0x20000

GET_PARAM = iowr("DRM_IOCTL_IVPU_GET_PARAM", "d", 0x40, Struct("struct drm_ivpu_param", "IIQ", "param index value"))
BO_CREATE = iowr(
    "DRM_IOCTL_IVPU_BO_CREATE", "d", 0x42, Struct("struct drm_ivpu_bo_create", "QIIQ", "size flags handle vpu_addr")
)
# Not in the headers of 6.1 and 6.12.
BO_CREATE_FROM_USERPTR = iowr(
    "DRM_IOCTL_IVPU_BO_CREATE_FROM_USERPTR",
    "d",
    0x4E,
    Struct("struct drm_ivpu_bo_create_from_userptr", "QQIIQ", "user_ptr size flags handle vpu_addr"),
)
BO_INFO = iowr(
    "DRM_IOCTL_IVPU_BO_INFO",
    "d",
    0x43,
    Struct("struct drm_ivpu_bo_info", "IIQQQ", "handle flags vpu_addr mmap_offset size"),
)
