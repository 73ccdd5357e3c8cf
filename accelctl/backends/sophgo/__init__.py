"""Sophgo Sophon TPU card: probe reads its chip.toml without importing this package."""
