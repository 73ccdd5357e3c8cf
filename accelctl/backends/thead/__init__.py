"""T-Head PPU: probe reads its chip.toml without importing this package."""
