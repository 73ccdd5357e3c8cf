"""Copies and fills.

Host memory is of three kinds: pages of malloc_host, which devices reach; pages of our own that were registered; and any
other Python buffer, which is pageable. An asynchronous copy from or to the last kind would wait behind the caller's
back, so it is refused (``not_async``) unless the caller says that it may, and counted either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from accelctl.abi.hostmem import Pages
from accelctl.abi.runtime import kernels
from accelctl.abi.runtime.core import runtime_call
from accelctl.abi.runtime.failure import NotAsync, fail
from accelctl.abi.runtime.memory import MemoryCalls
from accelctl.abi.runtime.pointer import Pointer
from accelctl.abi.runtime.stream import Do, Stream, Work

Pageable = bytes | bytearray | memoryview
Place = Pointer | Pages | Pageable | None


class CopyCalls(MemoryCalls):
    """Mixed into Runtime."""

    @runtime_call
    def memcpy(self, to: Place, source: Place, size: int) -> None:
        """Returns when ``to`` holds the data. Waits for no stream; 0 bytes touch no pointer."""
        self.device()
        self.outside_capture("a synchronous copy")
        if size == 0:
            return
        self._sane(to, source, size)
        if isinstance(to, Pointer) and isinstance(source, Pointer):
            self._between(to, source, size)
            return
        with self._lock:
            if isinstance(to, Pointer):
                self.of(to).write(to, _bytes(source, size))
            elif isinstance(source, Pointer):
                _into(to, self.of(source).read(source, size))

    def _between(self, to: Pointer, source: Pointer, size: int) -> None:
        if to.device != source.device:
            with self._lock:
                self.of(to).write(to, self.of(source).read(source, size))
            return
        with self._lock:
            stream = self.of(to).own
            self._enqueue(stream, kernels.copies(self.of(to).ops, to.address, source.address, size))
        self.wait_for(stream, stream.last, None)

    def _sane(self, to: Place, source: Place, size: int) -> None:
        """invalid_argument for what no copy can use: every refusal comes before anything moves."""
        if size < 0 or to is None or source is None:
            raise fail("invalid_argument", f"a copy of {size} bytes from {source!r:.40} to {to!r:.40}")
        if not isinstance(to, Pointer) and not isinstance(source, Pointer):
            raise fail("invalid_argument", "a copy between two places of the host")
        for place in (to, source):
            if isinstance(place, Pointer):
                self.of(place).find(place, size)
            elif _length(place) < size:
                raise fail("invalid_argument", f"{size} bytes of host memory that has {_length(place)}")
        if not isinstance(to, Pointer) and _read_only(to):
            raise fail("invalid_argument", "a copy into memory that cannot be written")
        one_device = isinstance(to, Pointer) and isinstance(source, Pointer) and to.device == source.device
        if one_device and abs(to.address - source.address) < size:  # type: ignore[union-attr]
            raise fail("invalid_argument", "the two places of a copy overlap")

    @runtime_call
    def memcpy_async(
        self, to: Place, source: Place, size: int, stream: Stream | None, allow_sync: bool = False
    ) -> None:
        """In stream order, without waiting. ``allow_sync``: one place may be pageable, and the call may wait then."""
        live = self.live_stream(stream)
        self.device()
        if size == 0:
            return
        self._sane(to, source, size)
        hosts = [one for one in (to, source) if not isinstance(one, Pointer)]
        if hosts and self.is_registered(hosts[0]):
            self.outside_capture("a copy that the host stands in")
        elif hosts:
            self._pageable(allow_sync)
        with self._lock:
            if isinstance(to, Pointer) and isinstance(source, Pointer):
                self._pointers(to, source, size, live)
            elif isinstance(to, Pointer):
                self._upload(live, to, _bytes(source, size))
            elif isinstance(source, Pointer):
                self._download(live, to, source, size)
        if hosts and not isinstance(to, Pointer) and not self.is_registered(to):
            self.wait_for(live, live.last, None)
        self.relieve(live)

    def _pageable(self, allow_sync: bool) -> None:
        self.outside_capture("a copy of pageable memory")
        self.counts["pageable_staged" if allow_sync else "pageable_refused"] += 1
        if not allow_sync:
            raise NotAsync(
                "not_async: a copy of pageable memory has to wait", "use malloc_host() memory, or say allow_sync=True"
            )

    def _pointers(self, to: Pointer, source: Pointer, size: int, stream: Stream) -> None:
        """Of one device; between two devices the host stands in the middle, at its turn."""
        if to.device == source.device == stream.device:
            self._enqueue(stream, kernels.copies(self.of(to).ops, to.address, source.address, size))
            return
        ahead, behind = self.of(source), self.of(to)
        self.enqueue(stream, Do(lambda: behind.write(to, ahead.read(source, size))))

    def _upload(self, stream: Stream, to: Pointer, data: bytes) -> None:
        """Through a block that devices reach, which is given back behind the copy."""
        device = self.of(to)
        block = device.acquire(len(data))
        device.write_block(block, 0, data)
        self._enqueue(stream, kernels.copies(device.ops, to.address, block.address, len(data)))
        self.enqueue(stream, Do(partial(device.release, block)))

    def _download(self, stream: Stream, to: Place, source: Pointer, size: int) -> None:
        device = self.of(source)
        block = device.acquire(size)

        def finish() -> None:
            data = device.read_block(block, size)
            device.release(block)
            _into(to, data)

        self._enqueue(stream, kernels.copies(device.ops, block.address, source.address, size))
        self.enqueue(stream, Do(finish))

    @runtime_call
    def memset_async(self, to: Pointer | None, value: int, size: int, stream: Stream | None) -> None:
        """Fill with a byte, in stream order, without waiting."""
        live = self.live_stream(stream)
        self.device()
        if size == 0:
            return
        if to is None or not 0 <= value <= 255 or size < 0:
            raise fail("invalid_argument", f"{size} bytes of {value} at {to!r:.40}")
        with self._lock:
            device = self.of(to)
            device.find(to, size)
            self._enqueue(live, kernels.fills(device.ops, to.address, value, size, device.byte_table()))
        self.relieve(live)

    def _enqueue(self, stream: Stream, blobs: Sequence[bytes]) -> None:
        for one in blobs:
            self.enqueue(stream, Work(one))

    def enqueue(self, stream: Stream, item: Work | Do) -> None:
        """Behind all that a stream has; into the capture where one records it."""
        if stream.graph is not None:
            stream.graph.add(stream, item)
        else:
            stream.put(item)


def _length(place: Place) -> int:
    if isinstance(place, Pages):
        return len(place.view)
    return memoryview(place).nbytes if isinstance(place, Pageable) else -1


def _read_only(place: Place) -> bool:
    return isinstance(place, Pageable) and memoryview(place).readonly


def _bytes(place: Place, size: int) -> bytes:
    if isinstance(place, Pages):
        return place.view[0:size]
    assert isinstance(place, Pageable)
    return bytes(memoryview(place).cast("B")[:size])


def _into(place: Place, data: bytes) -> None:
    if isinstance(place, Pages):
        place.view[0 : len(data)] = data
        return
    assert isinstance(place, Pageable)
    memoryview(place).cast("B")[: len(data)] = data
