"""What a scan carries around: the root, the chip rooms, and the devices found so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accelctl.abi.rooms import Directory
from accelctl.hal.root import Converter, SysRoot
from accelctl.model.device import Device
from accelctl.model.reading import Reading


@dataclass
class Scan:
    """Devices are keyed by id while they are joined; ``by_path`` finds the owner of a sysfs folder, ``virtual``
    the physical function that lists an address as its VF."""

    root: SysRoot
    rooms: Directory
    machine: dict[str, Reading] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    by_path: dict[str, Device] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    virtual: dict[str, Device] = field(default_factory=dict)

    def add(self, device: Device) -> Device:
        """Enter a device; the first one found under an id stays."""
        known = self.devices.setdefault(device.id, device)
        self.by_path.setdefault(device.path, known)
        for address in known.value("sriov/virtual_functions") or ():
            self.virtual.setdefault(address, known)
        return known

    def owner(self, path: str) -> Device | None:
        """The device whose sysfs folder is ``path`` or the nearest one above it."""
        while path:
            found = self.by_path.get(path)
            if found is not None:
                return found
            path = path.rpartition("/")[0]
        return None


#: (key, file name, converter, unit, scope)
Field = tuple[str, str, "str | Converter", "str | None", str]


def read_fields(root: SysRoot, folder: str, fields: Iterable[Field]) -> dict[str, Reading]:
    """Read a list of files of one folder into facts."""
    base = f"{folder}/" if folder else ""
    return {key: root.read(base + name, conv, unit=unit, scope=scope) for key, name, conv, unit, scope in fields}
