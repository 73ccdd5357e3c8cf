"""bochs: QEMU's standard VGA, whose dumb buffers are TTM objects that move into its VRAM of 16 MiB and out again."""

from __future__ import annotations

from accelctl.abi.dumb import DumbMemory

LARGEST = 4 << 20
"""Bytes; several of them fit the VRAM at once."""

MEMORY = DumbMemory("bochs-drm", LARGEST)
