"""Intel i915 (include/uapi/drm/i915_drm.h): objects and CPU maps; a GPU address exists only while work is submitted.

Usage of a memory region needs CAP_PERFMON; without it the kernel answers with the total.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow, iowr

I915_MEMORY_CLASS_SYSTEM = 0
I915_MEMORY_CLASS_DEVICE = 1
I915_MMAP_OFFSET_GTT = 0
I915_MMAP_OFFSET_WC = 1
I915_MMAP_OFFSET_WB = 2
I915_MMAP_OFFSET_UC = 3
I915_MMAP_OFFSET_FIXED = 4
DRM_I915_QUERY_MEMORY_REGIONS = 4
I915_GEM_CREATE_EXT_MEMORY_REGIONS = 0
I915_GEM_CREATE_EXT_FLAG_NEEDS_CPU_ACCESS = 1
I915_USERPTR_PROBE = 2

QUERY_ITEM = Struct("struct drm_i915_query_item", "QiIQ", "query_id length flags data_ptr")
GEM_MEMORY_CLASS_INSTANCE = Struct("struct drm_i915_gem_memory_class_instance", "HH", "memory_class memory_instance")
MEMORY_REGION_INFO = Struct(
    "struct drm_i915_memory_region_info",
    "HHIQQ8Q",
    "region.memory_class region.memory_instance rsvd0 probed_size unallocated_size rsvd1",
)
QUERY_MEMORY_REGIONS = Struct("struct drm_i915_query_memory_regions", "I3I", "num_regions rsvd")
GEM_CREATE_EXT_MEMORY_REGIONS = Struct(
    "struct drm_i915_gem_create_ext_memory_regions",
    "QII4IIIQ",
    "base.next_extension base.name base.flags base.rsvd pad num_regions regions",
)

_GEM_VM_CONTROL = Struct("struct drm_i915_gem_vm_control", "QII", "extensions flags vm_id")

GEM_CREATE = iowr(
    "DRM_IOCTL_I915_GEM_CREATE", "d", 0x5B, Struct("struct drm_i915_gem_create", "QII", "size handle pad")
)
GEM_CREATE_EXT = iowr(
    "DRM_IOCTL_I915_GEM_CREATE_EXT",
    "d",
    0x7C,
    Struct("struct drm_i915_gem_create_ext", "QIIQ", "size handle flags extensions"),
)
GEM_MMAP_OFFSET = iowr(
    "DRM_IOCTL_I915_GEM_MMAP_OFFSET",
    "d",
    0x64,
    Struct("struct drm_i915_gem_mmap_offset", "IIQQQ", "handle pad offset flags extensions"),
)
GEM_USERPTR = iowr(
    "DRM_IOCTL_I915_GEM_USERPTR",
    "d",
    0x73,
    Struct("struct drm_i915_gem_userptr", "QQII", "user_ptr user_size flags handle"),
)
GEM_VM_CREATE = iowr("DRM_IOCTL_I915_GEM_VM_CREATE", "d", 0x7A, _GEM_VM_CONTROL)
GEM_VM_DESTROY = iow("DRM_IOCTL_I915_GEM_VM_DESTROY", "d", 0x7B, _GEM_VM_CONTROL)
QUERY = iowr("DRM_IOCTL_I915_QUERY", "d", 0x79, Struct("struct drm_i915_query", "IIQ", "num_items flags items_ptr"))
GETPARAM = iowr("DRM_IOCTL_I915_GETPARAM", "d", 0x46, Struct("struct drm_i915_getparam", "i4xQ", "param value"))
