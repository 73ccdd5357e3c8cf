"""udmabuf (include/uapi/linux/udmabuf.h): a memfd as dma-buf; the new descriptor is the call's return value.

The memfd needs F_SEAL_SHRINK and must not have F_SEAL_WRITE. CREATE_LIST is followed by ``count`` items.
"""

from __future__ import annotations

from accelctl.hal.uapi._struct import Struct, iow

UDMABUF_FLAGS_CLOEXEC = 1

UDMABUF_CREATE_ITEM = Struct("struct udmabuf_create_item", "IIQQ", "memfd __pad offset size")

CREATE = iow("UDMABUF_CREATE", "u", 0x42, Struct("struct udmabuf_create", "IIQQ", "memfd flags offset size"))
CREATE_LIST = iow("UDMABUF_CREATE_LIST", "u", 0x43, Struct("struct udmabuf_create_list", "II", "flags count"))
