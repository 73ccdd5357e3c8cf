"""PRIME: an object of one driver, shared with another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="prime",
    title="PRIME, one driver's object in another",
    drivers=(),
    features=frozenset({"memory", "export", "import", "peer_map"}),
    tier="proven",
    proven="kernel guest 6.12",
    address_space="none",
    control_plane="drm",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.prime.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
