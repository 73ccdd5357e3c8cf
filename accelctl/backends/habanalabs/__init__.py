"""Intel Gaudi: probe reads its chip.toml without importing this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="habanalabs",
    title="Intel Gaudi (habanalabs)",
    features=frozenset({"memory", "telemetry", "host_map"}),
    drivers=("habanalabs",),
    tier="unproven",
    proven="unproven",
    address_space="kernel",
    control_plane="accel",
    by_name_only=True,  # the last close can reset the device
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.habanalabs.memory import MEMORY
    from accelctl.backends.habanalabs.telemetry import TELEMETRY

    registry.register(MANIFEST, memory=MEMORY, telemetry=TELEMETRY)
