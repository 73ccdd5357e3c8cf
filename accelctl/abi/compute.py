"""Devices that compute: which chips offer ops, what of them is here, and which one a filter means.

``sim:0``, ``opencl:1``, ``torch:cpu``: the chip's name, and which of its devices. A CPU or a simulation is only taken
when it is named; nothing falls back to one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from accelctl.abi import registry
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Target
from accelctl.abi.ops import Device
from accelctl.errors import AbiError, AccelError, NoDeviceError, UsageError

WITH_OPS = ("opencl", "torch", "sim")
"""Chips of this tree that offer ops; a third party's are asked."""
LOOKED_FOR = "OpenCL GPUs and accelerators, devices of PyTorch, chips of plug-ins"


class Found(NamedTuple):
    """A device, and the name of its chip."""

    device: Device
    name: str
    proven: str = ""
    """As its manifest says."""

    @property
    def chip(self) -> Chip:
        """The chip, its code imported only now: a third party's is in this process only where its device is used."""
        return registry.load(self.name)


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


def chip_of(text: str) -> str:
    """The chip that ``chip:which`` names, unimported. UsageError, NoDeviceError."""
    name, _, which = text.partition(":")
    if not which or "=" in name or name == "pci":
        raise UsageError(f"--device {text}: devices that compute are named by chip, as in opencl:0, torch:cpu, sim:0")
    if name not in registry.names():
        raise NoDeviceError(f"{text}: no chip is called {name}", "accelctl smoke --list")
    return name


def named(text: str) -> Found:
    """The device that ``chip:which`` means."""
    name = chip_of(text)
    found = devices(name)
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
            found += devices(name)
        except AccelError as error:
            problems.append(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    return found, problems


def devices(name: str) -> list[Found]:
    """All devices of one chip; NoDeviceError for a chip without kernels, AbiError where it is refused."""
    proven, here = registry.ask(name, _devices)
    return [Found(Device(_target(*where), *rest), name, proven) for where, *rest in here]


def _target(identity: str, chip: str, driver: str, node: str, others: list[str], made_up: bool) -> Target:
    return Target(identity, chip, driver, node, tuple(others), made_up)


def _devices(chip: Chip) -> tuple[str, list[list[Any]]]:
    """Where the chip is proven, and its devices, in plain values."""
    name = chip.manifest.name
    if chip.ops is None:
        raise NoDeviceError(f"chip {name} has no kernels", "accelctl smoke --list")
    try:
        made_up = chip.manifest.tier == "simulated"
        here = [[[*device.target._replace(made_up=made_up)], *device[1:]] for device in chip.ops.devices()]
        return chip.manifest.proven, here
    except (AccelError, MemoryError):
        raise
    except Exception as error:
        raise AbiError(f"chip {name}: asked for its devices, it failed: {type(error).__name__}: {error}") from error


def _default() -> Found:
    found, problems = everything()
    usable = [one for one in found if one.device.accelerator and not one.device.target.simulated]
    if usable:
        return usable[0]
    others = ", ".join(one.device.target.id for one in found)
    text = f"no accelerator that computes is here; looked for: {LOOKED_FOR}"
    text += f"; by name only: {others}" if others else ""
    text += f"; not usable: {'; '.join(problems)}" if problems else ""
    raise NoDeviceError(text, "--device sim:0 (simulated)")
