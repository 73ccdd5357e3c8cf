"""Hyper-V synthetic display: probe reads its chip.toml without importing this package."""
