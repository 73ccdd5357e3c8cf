"""VFIO containers and groups, type 1 (include/uapi/linux/vfio.h).

The call that hands out a device is deliberately absent: it would take the device from its owner, and reset it.
UNMAP_DMA writes into ``size`` how much was unmapped; 0 bytes is not an error. GET_INFO puts capabilities behind its
structure when ``argsz`` has room. CHECK_EXTENSION and SET_IOMMU take a plain int, GROUP_SET_CONTAINER a pointer to the
descriptor.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, io

VFIO_API_VERSION = 0
VFIO_TYPE1_IOMMU = 1
VFIO_TYPE1v2_IOMMU = 3
VFIO_NOIOMMU_IOMMU = 8
VFIO_UNMAP_ALL = 9
VFIO_GROUP_FLAGS_VIABLE = 1
VFIO_GROUP_FLAGS_CONTAINER_SET = 2
VFIO_IOMMU_INFO_PGSIZES = 1
VFIO_IOMMU_INFO_CAPS = 2
VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE = 1
VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL = 3
VFIO_DMA_MAP_FLAG_READ = 1
VFIO_DMA_MAP_FLAG_WRITE = 2
VFIO_DMA_UNMAP_FLAG_ALL = 2

INFO_CAP_HEADER = Struct("struct vfio_info_cap_header", "HHI", "id version next")
INFO_DMA_AVAIL = Struct("struct vfio_iommu_type1_info_dma_avail", "HHII", "header.id header.version header.next avail")

GET_API_VERSION = io("VFIO_GET_API_VERSION", ";", 0x64)
CHECK_EXTENSION = io("VFIO_CHECK_EXTENSION", ";", 0x65)
SET_IOMMU = io("VFIO_SET_IOMMU", ";", 0x66)
GROUP_GET_STATUS = io(
    "VFIO_GROUP_GET_STATUS", ";", 0x67, Struct("struct vfio_group_status", "II", "argsz flags", sized="argsz")
)
GROUP_SET_CONTAINER = io("VFIO_GROUP_SET_CONTAINER", ";", 0x68)
GROUP_UNSET_CONTAINER = io("VFIO_GROUP_UNSET_CONTAINER", ";", 0x69)
IOMMU_GET_INFO = io(
    "VFIO_IOMMU_GET_INFO",
    ";",
    0x70,
    Struct("struct vfio_iommu_type1_info", "IIQII", "argsz flags iova_pgsizes cap_offset pad", sized="argsz"),
)
IOMMU_MAP_DMA = io(
    "VFIO_IOMMU_MAP_DMA",
    ";",
    0x71,
    Struct("struct vfio_iommu_type1_dma_map", "IIQQQ", "argsz flags vaddr iova size", sized="argsz"),
)
IOMMU_UNMAP_DMA = io(
    "VFIO_IOMMU_UNMAP_DMA",
    ";",
    0x72,
    Struct("struct vfio_iommu_type1_dma_unmap", "IIQQ", "argsz flags iova size", sized="argsz"),
)
