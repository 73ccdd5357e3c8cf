"""KFD, AMD's compute interface (include/uapi/linux/kfd_ioctl.h): one object per process behind /dev/kfd.

``n_success`` is an input too (where to start), so it must be 0 in each call, and must equal ``n_devices`` afterwards: a
map can succeed in part. The CPU map goes through the render node. Only the end of the process gives everything back.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, ior, iow, iowr

KFD_IOC_ALLOC_MEM_FLAGS_VRAM = 1
KFD_IOC_ALLOC_MEM_FLAGS_GTT = 2
KFD_IOC_ALLOC_MEM_FLAGS_USERPTR = 4
KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE = 0x80000000
KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE = 0x40000000
KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC = 0x20000000
KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE = 0x10000000
KFD_IOC_ALLOC_MEM_FLAGS_COHERENT = 0x4000000

PROCESS_DEVICE_APERTURES = Struct(
    "struct kfd_process_device_apertures",
    "QQQQQQII",
    "lds_base lds_limit scratch_base scratch_limit gpuvm_base gpuvm_limit gpu_id pad",
)

GET_VERSION = ior(
    "AMDKFD_IOC_GET_VERSION", "K", 0x1, Struct("struct kfd_ioctl_get_version_args", "II", "major_version minor_version")
)
GET_PROCESS_APERTURES_NEW = iowr(
    "AMDKFD_IOC_GET_PROCESS_APERTURES_NEW",
    "K",
    0x14,
    Struct(
        "struct kfd_ioctl_get_process_apertures_new_args", "QII", "kfd_process_device_apertures_ptr num_of_nodes pad"
    ),
)
ACQUIRE_VM = iow("AMDKFD_IOC_ACQUIRE_VM", "K", 0x15, Struct("struct kfd_ioctl_acquire_vm_args", "II", "drm_fd gpu_id"))
ALLOC_MEMORY_OF_GPU = iowr(
    "AMDKFD_IOC_ALLOC_MEMORY_OF_GPU",
    "K",
    0x16,
    Struct("struct kfd_ioctl_alloc_memory_of_gpu_args", "QQQQII", "va_addr size handle mmap_offset gpu_id flags"),
)
FREE_MEMORY_OF_GPU = iow(
    "AMDKFD_IOC_FREE_MEMORY_OF_GPU", "K", 0x17, Struct("struct kfd_ioctl_free_memory_of_gpu_args", "Q", "handle")
)
MAP_MEMORY_TO_GPU = iowr(
    "AMDKFD_IOC_MAP_MEMORY_TO_GPU",
    "K",
    0x18,
    Struct("struct kfd_ioctl_map_memory_to_gpu_args", "QQII", "handle device_ids_array_ptr n_devices n_success"),
)
UNMAP_MEMORY_FROM_GPU = iowr(
    "AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU",
    "K",
    0x19,
    Struct("struct kfd_ioctl_unmap_memory_from_gpu_args", "QQII", "handle device_ids_array_ptr n_devices n_success"),
)
AVAILABLE_MEMORY = iowr(
    "AMDKFD_IOC_AVAILABLE_MEMORY",
    "K",
    0x23,
    Struct("struct kfd_ioctl_get_available_memory_args", "QII", "available gpu_id pad"),
)
# Not in the header of 6.1.
EXPORT_DMABUF = iowr(
    "AMDKFD_IOC_EXPORT_DMABUF",
    "K",
    0x24,
    Struct("struct kfd_ioctl_export_dmabuf_args", "QII", "handle flags dmabuf_fd"),
)
