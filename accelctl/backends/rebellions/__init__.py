"""Rebellions NPU (ATOM, REBEL): probe reads its chip.toml without importing this package."""
