"""Records of a file, by device and kernel."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.abi import capabilityfile
from accelctl.abi.capability import Capability
from accelctl.errors import UsageError
from accelctl.model.configtext import near


def place(path: str) -> str:
    """A file that is named must be there; the default one need not. UsageError."""
    if path:
        capabilityfile.present(path)
    return path or capabilityfile.default_path()


def records(path: str, devices: Sequence[str]) -> tuple[str, list[Capability]]:
    """Where they are, and those of these devices (none named: all). UsageError for a device without any."""
    where = place(path)
    found = capabilityfile.read(where)
    known = {one.platform.device for one in found}
    for name in devices:
        if name not in known:
            raise UsageError(f"--device {name}: {where} has no record of it{near(name, known)}", "accelctl caps list")
    return where, [one for one in found if not devices or one.platform.device in devices]


def of_kernel(path: str, devices: Sequence[str], kernel: str) -> list[Capability]:
    """Those of one kernel. UsageError where there is none."""
    where, found = records(path, devices)
    mine = [one for one in found if one.kernel == kernel]
    if not mine:
        known = {one.kernel for one in found}
        raise UsageError(f"{where} has no record of a kernel {kernel}{near(kernel, known)}", "accelctl caps list")
    return mine


def merge(path: str, files: Sequence[str]) -> tuple[str, list[Capability]]:
    """Add these files to one, which need not be there yet. UsageError for one that is no such file, or is missing."""
    where = path or capabilityfile.default_path()
    more = [one for name in files for one in capabilityfile.present(name)]
    return where, capabilityfile.update(where, lambda known: capabilityfile.merged(known, more))
