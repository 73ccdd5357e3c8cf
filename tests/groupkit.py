"""Ranks of collectives on a device, for tests: the chip's own, or several sessions of it."""

from __future__ import annotations

from accelctl.abi import compute
from accelctl.abi.runtime import Runtime
from accelctl.abi.runtime.collectives import Group, PortableGroup
from accelctl.smoke.semantics import environment


def group(device: str, ranks: int) -> Group:
    """So many, on ``chip:which``. NoDeviceError. Whoever asks closes it."""
    found = compute.named(device)
    own = getattr(found.chip.ops, "group", None)
    if own is not None:
        made: Group = own(found.device.target, ranks)
        return made
    runtime = Runtime(found.chip, (found.device.target,) * ranks, environment(found.chip.manifest.name))
    runtime.init()
    return PortableGroup(runtime, ranks)
