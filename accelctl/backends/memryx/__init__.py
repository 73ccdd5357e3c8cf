"""MemryX MX3: probe reads its chip.toml without importing this package."""
