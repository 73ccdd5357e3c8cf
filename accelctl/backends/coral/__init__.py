"""Google Coral Edge TPU (gasket, apex): probe reads its chip.toml without importing this package."""
