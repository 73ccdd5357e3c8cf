"""Enflame GCU: probe reads its chip.toml without importing this package."""
