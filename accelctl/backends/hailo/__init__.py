"""Hailo AI processor: probe reads its chip.toml without importing this package."""
