"""iommufd: I/O address spaces without a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="iommufd",
    title="iommufd, I/O address spaces",
    drivers=(),
    control_plane="iommufd",
    features=frozenset({"memory", "host_map", "user_va"}),
    tier="proven",
    proven="kernel guest 6.12",
    address_space="user",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.iommufd.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
