"""What a kernel is proven on, asked of the machine as it is now."""

from __future__ import annotations

import accelctl
from accelctl.abi.capability import Platform
from accelctl.abi.compute import Found
from accelctl.abi.condition import Offers
from accelctl.abi.ops import Template
from accelctl.errors import AbiError, AccelError


def platform_of(found: Found, template: Template) -> Platform:
    """Of one kernel on a device that is here. The device's own name stands for its architecture. AbiError where the
    chip cannot say its versions."""
    target, chip = found.device.target, found.chip
    toolchain = (*chip.manifest.toolchains, f"accelctl {accelctl.__version__}")
    asked = getattr(chip.ops, "versions", None)
    try:
        versions = dict(asked(target, template)) if asked is not None else {}
    except (AccelError, MemoryError):
        raise
    except Exception as error:
        raise AbiError(f"chip {target.chip}: asked for its versions, it failed: {error}") from error
    return Platform(target.id, found.device.title, target.driver, toolchain, tuple(sorted(versions.items())))


def offers_of(found: Found) -> Offers:
    """What the device has of what kernels may need; nothing where the chip does not say."""
    asked = getattr(found.chip.ops, "offers", None)
    try:
        return asked(found.device.target) if asked is not None else Offers()
    except (AccelError, MemoryError):
        raise
    except Exception as error:
        raise AbiError(f"chip {found.chip.manifest.name}: asked for its resources, it failed: {error}") from error


def templates_of(found: Found) -> dict[str, Template]:
    """Name -> kernel of a device that is here."""
    return {one.name: one for one in found.chip.ops.templates()} if found.chip.ops is not None else {}
