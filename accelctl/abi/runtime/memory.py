"""Memory calls: malloc and its like, free, pools, registered pages."""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi.hostmem import PAGE, Pages
from accelctl.abi.runtime.core import Core, runtime_call
from accelctl.abi.runtime.device import Device
from accelctl.abi.runtime.failure import fail
from accelctl.abi.runtime.pointer import DEVICE, HOST, MANAGED, POOL, Pointer
from accelctl.abi.runtime.stream import Stream

MOST_POOLED = 64
"""Blocks that a pool keeps."""


class MemoryInfo(NamedTuple):
    """Bytes. An estimate: an allocation of ``free`` bytes may fail."""

    free: int
    total: int


class MemoryCalls(Core):
    """Mixed into Runtime."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._registered: list[tuple[int, int]] = []

    @runtime_call
    def malloc(self, size: int) -> Pointer:
        """Memory of the selected device, aligned to 256 bytes. invalid_argument for 0, out_of_memory."""
        return self._allocated(size, DEVICE)

    @runtime_call
    def malloc_host(self, size: int) -> Pointer:
        """Memory that the host reads and writes, and that every asynchronous copy uses without staging."""
        return self._allocated(size, HOST)

    @runtime_call
    def malloc_managed(self, size: int) -> Pointer:
        """One pointer for host and device; not_supported unless both see the same bytes without a call."""
        if size > 0 and not self.device().coherent:
            raise fail("not_supported", "host and device of this chip do not see the same bytes")
        return self._allocated(size, MANAGED)

    def _allocated(self, size: int, space: str) -> Pointer:
        device = self.device()
        self.outside_capture("an allocation")
        if size <= 0:
            raise fail("invalid_argument", f"an allocation of {size} bytes")
        with self._lock:
            return device.allocate(size, space)

    @runtime_call
    def free(self, pointer: Pointer | None) -> None:
        """Give memory of malloc, malloc_managed or malloc_async back; None is no error. The caller has seen to it
        that no work uses it. invalid_argument for anything that is not alive."""
        self._freed(pointer, (DEVICE, MANAGED, POOL))

    @runtime_call
    def free_host(self, pointer: Pointer | None) -> None:
        """Give memory of malloc_host back."""
        self._freed(pointer, (HOST,))

    def _freed(self, pointer: Pointer | None, spaces: tuple[str, ...]) -> None:
        self.outside_capture("free")
        if pointer is None:
            self.device()
            return
        with self._lock:
            device = self.of(pointer)
            self.device()
            found = device.base(pointer, spaces)
            device.forget(found)
            device.release(found.block)

    @runtime_call
    def malloc_async(self, size: int, stream: Stream | None) -> Pointer:
        """Memory that work put into the stream from now on may use; other streams after an event."""
        live, device = self.live_stream(stream), self.device()
        self.outside_capture("an allocation")
        if size <= 0:
            raise fail("invalid_argument", f"an allocation of {size} bytes")
        with self._lock:
            return self._pooled(device, size, live) or device.allocate(size, POOL)

    def _pooled(self, device: Device, size: int, stream: Stream) -> Pointer | None:
        """A block that was freed in this stream, whose order is all that is needed; or one that nobody uses now."""
        for entry in device.pool:
            allocation, last, number = entry
            if allocation.block.size == -(-size // device.granularity) * device.granularity and (
                last is stream or last.look() >= number
            ):
                device.pool.remove(entry)
                device.revive(allocation._replace(size=size))
                self.counts["pool_reused"] += 1
                return allocation.pointer
        return None

    @runtime_call
    def free_async(self, pointer: Pointer | None, stream: Stream | None) -> None:
        """Give it back in stream order."""
        live = self.live_stream(stream)
        self.outside_capture("free")
        if pointer is None:
            return
        with self._lock:
            device = self.of(pointer)
            found = device.base(pointer, (POOL,))
            device.forget(found)
            device.pool.append((found, live, live.last))
            device.trim(MOST_POOLED)

    @runtime_call
    def granularity(self) -> int:
        """Bytes in which memory is taken."""
        return self.device().granularity

    @runtime_call
    def memory_info(self) -> MemoryInfo:
        """Of the selected device."""
        with self._lock:
            return MemoryInfo(*self.device().memory_info())

    # -- the host's side of memory --

    @runtime_call
    def host_read(self, pointer: Pointer, size: int) -> bytes:
        """What the host sees in memory of malloc_host or malloc_managed."""
        with self._lock:
            return self._hosts(pointer).read(pointer, size)

    @runtime_call
    def host_write(self, pointer: Pointer, data: bytes) -> None:
        """Written by the host, without any copy."""
        with self._lock:
            self._hosts(pointer).write(pointer, data)

    def _hosts(self, pointer: Pointer) -> Device:
        if pointer.space not in (HOST, MANAGED):
            raise fail("invalid_argument", "the host does not reach memory of malloc")
        return self.of(pointer)

    @runtime_call
    def host_register(self, pages: Pages, size: int) -> None:
        """Make whole pages of the host's good for asynchronous copies. already_exists where some of them are."""
        self.device()
        start, end = pages.address, pages.address + size
        if start % PAGE or not 0 < size <= len(pages.view):
            raise fail("invalid_argument", f"{size} bytes at {start:#x}: whole pages of {PAGE} bytes are registered")
        if any(start < other_end and other < end for other, other_end in self._registered):
            raise fail("already_exists", f"some of {size} bytes at {start:#x} are registered")
        self._registered.append((start, end))

    @runtime_call
    def host_unregister(self, pages: Pages) -> None:
        """invalid_state for what is not registered."""
        self.device()
        for one in self._registered:
            if one[0] == pages.address:
                self._registered.remove(one)
                return
        raise fail("invalid_state", f"nothing is registered at {pages.address:#x}")

    def is_registered(self, place: object) -> bool:
        """Whether host memory is pages that were registered."""
        return isinstance(place, Pages) and any(start == place.address for start, _ in self._registered)
