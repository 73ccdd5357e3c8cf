"""Groq TSP / LPU: probe reads its chip.toml without importing this package."""
