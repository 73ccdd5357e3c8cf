"""Intel Gaudi (include/uapi/drm/habanalabs_accel.h): one call for device memory, chosen by ``in_op``.

Handles are the driver's own, not GEM's. The last close of the device can reset it.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

HL_MEM_OP_ALLOC = 0
HL_MEM_OP_FREE = 1
HL_MEM_OP_MAP = 2
HL_MEM_OP_UNMAP = 3
HL_MEM_USERPTR = 4
HL_CB_OP_CREATE = 0
HL_CB_OP_DESTROY = 1
HL_MAX_CB_SIZE = 0x1FFFE0
HL_INFO_DRAM_USAGE = 2

INFO_DRAM_USAGE = Struct("struct hl_info_dram_usage", "QQ", "dram_free_mem ctx_dram_mem")

MEMORY = iowr(
    "DRM_IOCTL_HL_MEMORY",
    "d",
    0x44,
    Struct(
        "union hl_mem_args",
        "QQQIIII",
        "in.map_host.host_virt_addr in.map_host.hint_addr in.map_host.mem_size in.op in.flags in.ctx_id "
        "in.num_of_elements",
        views={
            "in.alloc.mem_size": ("Q", 0),
            "in.alloc.page_size": ("Q", 8),
            "in.free.handle": ("Q", 0),
            "in.map_device.hint_addr": ("Q", 0),
            "in.map_device.handle": ("Q", 8),
            "in.unmap.device_virt_addr": ("Q", 0),
            "out.device_virt_addr": ("Q", 0),
            "out.handle": ("Q", 0),
        },
    ),
)
CB = iowr(
    "DRM_IOCTL_HL_CB",
    "d",
    0x41,
    Struct(
        "union hl_cb_args",
        "QIIII",
        "in.cb_handle in.op in.cb_size in.ctx_id in.flags",
        views={"out.cb_handle": ("Q", 0)},
    ),
)
INFO = iowr(
    "DRM_IOCTL_HL_INFO", "d", 0x40, Struct("struct hl_info_args", "QIIII", "return_pointer return_size op dcore_id pad")
)
