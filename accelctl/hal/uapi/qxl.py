"""QXL, the paravirtual display of SPICE (include/uapi/drm/qxl_drm.h): TTM with VRAM, in a guest.

ALLOC chooses the domain itself (VRAM); ALLOC_SURF makes a surface, which takes one of the device's surface ids.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

QXL_GEM_DOMAIN_CPU = 0
QXL_GEM_DOMAIN_VRAM = 1
QXL_GEM_DOMAIN_SURFACE = 2
QXL_PARAM_NUM_SURFACES = 1
QXL_PARAM_MAX_RELOCS = 2

ALLOC = iowr("DRM_IOCTL_QXL_ALLOC", "d", 0x40, Struct("struct drm_qxl_alloc", "II", "size handle"))
MAP = iowr("DRM_IOCTL_QXL_MAP", "d", 0x41, Struct("struct drm_qxl_map", "QII", "offset handle pad"))
GETPARAM = iowr("DRM_IOCTL_QXL_GETPARAM", "d", 0x44, Struct("struct drm_qxl_getparam", "QQ", "param value"))
ALLOC_SURF = iowr(
    "DRM_IOCTL_QXL_ALLOC_SURF",
    "d",
    0x46,
    Struct("struct drm_qxl_alloc_surf", "IIIiII", "format width height stride handle pad"),
)
