"""bochs, QEMU's standard display: probe reads its chip.toml without importing this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="bochs",
    title="bochs, QEMU's standard display",
    drivers=("bochs-drm",),
    tier="proven",
    proven="kernel guest 6.12",
    address_space="none",
    control_plane="drm",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.bochs.memory import MEMORY

    registry.register(MANIFEST, memory=MEMORY)
