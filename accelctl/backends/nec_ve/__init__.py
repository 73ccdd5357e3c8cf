"""NEC SX-Aurora Vector Engine: probe reads its chip.toml without importing this package."""
