"""Iluvatar CoreX GPU: probe reads its chip.toml without importing this package."""
