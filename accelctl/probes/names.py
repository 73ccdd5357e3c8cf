"""Vendor and device names: pci.ids of the machine, and what it lacks from the chip rooms."""

from __future__ import annotations

from accelctl.hal.pciids import lookup
from accelctl.model.reading import computed
from accelctl.probes.context import Scan


def describe(scan: Scan) -> None:
    """Facts ``vendor`` and ``name``; a room's vendor word stands in where pci.ids has none."""
    wanted = {
        device.id: tuple(
            device.value(f"pci/{key}")
            for key in ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id")
        )
        for device in scan.devices.values()
        if device.value("pci/vendor_id")
    }
    found = lookup(scan.root, set(wanted.values()))
    for device in scan.devices.values():
        vendor, name = found.get(wanted.get(device.id, ()), (None, None))
        room = scan.rooms.by_name.get(device.chip or "")
        if vendor is not None and vendor.present:
            device.facts["vendor"] = vendor
        elif room is not None:
            device.facts["vendor"] = computed(room.vendor, f"{room.name}/chip.toml")
        if name is not None and name.present:
            device.facts["name"] = name
        elif room is not None and "name" not in device.facts:
            device.facts["name"] = computed(room.title, f"{room.name}/chip.toml, family")
