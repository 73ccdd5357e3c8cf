"""d-Matrix Corsair: probe reads its chip.toml without importing this package."""
