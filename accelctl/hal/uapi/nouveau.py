"""nouveau (include/uapi/drm/nouveau_drm.h): two interfaces that must not be mixed on one file.

VM_INIT comes before anything else and cannot be undone; after a GEM_NEW without it, it answers ENOSYS. ``map_handle``
is the map offset.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

NOUVEAU_GETPARAM_VRAM_USED = 0x13
NOUVEAU_GEM_DOMAIN_CPU = 1
NOUVEAU_GEM_DOMAIN_VRAM = 2
NOUVEAU_GEM_DOMAIN_GART = 4
NOUVEAU_GEM_DOMAIN_MAPPABLE = 8
DRM_NOUVEAU_VM_BIND_OP_MAP = 0
DRM_NOUVEAU_VM_BIND_OP_UNMAP = 1

VM_BIND_OP = Struct("struct drm_nouveau_vm_bind_op", "IIIIQQQ", "op flags handle pad addr bo_offset range")

# Not in the header of 6.1.
GETPARAM = iowr("DRM_IOCTL_NOUVEAU_GETPARAM", "d", 0x40, Struct("struct drm_nouveau_getparam", "QQ", "param value"))
# Not in the header of 6.1.
VM_INIT = iowr(
    "DRM_IOCTL_NOUVEAU_VM_INIT",
    "d",
    0x50,
    Struct("struct drm_nouveau_vm_init", "QQ", "kernel_managed_addr kernel_managed_size"),
)
# Not in the header of 6.1.
VM_BIND = iowr(
    "DRM_IOCTL_NOUVEAU_VM_BIND",
    "d",
    0x51,
    Struct("struct drm_nouveau_vm_bind", "IIIIQQQ", "op_count flags wait_count sig_count wait_ptr sig_ptr op_ptr"),
)
GEM_NEW = iowr(
    "DRM_IOCTL_NOUVEAU_GEM_NEW",
    "d",
    0x80,
    Struct(
        "struct drm_nouveau_gem_new",
        "IIQQQIIII",
        "info.handle info.domain info.size info.offset info.map_handle info.tile_mode info.tile_flags "
        "channel_hint align",
    ),
)
GEM_INFO = iowr(
    "DRM_IOCTL_NOUVEAU_GEM_INFO",
    "d",
    0x84,
    Struct("struct drm_nouveau_gem_info", "IIQQQII", "handle domain size offset map_handle tile_mode tile_flags"),
)
