"""Rockchip NPU (rocket, rknpu): probe reads its chip.toml without importing this package."""
