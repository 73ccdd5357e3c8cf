"""Lisuan 7G100 GPU: probe reads its chip.toml without importing this package."""
