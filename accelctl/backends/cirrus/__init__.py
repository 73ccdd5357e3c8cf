"""QEMU Cirrus display: probe reads its chip.toml without importing this package."""
