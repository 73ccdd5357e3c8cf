"""Qualcomm Cloud AI 100 (include/uapi/drm/qaic_accel.h). Attaching slices needs a loaded network, so it is absent."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

CREATE_BO = iowr("DRM_IOCTL_QAIC_CREATE_BO", "d", 0x41, Struct("struct qaic_create_bo", "QII", "size handle pad"))
MMAP_BO = iowr("DRM_IOCTL_QAIC_MMAP_BO", "d", 0x42, Struct("struct qaic_mmap_bo", "IIQ", "handle pad offset"))
