"""NVIDIA Tegra engines (host1x: VIC, NVDEC, 2D, 3D): probe reads its chip.toml without importing this package."""
