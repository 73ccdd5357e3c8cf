"""vkms: shmem pages behind dumb buffers."""

from __future__ import annotations

from accelctl.abi.dumb import DumbMemory

MEMORY = DumbMemory("vkms")
