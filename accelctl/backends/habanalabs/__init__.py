"""Intel Gaudi / Habana accelerator: probe reads its chip.toml without importing this package."""
