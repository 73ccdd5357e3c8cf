"""Mali 400/450 (include/uapi/drm/lima_drm.h): GEM_INFO gives the GPU address and the map offset."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

GEM_CREATE = iowr(
    "DRM_IOCTL_LIMA_GEM_CREATE", "d", 0x41, Struct("struct drm_lima_gem_create", "IIII", "size flags handle pad")
)
GEM_INFO = iowr("DRM_IOCTL_LIMA_GEM_INFO", "d", 0x42, Struct("struct drm_lima_gem_info", "IIQ", "handle va offset"))
