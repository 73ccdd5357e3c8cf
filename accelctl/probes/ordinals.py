"""Framework ordinal <-> BDF, and what the *_VISIBLE_DEVICES variables do to it.

"GPU 3" of a framework is seldom the third on the bus: ROCm counts KFD nodes, masks renumber what is left, and one bad
entry in a CUDA mask hides everything after it. The default order is a fact of the machine; the mask's effect belongs to
the process and is volatile.
"""

from __future__ import annotations

import re

from accelctl.abi.rooms import Room
from accelctl.model.convert import is_index
from accelctl.model.device import Device
from accelctl.model.reading import VOLATILE, Reading, computed
from accelctl.probes.context import Scan

_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})\Z")  # Ascend and Cambricon write 0-3
_NOTES = {
    "nvidia": "PCI address order; CUDA itself sorts fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID",
}


def describe(scan: Scan) -> None:
    """Machine facts ``ordinals/<room>/...`` for every room that has devices."""
    environment = scan.root.environ()
    for room in scan.rooms.rooms:
        devices = [
            one
            for one in scan.devices.values()
            if one.chip == room.name and one.kind in ("physical", "partition", "vf")
        ]
        if devices:
            _room(scan, room, devices, environment)


def _room(scan: Scan, room: Room, devices: list[Device], environment: dict[str, str]) -> None:
    parents = {device.parent for device in devices if device.kind == "partition"}
    order, how = default_order([device for device in devices if device.id not in parents])
    key = f"ordinals/{room.name}"
    scan.machine[f"{key}/order"] = computed(order, _NOTES.get(room.name, how))
    visible = order
    for name in room.visible_env:
        if name in environment:
            text = environment[name]
            scan.machine[f"{key}/environment/{name}"] = Reading(
                text, f"environment: {name}", text, None, None, VOLATILE
            )
            visible = apply_mask(visible, text, order)
    scan.machine[f"{key}/visible"] = computed(visible, "order after the masks, outermost first", scope=VOLATILE)


def default_order(devices: list[Device]) -> tuple[list[str], str]:
    """Order in which a runtime counts: KFD node number where there is a KFD, else PCI address."""
    if any(device.value("kfd/node") is not None for device in devices):
        ranked = sorted(devices, key=lambda one: (one.value("kfd/node") is None, one.value("kfd/node") or 0, one.id))
        return [device.id for device in ranked], "KFD node order"
    return [device.id for device in sorted(devices, key=lambda one: one.id)], "PCI address order"


def apply_mask(visible: list[str], mask: str, order: list[str]) -> list[str]:
    """What a mask leaves: numbers index what is visible so far; an entry that is no device ends the list, as CUDA and
    ROCr do.
    """
    if mask.strip().lower() == "all":
        return visible
    chosen: list[str] = []
    for entry in mask.split(","):
        word = entry.strip()
        if match := _RANGE.match(word):
            chosen += visible[int(match.group(1)) : int(match.group(2)) + 1]
            continue
        if is_index(word) and int(word) < len(visible):
            target = visible[int(word)]
        elif word.lower() in order:
            target = word.lower()
        else:
            break
        if target in chosen:
            break
        chosen.append(target)
    return chosen
