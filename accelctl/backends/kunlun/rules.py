"""Hints for the bus-generic rules: Kunlunxin's libraries and how its cards reach a container."""

from __future__ import annotations

#: PaddlePaddle XPU container guide.
CONTAINER = {"docker": "docker run --device /dev/xpu0 --device /dev/xpuctrl IMAGE"}
#: PaddlePaddle XPU installation page.
LIBRARY_PREFIXES = ("libxpurt", "libxpuapi", "libbkcl", "libxpuml")
