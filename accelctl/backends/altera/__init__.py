"""Intel / Altera FPGA card (DFL, OPAE): probe reads its chip.toml without importing this package."""
