"""Vivante GPU (etnaviv): probe reads its chip.toml without importing this package."""
