"""Cambricon MLU: probe reads its chip.toml without importing this package."""
