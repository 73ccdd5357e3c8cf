"""Mali with firmware scheduling (include/uapi/drm/panthor_drm.h). A failed bind can make the space unusable."""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

DRM_PANTHOR_VM_BIND_OP_TYPE_MAP = 0
DRM_PANTHOR_VM_BIND_OP_TYPE_UNMAP = 0x10000000
DRM_PANTHOR_VM_STATE_USABLE = 0
DRM_PANTHOR_VM_STATE_UNUSABLE = 1

VM_BIND_OP = Struct(
    "struct drm_panthor_vm_bind_op",
    "IIQQQIIQ",
    "flags bo_handle bo_offset va size syncs.stride syncs.count syncs.array",
)

VM_CREATE = iowr(
    "DRM_IOCTL_PANTHOR_VM_CREATE", "d", 0x41, Struct("struct drm_panthor_vm_create", "IIQ", "flags id user_va_range")
)
VM_DESTROY = iowr("DRM_IOCTL_PANTHOR_VM_DESTROY", "d", 0x42, Struct("struct drm_panthor_vm_destroy", "II", "id pad"))
VM_BIND = iowr(
    "DRM_IOCTL_PANTHOR_VM_BIND",
    "d",
    0x43,
    Struct("struct drm_panthor_vm_bind", "IIIIQ", "vm_id flags ops.stride ops.count ops.array"),
)
VM_GET_STATE = iowr(
    "DRM_IOCTL_PANTHOR_VM_GET_STATE", "d", 0x44, Struct("struct drm_panthor_vm_get_state", "II", "vm_id state")
)
BO_CREATE = iowr(
    "DRM_IOCTL_PANTHOR_BO_CREATE",
    "d",
    0x45,
    Struct("struct drm_panthor_bo_create", "QIIII", "size flags exclusive_vm_id handle pad"),
)
BO_MMAP_OFFSET = iowr(
    "DRM_IOCTL_PANTHOR_BO_MMAP_OFFSET",
    "d",
    0x46,
    Struct("struct drm_panthor_bo_mmap_offset", "IIQ", "handle pad offset"),
)
