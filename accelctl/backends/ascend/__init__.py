"""Huawei Ascend NPU: probe reads its chip.toml without importing this package."""
