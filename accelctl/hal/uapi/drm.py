"""What every DRM and accel node understands (include/uapi/drm/drm.h and drm_mode.h).

drm_ioctl() dispatches on the command number alone (see the package), and copies the structure back even when the call
failed: a handle in a failed call's buffer means nothing.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, io, iow, iowr

DRM_CAP_DUMB_BUFFER = 1
DRM_CAP_PRIME = 5
DRM_PRIME_CAP_IMPORT = 1
DRM_PRIME_CAP_EXPORT = 2
DRM_CAP_SYNCOBJ = 0x13
DRM_RDWR = 2
DRM_CLOEXEC = 0x80000

_PRIME_HANDLE = Struct("struct drm_prime_handle", "IIi", "handle flags fd")

VERSION = iowr(
    "DRM_IOCTL_VERSION",
    "d",
    0x0,
    Struct(
        "struct drm_version",
        "iii4xQQQQQQ",
        "version_major version_minor version_patchlevel name_len name date_len date desc_len desc",
    ),
)
GET_CAP = iowr("DRM_IOCTL_GET_CAP", "d", 0xC, Struct("struct drm_get_cap", "QQ", "capability value"))
SET_CLIENT_CAP = iow(
    "DRM_IOCTL_SET_CLIENT_CAP", "d", 0xD, Struct("struct drm_set_client_cap", "QQ", "capability value")
)
GEM_CLOSE = iow("DRM_IOCTL_GEM_CLOSE", "d", 0x9, Struct("struct drm_gem_close", "II", "handle pad"))
SET_MASTER = io("DRM_IOCTL_SET_MASTER", "d", 0x1E)
DROP_MASTER = io("DRM_IOCTL_DROP_MASTER", "d", 0x1F)
PRIME_HANDLE_TO_FD = iowr("DRM_IOCTL_PRIME_HANDLE_TO_FD", "d", 0x2D, _PRIME_HANDLE)
PRIME_FD_TO_HANDLE = iowr("DRM_IOCTL_PRIME_FD_TO_HANDLE", "d", 0x2E, _PRIME_HANDLE)
MODE_CREATE_DUMB = iowr(
    "DRM_IOCTL_MODE_CREATE_DUMB",
    "d",
    0xB2,
    Struct("struct drm_mode_create_dumb", "IIIIIIQ", "height width bpp flags handle pitch size"),
)
MODE_MAP_DUMB = iowr(
    "DRM_IOCTL_MODE_MAP_DUMB", "d", 0xB3, Struct("struct drm_mode_map_dumb", "IIQ", "handle pad offset")
)
MODE_DESTROY_DUMB = iowr(
    "DRM_IOCTL_MODE_DESTROY_DUMB", "d", 0xB4, Struct("struct drm_mode_destroy_dumb", "I", "handle")
)
SYNCOBJ_CREATE = iowr("DRM_IOCTL_SYNCOBJ_CREATE", "d", 0xBF, Struct("struct drm_syncobj_create", "II", "handle flags"))
SYNCOBJ_DESTROY = iowr("DRM_IOCTL_SYNCOBJ_DESTROY", "d", 0xC0, Struct("struct drm_syncobj_destroy", "II", "handle pad"))
