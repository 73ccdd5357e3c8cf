"""AMD Xilinx Alveo / Versal FPGA card (XRT): probe reads its chip.toml without importing this package."""
