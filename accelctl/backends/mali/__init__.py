"""Arm Mali GPU (panthor, panfrost, lima): probe reads its chip.toml without importing this package."""
