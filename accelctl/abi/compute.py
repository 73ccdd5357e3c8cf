"""Devices that compute: which chips offer ops, what of them is here, and which one a filter means.

``sim:0``, ``opencl:1``, ``torch:cpu``: the chip's name, and which of its devices. A CPU or a simulation is only taken
when it is named; nothing falls back to one.
"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.abi import registry
from accelctl.abi.handshake import Chip
from accelctl.abi.ops import Device
from accelctl.errors import AbiError, AccelError, NoDeviceError, UsageError

WITH_OPS = ("opencl", "torch", "sim")
"""Chips of this tree that offer ops; a third party's are asked."""
LOOKED_FOR = "OpenCL GPUs and accelerators, devices of PyTorch, chips of plug-ins"


class Found(NamedTuple):
    """A device and its chip."""

    device: Device
    chip: Chip


def choose(filters: list[str]) -> Found:
    """The first device that the first filter that fits means; without any, the first accelerator. NoDeviceError says
    what was looked for; UsageError for a filter of another kind."""
    if not filters:
        return _default()
    missing: list[NoDeviceError] = []
    for text in filters:
        try:
            return named(text)
        except NoDeviceError as error:
            missing.append(error)
    raise NoDeviceError("; ".join(error.message for error in missing), missing[-1].hint)


def named(text: str) -> Found:
    """The device that ``chip:which`` means."""
    name, _, which = text.partition(":")
    if not which or "=" in name or name == "pci":
        raise UsageError(f"--device {text}: devices that compute are named by chip, as in opencl:0, torch:cpu, sim:0")
    if name not in registry.names():
        raise NoDeviceError(f"{text}: no chip is called {name}", "accelctl smoke --list")
    found = _of(name)
    for one in found:
        if one.device.target.id == text:
            return one
    there = ", ".join(one.device.target.id for one in found) or "none"
    raise NoDeviceError(f"{text} is not here ({name} has: {there})")


def everything() -> tuple[list[Found], list[str]]:
    """All devices of all chips with ops, and a line for each chip that cannot be asked."""
    found: list[Found] = []
    problems: list[str] = []
    for name in registry.names():
        row = registry.row(name)
        if row.origin == "in-tree" and name not in WITH_OPS:
            continue
        try:
            found += _of(name)
        except AccelError as error:
            problems.append(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    return found, problems


def _of(name: str) -> list[Found]:
    chip = registry.load(name)
    if chip.ops is None:
        raise NoDeviceError(f"chip {name} has no kernels", "accelctl smoke --list")
    try:
        return [Found(device, chip) for device in chip.ops.devices()]
    except (AccelError, MemoryError):
        raise
    except Exception as error:
        raise AbiError(f"chip {name}: asked for its devices, it failed: {type(error).__name__}: {error}") from error


def _default() -> Found:
    found, problems = everything()
    usable = [one for one in found if one.device.accelerator]
    if usable:
        return usable[0]
    others = ", ".join(one.device.target.id for one in found)
    text = f"no accelerator that computes is here; looked for: {LOOKED_FOR}"
    text += f"; by name only: {others}" if others else ""
    text += f"; not usable: {'; '.join(problems)}" if problems else ""
    raise NoDeviceError(text, "--device sim:0 (simulated)")
