"""Which profile applies to which device that is here, and whether what it says can be meant."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.abi import compute, registry
from accelctl.abi.handshake import Chip
from accelctl.abi.switches import kernels_off, ops_off
from accelctl.errors import AccelError, UsageError
from accelctl.model.profile import InForce, Profile, for_device


def check(profiles: Sequence[Profile]) -> None:
    """What can be checked without any device. UsageError for the first mistake."""
    for one in profiles:
        names = one.values.get("ops.off")
        if isinstance(names, list):
            ops_off(names, one.place("ops.off"))


def of_device(profiles: Sequence[Profile], device: str) -> InForce:
    """What applies to a device that is here. UsageError, NoDeviceError, AbiError."""
    found = compute.named(device).device
    chip = found.target.chip
    force = for_device(profiles, chip, found.target.id, found.title)
    _kernels(force, registry.load(chip))
    return force


def _kernels(force: InForce, chip: Chip) -> None:
    said = force.get("kernels.off")
    if said is None or not isinstance(said.value, list) or chip.ops is None:
        return
    kernels_off(said.value, said.place, force.chip, [one.name for one in chip.ops.templates()])


def of_every_device(profiles: Sequence[Profile]) -> tuple[list[InForce], list[str]]:
    """What applies to each device that computes, and a line for each chip that cannot be asked."""
    found, problems = compute.everything()
    force = []
    for one in found:
        try:
            force.append(of_device(profiles, one.device.target.id))
        except UsageError:
            raise
        except AccelError as error:
            problems.append(f"{one.device.target.id}: {error.message}")
    return force, problems


def of_chips(profiles: Sequence[Profile]) -> list[InForce]:
    """For each chip of this tree that computes, what applies to all its devices, whatever their titles: no chip's code
    is needed for that. Chips that no profile is for are left out."""
    force = []
    for name in compute.WITH_OPS:
        general = [one for one in profiles if one.match.keys() == {"chip"}]
        found = for_device(general, name, "", "")
        if found.profiles:
            force.append(found)
    return force
