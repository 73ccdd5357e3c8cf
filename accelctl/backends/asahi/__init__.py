"""Apple AGX GPU (asahi): probe reads its chip.toml without importing this package."""
