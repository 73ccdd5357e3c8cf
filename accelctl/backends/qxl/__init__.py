"""QEMU QXL display: probe reads its chip.toml without importing this package."""
