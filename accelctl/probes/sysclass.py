"""Class folders of vendor drivers without DRM (``sys/class/tenstorrent`` and the like), joined to their PCI
function.
"""

from __future__ import annotations

from fnmatch import fnmatch

from accelctl.abi.rooms import Room, Row
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.probes import drm, pci
from accelctl.probes.context import Scan


def find(scan: Scan) -> None:
    """Read the class folders that rooms name."""
    for room in scan.rooms.rooms:
        for row in room.table("sysclass"):
            for name in scan.root.listdir(row["dir"]):
                if fnmatch(name, row.get("entry", "*")):
                    _join(scan, room, row, name)


def _parent(scan: Scan, row: Row, path: str) -> str:
    """The folder of the hardware: behind ``link``, or the function whose address stands in ``bdf_file``, or the entry
    itself.
    """
    if "bdf_file" in row:
        scan.root.allow.add(f"{row['dir'].rpartition('/')[2]}/*/{row['bdf_file']}", "free")
        address = (scan.root.text(f"{path}/{row['bdf_file']}") or "").strip().lower()
        return scan.root.resolve(f"{pci.BUS}/{address}") if pci.ADDRESS.match(address) else path
    link = row.get("link", "device")
    return scan.root.resolve(f"{path}/{link}") if link and scan.root.exists(f"{path}/{link}") else path


def _join(scan: Scan, room: Room, row: Row, name: str) -> None:
    path = scan.root.resolve(f"{row['dir']}/{name}")
    parent = _parent(scan, row, path)
    device = scan.owner(parent)
    if device is None:
        address = parent.rpartition("/")[2]
        if pci.ADDRESS.match(address):
            device = scan.add(pci.build(scan, address, parent))
        else:
            device = scan.add(Device(f"{row['dir'].rpartition('/')[2]}:{name}", "physical", path))
    device.chip = device.chip or room.name
    folder = row["dir"].rpartition("/")[2]
    device.facts[f"class/{folder}/{name}/path"] = Reading(path, f"{row['dir']}/{name}", None)
    number = scan.root.read(f"{path}/dev")
    if number.present:
        device.facts[f"class/{folder}/{name}/dev"] = number
        device.facts[f"drm/{name}/node"] = Reading(drm.node_path(scan.root, path, name), f"{path}/uevent", None)
