"""Imagination PowerVR GPU (pvr): probe reads its chip.toml without importing this package."""
