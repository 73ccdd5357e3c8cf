"""QEMU standard VGA (bochs): probe reads its chip.toml without importing this package."""
