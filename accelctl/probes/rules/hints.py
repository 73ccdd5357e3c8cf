"""What a chip's rules.py may tell the bus-generic rules, so that no chip's name stands in them.

A room's module may define:

    LOCKSTEP          names of libraries whose version must equal the kernel module's (fnmatch), e.g. ("libcuda.so.*",)
    LOCKSTEP_EFFECT   what a user sees when it does not, in one line
    CLIENT_MISMATCH   (literal, pattern with groups ``client`` and ``module``): the driver's own log line about it
    NOT_PROBED        (literal, pattern): the driver's log line when another driver has its device
    NODES_ON_DEMAND   the command that makes the device nodes, where they appear only at first use
    CONTAINER         recipes that give the device to a container: {"docker": ..., "cdi": ..., "kubernetes": ...}
    LIBRARY_PREFIXES  beginnings of names of the chip's libraries beyond its [[library]] rows, e.g. ("libcn", "libmlu")
    firmware_files    function(device) -> names below lib/firmware that its driver asks for
"""

from __future__ import annotations

from typing import Any

from accelctl.abi.rooms import Room


def hint(room: Room | None, name: str, default: Any = None) -> Any:
    """An attribute of a room's rules module, else ``default`` (a third party's code is not imported)."""
    if room is None:
        return default
    from accelctl.probes.engine import chip_module

    return getattr(chip_module(room), name, default)
