"""Which rows of the GEM table each chip has."""

from __future__ import annotations

from accelctl.abi.gemrows import RowMemory

MEMORY = {
    "mali": RowMemory("panfrost", "panthor", "lima"),
    "adreno": RowMemory("msm"),
    "v3d": RowMemory("v3d"),
    "vivante": RowMemory("etnaviv"),
    "ivpu": RowMemory("ivpu"),
    "amdxdna": RowMemory("amdxdna"),
    "qaic": RowMemory("qaic"),
    "rockchip_npu": RowMemory("rocket"),
}
"""Name of a chip's room -> its memory. nouveau's row is the NVIDIA room's."""
