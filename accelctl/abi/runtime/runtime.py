"""The portable runtime: what every call promises, whatever the stack below does.

A shim over the Memory and Ops contracts. Nothing is implied: a thread selects its device, a stream is always named, and
no call waits unless it says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from accelctl.abi.runtime.core import runtime_call
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.launching import LaunchCalls
from accelctl.abi.runtime.pointer import Pointer

NATIVE, EMULATED, ABSENT = "native", "emulated", "absent"
FLAGS = ("peer", "mem_pool_native", "managed", "ipc", "graph", "collectives", "timing", "memory_info")
_TOLD = {"free": NATIVE, "total": EMULATED, "nothing": ABSENT}


class Runtime(LaunchCalls):
    """See the mixed-in parts: memory, copies, capture, streams, launching."""

    @runtime_call
    def capabilities(self) -> Mapping[str, str]:
        """Flag -> native, emulated or absent, for the selected device. What is absent answers not_supported."""
        device = self.device()
        group = getattr(device.ops, "group", None)
        return {
            "peer": ABSENT,
            "mem_pool_native": EMULATED,
            "managed": NATIVE if device.coherent else ABSENT,
            "ipc": ABSENT,
            "graph": EMULATED,
            "collectives": NATIVE if group is not None else EMULATED,
            "timing": NATIVE if device.own.passes_at is not None else EMULATED,
            "memory_info": _TOLD[device.tells],
        }

    @runtime_call
    def can_access(self, first: int, second: int) -> bool:
        """Whether kernels of one device reach the memory of another."""
        self._known(first)
        self._known(second)
        return False

    @runtime_call
    def enable_peer(self, other: int) -> None:
        """From the selected device to another; again is no error. not_supported where it cannot be."""
        device = self.device()
        self._known(other)
        if other == device.index:
            raise fail("invalid_argument", "a device is no peer of itself")
        if not self.can_access(device.index, other):
            raise fail("not_supported", f"device {device.index} does not reach the memory of device {other}")

    def _known(self, index: int) -> None:
        if not 0 <= index < len(self._targets):
            raise fail("no_device", f"device {index}: there are {len(self._targets)}")

    @runtime_call
    def ipc_export(self, pointer: Pointer) -> bytes:
        """A handle for another process. not_supported: no chip here shares memory between processes."""
        self.device()
        raise fail("not_supported", "no memory of this chip can be given to another process")

    @runtime_call
    def ipc_open(self, handle: bytes) -> Pointer:
        """The memory of a handle. not_supported."""
        self.device()
        raise fail("not_supported", "no memory of this chip can be taken from another process")
