"""Broadcom VideoCore GPU (v3d, vc4): probe reads its chip.toml without importing this package."""
