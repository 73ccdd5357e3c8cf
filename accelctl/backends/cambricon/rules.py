"""Hints for the bus-generic rules: Cambricon's libraries and how its cards reach a container."""

from __future__ import annotations

#: gpustack/runtime deployer/cdi/cambricon.py; Cambricon device plugin documentation.
CONTAINER = {
    "docker": "docker run --device /dev/cambricon_dev0 --device /dev/cambricon_ctl IMAGE",
    "kubernetes": 'resources: {limits: {"cambricon.com/mlu": 1}} with the Cambricon device plugin',
}
#: Names of Neuware libraries (libcnrt, libcndev, libcnnl, libmluops): PaddlePaddle/PaddleCustomDevice issue 1601.
LIBRARY_PREFIXES = ("libcnrt", "libcndrv", "libcndev", "libcnnl", "libcncl", "libmluops", "libmagicmind")
