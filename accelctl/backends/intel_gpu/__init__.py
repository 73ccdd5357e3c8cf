"""Intel GPU: probe reads its chip.toml without importing this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="intel_gpu",
    title="Intel GPU (i915, xe)",
    features=frozenset({"memory", "telemetry", "host_map", "user_va"}),
    drivers=("i915", "xe"),
    tier="unproven",
    proven="unproven",
    address_space="user",
    control_plane="drm",
)


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.intel_gpu.memory import MEMORY
    from accelctl.backends.intel_gpu.telemetry import TELEMETRY

    registry.register(MANIFEST, memory=MEMORY, telemetry=TELEMETRY)
