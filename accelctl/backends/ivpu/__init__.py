"""Intel NPU (ivpu): probe reads its chip.toml without importing this package."""
