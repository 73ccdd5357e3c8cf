"""accelctl: bring up, probe and watch accelerators (GPU, NPU, DCU, XPU, TPU, FPGA) on Linux.

This module holds the version and imports nothing, so that `accelctl --version` costs little more than starting Python.
"""

__version__ = "0.1.0"
