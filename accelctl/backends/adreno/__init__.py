"""Qualcomm Adreno GPU (msm): probe reads its chip.toml without importing this package."""
