"""Google Cloud TPU: probe reads its chip.toml without importing this package."""
