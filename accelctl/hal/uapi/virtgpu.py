"""virtio-gpu (include/uapi/drm/virtgpu_drm.h): host resources behind GEM handles.

A resource id (res_handle) is freed only when the host has acknowledged it, so ids lag behind handles. A context comes
with the first call or with CONTEXT_INIT, and goes with the file.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

VIRTGPU_PARAM_3D_FEATURES = 1
VIRTGPU_PARAM_RESOURCE_BLOB = 3
VIRTGPU_PARAM_HOST_VISIBLE = 4
VIRTGPU_PARAM_CROSS_DEVICE = 5
VIRTGPU_PARAM_CONTEXT_INIT = 6
VIRTGPU_PARAM_SUPPORTED_CAPSET_IDs = 7
VIRTGPU_WAIT_NOWAIT = 1
VIRTGPU_BLOB_MEM_GUEST = 1
VIRTGPU_BLOB_MEM_HOST3D = 2
VIRTGPU_BLOB_MEM_HOST3D_GUEST = 3
VIRTGPU_BLOB_FLAG_USE_MAPPABLE = 1
VIRTGPU_BLOB_FLAG_USE_SHAREABLE = 2
VIRTGPU_BLOB_FLAG_USE_CROSS_DEVICE = 4
VIRTGPU_CONTEXT_PARAM_CAPSET_ID = 1
VIRTGPU_CONTEXT_PARAM_NUM_RINGS = 2

CONTEXT_SET_PARAM = Struct("struct drm_virtgpu_context_set_param", "QQ", "param value")

MAP = iowr("DRM_IOCTL_VIRTGPU_MAP", "d", 0x41, Struct("struct drm_virtgpu_map", "QII", "offset handle pad"))
GETPARAM = iowr("DRM_IOCTL_VIRTGPU_GETPARAM", "d", 0x43, Struct("struct drm_virtgpu_getparam", "QQ", "param value"))
RESOURCE_CREATE = iowr(
    "DRM_IOCTL_VIRTGPU_RESOURCE_CREATE",
    "d",
    0x44,
    Struct(
        "struct drm_virtgpu_resource_create",
        "IIIIIIIIIIIIII",
        "target format bind width height depth array_size last_level nr_samples flags bo_handle res_handle size stride",
    ),
)
RESOURCE_INFO = iowr(
    "DRM_IOCTL_VIRTGPU_RESOURCE_INFO",
    "d",
    0x45,
    Struct("struct drm_virtgpu_resource_info", "IIII", "bo_handle res_handle size blob_mem"),
)
WAIT = iowr("DRM_IOCTL_VIRTGPU_WAIT", "d", 0x48, Struct("struct drm_virtgpu_3d_wait", "II", "handle flags"))
GET_CAPS = iowr(
    "DRM_IOCTL_VIRTGPU_GET_CAPS",
    "d",
    0x49,
    Struct("struct drm_virtgpu_get_caps", "IIQII", "cap_set_id cap_set_ver addr size pad"),
)
# Grew, and its number with it (6.1: 0xC030644A; 6.12: 0xC030644A; 7.3: 0xC038644A).
# Any of them works on any kernel, see the package.
RESOURCE_CREATE_BLOB = iowr(
    "DRM_IOCTL_VIRTGPU_RESOURCE_CREATE_BLOB",
    "d",
    0x4A,
    Struct(
        "struct drm_virtgpu_resource_create_blob",
        "IIIIQIIQQII",
        "blob_mem blob_flags bo_handle res_handle size pad cmd_size cmd blob_id blob_hints pad2",
    ),
)
CONTEXT_INIT = iowr(
    "DRM_IOCTL_VIRTGPU_CONTEXT_INIT",
    "d",
    0x4B,
    Struct("struct drm_virtgpu_context_init", "IIQ", "num_params pad ctx_set_params"),
)
