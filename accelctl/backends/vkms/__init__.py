"""vkms, a display without hardware: probe reads its chip.toml without importing this package."""
