"""dma-buf (include/uapi/linux/dma-buf.h): what any driver's exported buffer understands.

EXPORT_SYNC_FILE gives a descriptor that the caller closes.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow, iowr

DMA_BUF_SYNC_READ = 1
DMA_BUF_SYNC_WRITE = 2
DMA_BUF_SYNC_RW = 3
DMA_BUF_SYNC_START = 0
DMA_BUF_SYNC_END = 4

SYNC = iow("DMA_BUF_IOCTL_SYNC", "b", 0x0, Struct("struct dma_buf_sync", "Q", "flags"))
EXPORT_SYNC_FILE = iowr(
    "DMA_BUF_IOCTL_EXPORT_SYNC_FILE", "b", 0x2, Struct("struct dma_buf_export_sync_file", "Ii", "flags fd")
)
IMPORT_SYNC_FILE = iow(
    "DMA_BUF_IOCTL_IMPORT_SYNC_FILE", "b", 0x3, Struct("struct dma_buf_import_sync_file", "Ii", "flags fd")
)
