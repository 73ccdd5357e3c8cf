"""Hints for the bus-generic rules: how a Hygon DCU reaches a container (gpustack/runtime deployer/cdi/hygon.py)."""

from __future__ import annotations

CONTAINER = {
    "docker": "docker run --device /dev/kfd --device /dev/mkfd --device /dev/dri -v /opt/hyhal:/opt/hyhal:ro IMAGE",
    "kubernetes": 'resources: {limits: {"hygon.com/dcu": 1}} with the Hygon device plugin',
}
