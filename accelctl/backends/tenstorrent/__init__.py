"""Tenstorrent Grayskull / Wormhole / Blackhole: probe reads its chip.toml without importing this package."""
