"""dma-heap (include/uapi/linux/dma-heap.h): system memory as dma-buf.

On failure nothing is copied back, and a descriptor whose copy-out failed is taken back by the kernel.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iowr

ALLOC = iowr(
    "DMA_HEAP_IOCTL_ALLOC", "H", 0x0, Struct("struct dma_heap_allocation_data", "QIIQ", "len fd fd_flags heap_flags")
)
