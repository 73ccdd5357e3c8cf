"""udmabuf: a process's own memory as dma-buf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="udmabuf",
    title="udmabuf, a process's memory as dma-buf",
    features=frozenset({"memory", "host_map", "export"}),
    tier="proven",
    proven="kernel guest 6.12",
    address_space="none",
    control_plane="dma-buf",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.udmabuf.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
