"""Rockchip NPU (include/uapi/drm/rocket_accel.h): object, address and map offset come in one call."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

CREATE_BO = iowr(
    "DRM_IOCTL_ROCKET_CREATE_BO",
    "d",
    0x40,
    Struct("struct drm_rocket_create_bo", "IIQQ", "size handle dma_address offset"),
)
