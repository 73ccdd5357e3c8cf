"""amdgpu (include/uapi/drm/amdgpu_drm.h): memory objects and their GPU addresses, which user space chooses.

A 0 from GEM_CREATE does not prove VRAM (the kernel falls back to GTT), a 0 from GEM_VA not that page tables were
written: only that the interval is registered.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow, iowr

AMDGPU_GEM_DOMAIN_CPU = 1
AMDGPU_GEM_DOMAIN_GTT = 2
AMDGPU_GEM_DOMAIN_VRAM = 4
AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED = 1
AMDGPU_GEM_USERPTR_VALIDATE = 4
AMDGPU_GEM_USERPTR_REGISTER = 8
AMDGPU_GEM_OP_GET_GEM_CREATE_INFO = 0
AMDGPU_VA_OP_MAP = 1
AMDGPU_VA_OP_UNMAP = 2
AMDGPU_VM_PAGE_READABLE = 2
AMDGPU_VM_PAGE_WRITEABLE = 4
AMDGPU_VM_PAGE_EXECUTABLE = 8
AMDGPU_INFO_VRAM_USAGE = 0x10
AMDGPU_INFO_GTT_USAGE = 0x11
AMDGPU_INFO_VIS_VRAM_USAGE = 0x17
AMDGPU_INFO_DEV_INFO = 0x16
AMDGPU_INFO_MEMORY = 0x19

MEMORY_INFO = Struct(
    "struct drm_amdgpu_memory_info",
    "QQQQQQQQQQQQ",
    "vram.total_heap_size vram.usable_heap_size vram.heap_usage vram.max_allocation "
    "cpu_accessible_vram.total_heap_size cpu_accessible_vram.usable_heap_size "
    "cpu_accessible_vram.heap_usage cpu_accessible_vram.max_allocation gtt.total_heap_size "
    "gtt.usable_heap_size gtt.heap_usage gtt.max_allocation",
)
INFO_DEVICE = Struct(
    "struct drm_amdgpu_info_device",
    "IIIIIIIIQQII16IIIIIQQQIIIIIIIIQQQQIIIIIIIIIIII16IQQIIQQQIIIIIIQIIIIII",
    "device_id chip_rev external_rev pci_rev family num_shader_engines num_shader_arrays_per_engine "
    "gpu_counter_freq max_engine_clock max_memory_clock cu_active_number cu_ao_mask cu_bitmap "
    "enabled_rb_pipes_mask num_rb_pipes num_hw_gfx_contexts pcie_gen ids_flags virtual_address_offset "
    "virtual_address_max virtual_address_alignment pte_fragment_size gart_page_size ce_ram_size "
    "vram_type vram_bit_width vce_harvest_config gc_double_offchip_lds_buf prim_buf_gpu_addr "
    "pos_buf_gpu_addr cntl_sb_buf_gpu_addr param_buf_gpu_addr prim_buf_size pos_buf_size "
    "cntl_sb_buf_size param_buf_size wave_front_size num_shader_visible_vgprs num_cu_per_sh "
    "num_tcc_blocks gs_vgt_table_depth gs_prim_buffer_depth max_gs_waves_per_vgt pcie_num_lanes "
    "cu_ao_bitmap high_va_offset high_va_max pa_sc_tile_steering_override pad tcc_disabled_mask "
    "min_engine_clock min_memory_clock tcp_cache_size num_sqc_per_wgp sqc_data_cache_size "
    "sqc_inst_cache_size gl1c_cache_size gl2c_cache_size mall_size enabled_rb_pipes_mask_hi "
    "shadow_size shadow_alignment csa_size csa_alignment userq_ip_mask",
)

GEM_CREATE_IN = Struct("struct drm_amdgpu_gem_create_in", "QQQQ", "bo_size alignment domains domain_flags")
"""What GEM_OP tells of an object: as it was made in the end, so after the kernel's silent retries."""

GEM_CREATE = iowr(
    "DRM_IOCTL_AMDGPU_GEM_CREATE",
    "d",
    0x40,
    Struct(
        "union drm_amdgpu_gem_create",
        "QQQQ",
        "in.bo_size in.alignment in.domains in.domain_flags",
        views={"out.handle": ("I", 0)},
    ),
)
GEM_MMAP = iowr(
    "DRM_IOCTL_AMDGPU_GEM_MMAP",
    "d",
    0x41,
    Struct("union drm_amdgpu_gem_mmap", "II", "in.handle in._pad", views={"out.addr_ptr": ("Q", 0)}),
)
INFO = iow(
    "DRM_IOCTL_AMDGPU_INFO",
    "d",
    0x45,
    Struct(
        "struct drm_amdgpu_info",
        "QIIIIII",
        "return_pointer return_size query read_mmr_reg.dword_offset read_mmr_reg.count "
        "read_mmr_reg.instance read_mmr_reg.flags",
    ),
)
# Grew, and its number with it (6.1: 0x40286448; 6.12: 0x40286448; 7.3: 0x40406448).
# Any of them works on any kernel, see the package.
GEM_VA = iow(
    "DRM_IOCTL_AMDGPU_GEM_VA",
    "d",
    0x48,
    Struct(
        "struct drm_amdgpu_gem_va",
        "IIIIQQQQIIQ",
        "handle _pad operation flags va_address offset_in_bo map_size vm_timeline_point "
        "vm_timeline_syncobj_out num_syncobj_handles input_fence_syncobj_handles",
    ),
)
# Grew, and its number with it (6.1: 0xC0106450; 6.12: 0xC0106450; 7.3: 0xC0186450).
# Any of them works on any kernel, see the package.
GEM_OP = iowr(
    "DRM_IOCTL_AMDGPU_GEM_OP",
    "d",
    0x50,
    Struct("struct drm_amdgpu_gem_op", "IIQII", "handle op value num_entries padding"),
)
GEM_USERPTR = iowr(
    "DRM_IOCTL_AMDGPU_GEM_USERPTR", "d", 0x51, Struct("struct drm_amdgpu_gem_userptr", "QQII", "addr size flags handle")
)
