"""NVIDIA GPU: probe reads its chip.toml without importing this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="nvidia",
    title="NVIDIA GPU (RM and UVM of the vendor's driver; nouveau)",
    features=frozenset({"memory", "host_map", "user_va"}),
    drivers=("nvidia", "nouveau"),
    tier="unproven",
    proven="unproven",
    address_space="user",
    control_plane="rm",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.nvidia.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
