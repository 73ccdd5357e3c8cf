"""Pointers of the portable runtime, and what they point into."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from accelctl.abi.lifecycle import Block

DEVICE, HOST, MANAGED, POOL = "device", "host", "managed", "pool"
"""Spaces: from malloc, malloc_host, malloc_managed and malloc_async."""
ALIGNMENT, HOST_ALIGNMENT = 256, 64
"""Bytes: what a start address has at least."""


@dataclass(frozen=True)
class Pointer:
    """A place in the memory of one device. ``generation`` counts its resets: nothing from before one is alive."""

    address: int
    device: int
    generation: int
    space: str = DEVICE

    def __add__(self, distance: int) -> Pointer:
        return replace(self, address=self.address + distance)


class Allocation(NamedTuple):
    """``size`` is what was asked for, and all that may be touched."""

    pointer: Pointer
    size: int
    block: Block

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.pointer.address + self.size
