"""vgem, buffers without hardware: probe reads its chip.toml without importing this package."""
