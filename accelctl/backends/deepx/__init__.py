"""DEEPX DX-M1: probe reads its chip.toml without importing this package."""
