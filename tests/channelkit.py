"""The data channel in tests: rings in plain memory, a door with tensors, and what a process holds of both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from accelctl.errors import AccelError
from accelctl.umd.channel.door import Door, Guest
from accelctl.umd.channel.messages import ChannelError
from accelctl.umd.channel.ring import _BODY, _CRC, HEADER, PAGE, VOID, Chunk, Reader, Shape, Writer
from tests.processkit import child, open_files, said

SESSION = 7
SMALL = Shape(4, PAGE)
"""A ring that a few chunks fill."""
__all__ = ["HEADER", "PAGE", "VOID", "Chunk"]


class Memory:
    """A ring in plain memory, and the hand of a peer that writes what it likes."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.view = memoryview(bytearray(shape.size_bytes))
        self.words = self.view.cast("Q")

    def writer(self) -> Writer:
        return Writer(self.view, self.shape)

    def reader(self, *, lossless: bool = True) -> Reader:
        return Reader(self.view, self.shape, lossless=lossless)

    def sequence(self, slot: int, value: int) -> None:
        self.words[(PAGE + slot * HEADER) // 8] = value

    def header(self, slot: int, number: int, chunk: Chunk, checksum: int) -> None:
        """A header whose own checksum is right, whatever it says."""
        body = _BODY.pack(number, *chunk, checksum)
        at = PAGE + slot * HEADER + 8
        self.view[at : at + HEADER - 8] = body + _CRC.pack(crc32c(body))

    def payload(self, slot: int) -> memoryview:
        at = self.shape.payload_at + slot * self.shape.slot_bytes
        return self.view[at : at + self.shape.slot_bytes]


def put(writer: Writer, data: bytes, transfer: int = 1, position: int = 0, tensor_id: int = 1, offset: int = 0) -> None:
    """One record with a right checksum."""
    writer.put(Chunk(transfer, position, tensor_id, offset, len(data)), memoryview(data))


class Tensors:
    """What a session owns: tensor id -> bytes. Counts who uses them."""

    def __init__(self, **sizes: int) -> None:
        self.bytes = {int(name[1:]): bytearray(size) for name, size in sizes.items()}
        self.used: dict[int, int] = {}
        self.fails: Exception | None = None

    def place(self, tensor_id: int) -> tuple[memoryview, int]:
        if self.fails is not None:
            raise self.fails
        if tensor_id not in self.bytes:
            raise AccelError(f"tensor {tensor_id} is not of this session", kind="invalid_handle")
        self.used[tensor_id] = self.used.get(tensor_id, 0) + 1
        return memoryview(self.bytes[tensor_id]), len(self.bytes[tensor_id])

    def done(self, tensor_id: int) -> None:
        self.used[tensor_id] -= 1

    def idle(self) -> bool:
        return not any(self.used.values())


@contextmanager
def opened(
    folder: Path, tensors: Tensors, *, shape: Shape = SMALL, patience_s: float = 5.0, staged: bool = False
) -> Iterator[tuple[Door, bytes]]:
    """A door with one token; afterwards nobody uses a tensor and no ring is mapped."""
    door = Door(str(folder / "data"), shape=shape, patience_s=patience_s)
    try:
        yield door, door.offer(Guest(SESSION, tensors.place, tensors.done, staged))
    finally:
        door.close()
    assert tensors.idle()


class Held:
    """What this process has open and how many rings it has mapped at this moment. gRPC of an earlier test may close
    files of its own meanwhile, so only what is new counts."""

    def __init__(self) -> None:
        self.files, self.rings = open_files(), self._rings()

    def _rings(self) -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").count("memfd:accelctl")

    def more(self) -> tuple[list[str], int]:
        """Files that were not open then, and rings more than then."""
        return sorted(open_files() - self.files), self._rings() - self.rings

    def settled(self) -> bool:
        """Wait until there is nothing more, which a thread may be just about to close; whether it came to that."""
        end = time.monotonic() + 5
        while self.more() != NOTHING and time.monotonic() < end:
            time.sleep(0.005)
        return self.more() == NOTHING


NOTHING: tuple[list[str], int] = ([], 0)


__all__ += ["NOTHING", "ChannelError", "Held", "Memory", "Tensors", "child", "open_files", "opened", "put", "said"]
