"""Chips whose memory is a row of the GEM table: one back-end, and no code of their own.

Each of them has its room with a chip.toml; what they do with memory is in abi.gemrows and hal.uapi.gem_table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelctl.abi.manifest import Manifest

if TYPE_CHECKING:
    from accelctl.abi.registry import Registry


def _manifest(name: str, title: str, *drivers: str, space: str = "kernel", also: tuple[str, ...] = ()) -> Manifest:
    node = "accel" if name in ("ivpu", "amdxdna", "qaic", "rockchip_npu") else "drm"
    return Manifest(
        name=name,
        title=title,
        features=frozenset({"memory", *also}),
        drivers=drivers,
        control_plane=node,
        address_space=space,
        tier="table",
    )


MANIFESTS = (
    _manifest("mali", "Arm Mali GPU", "panfrost", "panthor", "lima", space="user", also=("user_va",)),
    _manifest("adreno", "Qualcomm Adreno GPU", "msm", "adreno", space="user", also=("user_va",)),
    _manifest("v3d", "Broadcom VideoCore GPU", "v3d"),
    _manifest("vivante", "Vivante GPU and NPU", "etnaviv", space="none", also=("host_map",)),
    _manifest("ivpu", "Intel NPU", "intel_vpu", also=("host_map", "telemetry")),
    _manifest("amdxdna", "AMD NPU", "amdxdna"),
    _manifest("qaic", "Qualcomm Cloud AI accelerator", "qaic", space="none", also=("telemetry",)),
    _manifest("rockchip_npu", "Rockchip NPU", "rocket"),
)
"""``drivers`` are what the kernel calls them (modules, platform drivers); the row follows from what DRM answers."""


def load_backend(registry: Registry) -> None:
    """Offer all of them; the code is imported only now."""
    from accelctl.backends.gem_rows.memory import MEMORY
    from accelctl.backends.gem_rows.telemetry import TELEMETRY

    for manifest in MANIFESTS:
        registry.register(manifest, memory=MEMORY[manifest.name], telemetry=TELEMETRY.get(manifest.name))
