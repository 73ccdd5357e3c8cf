"""vgem, GEM without a device (include/uapi/drm/vgem_drm.h): objects are dumb buffers (see drm), here are its fences.

A fence that nobody signals signals itself after 10 s.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow, iowr

VGEM_FENCE_WRITE = 1

FENCE_ATTACH = iowr(
    "DRM_IOCTL_VGEM_FENCE_ATTACH",
    "d",
    0x41,
    Struct("struct drm_vgem_fence_attach", "IIII", "handle flags out_fence pad"),
)
FENCE_SIGNAL = iow(
    "DRM_IOCTL_VGEM_FENCE_SIGNAL", "d", 0x42, Struct("struct drm_vgem_fence_signal", "II", "fence flags")
)
