"""Arm Ethos-U NPU: probe reads its chip.toml without importing this package."""
