"""Intel GPU (i915, xe): probe reads its chip.toml without importing this package."""
