"""XDX Computing GPU (Innosilicon): probe reads its chip.toml without importing this package."""
