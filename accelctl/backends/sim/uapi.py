"""The ioctls of the simulated driver. Nobody else's: there is no kernel header of them.

Sizes and addresses are bytes, time is ticks of the device clock. Fields named ``pad`` must be 0.
"""

from __future__ import annotations

import struct

from accelctl.hal.uapi._struct import Ioctl, Struct, iowr

CODECS: dict[int, struct.Struct] = {}
"""Number -> codec of the whole argument: how the driver's side reads and writes it."""

NOP, FILL, COPY, EXEC, LIST = range(5)
"""Jobs: nothing; ``size`` bytes at ``dst`` become ``value`` (32 bit); ``size`` bytes of ``src`` go to ``dst``; the
instruction (abi.blob) of ``size`` bytes at ``src`` is run. An instruction is read when it is submitted: the driver
keeps what it says, so its place may be written over at once. A list (RECORD) is run by its number, as ``value``."""

COUNTERS = ("sim-handles", "sim-pages", "sim-cpu-maps", "sim-dmabufs", "sim-queues", "vram_used")
"""What COUNT knows, by number. All but the last belong to the open file and are exact."""


def _call(name: str, command: int, layout: str, fields: str) -> Ioctl:
    call = iowr(f"SIM_IOCTL_{name}", "S", command, Struct(f"struct sim_{name.lower()}", layout, fields))
    CODECS[call.number] = struct.Struct("<" + layout)
    return call


INFO = _call("INFO", 0x00, "QQ", "vram_bytes ticks")
"""Free: it takes no device time. Neither does COUNT."""
CREATE = _call("CREATE", 0x01, "QQII", "size offset handle pad")
"""``size`` comes back as whole pages, ``offset`` is where mmap finds it. Contents are what the last owner left."""
DESTROY = _call("DESTROY", 0x02, "II", "handle pad")
EXPORT = _call("EXPORT", 0x03, "Ii", "handle fd")
VM_CREATE = _call("VM_CREATE", 0x04, "II", "vm pad")
VM_DESTROY = _call("VM_DESTROY", 0x05, "II", "vm pad")
MAP = _call("MAP", 0x06, "QQII", "va size handle vm")
UNMAP = _call("UNMAP", 0x07, "QQII", "va size vm pad")
QUEUE_CREATE = _call("QUEUE_CREATE", 0x08, "II", "depth queue")
QUEUE_DESTROY = _call("QUEUE_DESTROY", 0x09, "II", "queue pad")
SUBMIT = _call("SUBMIT", 0x0A, "IIIIQQQQ", "queue vm op value dst src size point")
WAIT = _call("WAIT", 0x0B, "IIQQQ", "queue dead point ticks passed")
"""Until ``point`` is passed or ``ticks`` are over; ``passed`` is how far the queue is then. Never fails on time. With
``dead`` the queue goes no further: a job of it failed. EIO, with the reason, for a point that is never passed then."""
IDLE = _call("IDLE", 0x0C, "Q", "ticks")
"""Nothing happens for so long."""
COUNT = _call("COUNT", 0x0D, "IIq", "counter pad value")
SWEEP = _call("SWEEP", 0x0E, "QQQQQ", "handles pages cpu_maps dmabufs queues")
"""Count what this file still has, and give it back: a census."""
RECORD = _call("RECORD", 0x0F, "IIIIQQ", "queue vm list count src size")
"""Put the instruction of ``size`` bytes at ``src`` behind list ``list`` of a queue; 0: a new one, whose number comes
back. ``count`` comes back as the instructions in it. A list is the queue's, and goes with it. EINVAL, EFAULT, ENOENT;
ENOSPC when there is no room for one more."""
FORGET = _call("FORGET", 0x10, "II", "queue list")
"""A list goes; what of it is in flight stays in flight."""
