"""AMD NPU (Ryzen AI, amdxdna): probe reads its chip.toml without importing this package."""
