"""dma-heap: system memory as dma-buf, handed out by the kernel itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="dma_heap",
    title="dma-heap, system memory as dma-buf",
    features=frozenset({"memory", "export"}),
    tier="proven",
    proven="kernel guest 6.12",
    address_space="none",
    control_plane="dma-buf",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.dma_heap.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
