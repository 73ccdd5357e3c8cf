"""The simulated kernel: system calls of which those on the simulated node never leave the process.

Everything else goes to the system calls beneath. It is the innermost layer: doors, traces and tests wrap it as they
wrap the real ones, and see every call.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from struct import Struct
from typing import TypeVar
from weakref import WeakSet

from accelctl.backends.sim.device import CALLS, Device, Fields
from accelctl.backends.sim.options import SimOptions
from accelctl.backends.sim.tables import fault
from accelctl.backends.sim.uapi import CODECS
from accelctl.hal.devfile import SYSCALLS, Mapped, Syscalls

T = TypeVar("T")

BARE_PREFIX = "/dev/"
NODE = BARE_PREFIX + "sim/sim0"
_NUMBER = os.makedev(240, 0)
"""The first major number for local and experimental use (Documentation/admin-guide/devices.txt)."""


class SimSyscalls(Syscalls):
    """One simulated chip and its driver, for one process: after a fork each has a chip of its own.

    Threads may call at once; the driver takes one call at a time.
    """

    def __init__(self, options: SimOptions, base: Syscalls = SYSCALLS) -> None:
        self._base = base
        self.device = Device(options, base)
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Struct, Callable[..., Fields | None], int]] = {
            number: (CODECS[number], getattr(self.device, method), ticks) for number, (method, ticks) in CALLS.items()
        }
        ALIVE.add(self)

    def look(self, view: Callable[[Device], T]) -> T:
        """What a monitor wants to know of the device, between two calls of its users."""
        with self._lock:
            return view(self.device)

    def stat(self, path: str) -> os.stat_result:
        """The node is a character device."""
        return _node() if path == NODE else self._base.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """As stat."""
        return _node() if fd in self.device.files else self._base.fstat(fd)

    def open(self, path: str, flags: int) -> int:
        """The descriptor is a real one, so its number is nobody else's."""
        if path != NODE:
            return self._base.open(path, flags)
        with self._lock:
            return self.device.open()

    def memfd(self, name: str, size: int, seals: int) -> int:
        """Not of the device."""
        return self._base.memfd(name, size, seals)

    def ioctl(self, fd: int, number: int, argument: bytearray | int) -> int:
        """ENOTTY for a number that the driver does not have, EINVAL for an argument that is too short for it."""
        file = self.device.files.get(fd)
        if file is None:
            return self._base.ioctl(fd, number, argument)
        call = self._calls.get(number)
        if call is None:
            raise fault(errno.ENOTTY, f"no ioctl {number:#x}")
        codec, method, ticks = call
        if isinstance(argument, int) or len(argument) < codec.size:
            raise fault(errno.EINVAL, f"ioctl {number:#x} wants {codec.size} bytes")
        with self._lock:
            self.device.now += ticks
            reply = method(file, *codec.unpack_from(argument))
        if reply is not None:
            codec.pack_into(argument, 0, *reply)
        return 0

    def map(self, fd: int, size: int, offset: int) -> Mapped:
        """An object of the node, or a dma-buf of it."""
        device = self.device
        if fd not in device.files and fd not in device.dmabufs:
            return self._base.map(fd, size, offset)
        with self._lock:
            device.now += 1
            return device.map(fd, size, offset)

    def unmap(self, mapping: Mapped) -> None:
        """See map."""
        if id(mapping) not in self.device.maps:
            self._base.unmap(mapping)
            return
        with self._lock:
            self.device.now += 1
            self.device.unmap(mapping)

    def close(self, fd: int) -> None:
        """The node releases all that its file still has."""
        if fd in self.device.files or fd in self.device.dmabufs:
            with self._lock:
                self.device.now += 1
                if not self.device.close(fd):
                    return
        self._base.close(fd)


ALIVE: WeakSet[SimSyscalls] = WeakSet()
"""The chips of this process."""


def _node() -> os.stat_result:
    facts = (stat.S_IFCHR | 0o666, 1, 0, 1, 0, 0, 0, 0, 0, 0)
    return os.stat_result(facts, {"st_rdev": _NUMBER})
