"""iommufd (include/uapi/linux/iommufd.h): I/O address spaces, here without any device.

The number says no size; the first field does. An IOAS without a domain maps without pinning. When the copy-out of
IOAS_MAP fails the mapping stays, at an iova that the caller never saw. IOVA_RANGES fills ``num_iovas`` ranges.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, io

IOMMU_IOAS_MAP_FIXED_IOVA = 1
IOMMU_IOAS_MAP_WRITEABLE = 2
IOMMU_IOAS_MAP_READABLE = 4

IOVA_RANGE = Struct("struct iommu_iova_range", "QQ", "start last")

DESTROY = io("IOMMU_DESTROY", ";", 0x80, Struct("struct iommu_destroy", "II", "size id", sized="size"))
IOAS_ALLOC = io(
    "IOMMU_IOAS_ALLOC", ";", 0x81, Struct("struct iommu_ioas_alloc", "III", "size flags out_ioas_id", sized="size")
)
IOAS_IOVA_RANGES = io(
    "IOMMU_IOAS_IOVA_RANGES",
    ";",
    0x84,
    Struct(
        "struct iommu_ioas_iova_ranges",
        "IIIIQQ",
        "size ioas_id num_iovas __reserved allowed_iovas out_iova_alignment",
        sized="size",
    ),
)
IOAS_MAP = io(
    "IOMMU_IOAS_MAP",
    ";",
    0x85,
    Struct("struct iommu_ioas_map", "IIIIQQQ", "size flags ioas_id __reserved user_va length iova", sized="size"),
)
IOAS_UNMAP = io(
    "IOMMU_IOAS_UNMAP", ";", 0x86, Struct("struct iommu_ioas_unmap", "IIQQ", "size ioas_id iova length", sized="size")
)
