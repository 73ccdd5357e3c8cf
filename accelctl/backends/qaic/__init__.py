"""Qualcomm Cloud AI accelerator (qaic): probe reads its chip.toml without importing this package."""
