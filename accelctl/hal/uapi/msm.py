"""Qualcomm Adreno (include/uapi/drm/msm_drm.h): GEM_INFO answers many questions, chosen by ``info``."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

MSM_PIPE_3D0 = 0x10
MSM_PARAM_VA_START = 0xE
MSM_PARAM_VA_SIZE = 0xF
MSM_BO_WC = 0x20000
MSM_BO_CACHED = 0x10000
MSM_INFO_GET_OFFSET = 0
MSM_INFO_GET_IOVA = 1
MSM_INFO_SET_IOVA = 4

GET_PARAM = iowr(
    "DRM_IOCTL_MSM_GET_PARAM", "d", 0x40, Struct("struct drm_msm_param", "IIQII", "pipe param value len pad")
)
GEM_NEW = iowr("DRM_IOCTL_MSM_GEM_NEW", "d", 0x42, Struct("struct drm_msm_gem_new", "QII", "size flags handle"))
GEM_INFO = iowr(
    "DRM_IOCTL_MSM_GEM_INFO", "d", 0x43, Struct("struct drm_msm_gem_info", "IIQII", "handle info value len pad")
)
