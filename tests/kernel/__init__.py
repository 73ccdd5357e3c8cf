"""Tests on two real kernels booted in QEMU; `README.md` beside this file says how."""
