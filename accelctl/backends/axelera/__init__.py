"""Axelera Metis / Europa AIPU: probe reads its chip.toml without importing this package."""
