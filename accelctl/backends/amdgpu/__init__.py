"""AMD GPU: probe reads its chip.toml without importing this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry

MANIFEST = Manifest(
    name="amdgpu",
    title="AMD GPU (amdgpu, KFD)",
    features=frozenset({"memory", "telemetry", "host_map", "peer_map", "export", "import", "user_va"}),
    drivers=("amdgpu", "kfd"),
    tier="unproven",
    proven="unproven",
    address_space="user",
    control_plane="drm",
    p2p=True,
)
"""KFD gives back only at the end of the process: a clean baseline there needs a child process for each round."""


def load_backend(registry: Registry) -> None:
    """Offer this chip; its code is imported only now."""
    from accelctl.backends.amdgpu.memory import MEMORY
    from accelctl.backends.amdgpu.telemetry import TELEMETRY

    registry.register(MANIFEST, memory=MEMORY, telemetry=TELEMETRY)
