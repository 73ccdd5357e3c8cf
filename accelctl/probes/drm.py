"""DRM and accel minors, joined to the device they belong to.

A minor's ``device`` link names its parent: a PCI function, a virtio device whose own parent is the PCI function (two
levels), or a platform device. Numbers are no identity: the tenth card is card10, and majors are 226 (DRM) and 261
(accel).
"""

from __future__ import annotations

import re

from accelctl.hal.root import SysRoot
from accelctl.model.convert import is_index
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.probes import pci, power
from accelctl.probes.context import Scan

_MINOR = {
    "sys/class/drm": re.compile(r"(card|renderD|controlD)[0-9]{1,9}\Z"),
    "sys/class/accel": re.compile(r"(accel|accel_controlD)[0-9]{1,9}\Z"),
}
_DEVNAME = re.compile(r"^DEVNAME=([\w.!:+-]+(?:/[\w.!:+-]+)*)\s*$", re.MULTILINE | re.ASCII)
_VIRTIO = re.compile(r"virtio[0-9]{1,9}\Z")


def find(scan: Scan) -> None:
    """Give every minor to its device, making devices for parents that are no PCI accelerators."""
    for folder, pattern in _MINOR.items():
        for name in scan.root.listdir(folder):
            if pattern.match(name):
                _join(scan, f"{folder}/{name}", name)


def _join(scan: Scan, link: str, name: str) -> None:
    path = scan.root.resolve(link)
    parent = hardware(scan.root, path)
    device = scan.owner(parent) or _make(scan, parent, name)
    add_minor(scan, device, path, name)


def hardware(root: SysRoot, path: str) -> str:
    """The folder of the hardware: ``device`` of the minor, one level up for virtio."""
    link = root.resolve(f"{path}/device")
    parent = link if link != f"{path}/device" else path.rpartition("/drm/")[0] or path
    if _VIRTIO.match(parent.rpartition("/")[2]):
        return parent.rpartition("/")[0]
    return parent


def _make(scan: Scan, parent: str, minor: str) -> Device:
    name = parent.rpartition("/")[2]
    if pci.ADDRESS.match(name):
        return scan.add(pci.build(scan, name, parent))
    subsystem = scan.root.link(f"{parent}/subsystem").value
    device = Device(_named(subsystem, name, minor), "physical" if subsystem == "platform" else "virtual", parent)
    device.facts["driver"] = scan.root.link(f"{parent}/driver")
    if scan.root.exists(f"{parent}/power/runtime_status"):
        power.describe(scan, device)
    room = scan.rooms.driver(device.value("driver")) or scan.rooms.driver(_bare(name))
    if room is not None:
        device.chip = room.name
        if room.kind in ("virtual", "display"):
            device.kind = room.kind
    return scan.add(device)


def identity(root: SysRoot, path: str) -> str:
    """The id of the device that a minor's folder belongs to, without a scan: for nodes that came later."""
    parent = hardware(root, path)
    name = parent.rpartition("/")[2]
    if pci.ADDRESS.match(name):
        return name
    return _named(root.link(f"{parent}/subsystem").value, name, path.rpartition("/")[2])


def _named(subsystem: str | None, name: str, minor: str) -> str:
    return f"{subsystem}:{name}" if subsystem else f"drm:{minor}"


def _bare(name: str) -> str:
    """Driver name of a driverless software device: ``vgem``, ``vkms``, ``amdgpu_xcp_3`` -> amdgpu_xcp."""
    return re.sub(r"[._]?\d*$", "", name)


def add_minor(scan: Scan, device: Device, path: str, name: str) -> None:
    """Facts of one minor: its number as read, the path of its node, and the virtio driver between where there is
    one.
    """
    dev = scan.root.read(f"{path}/dev")
    base = f"drm/{name}"
    device.facts[f"{base}/dev"] = dev
    major, _, minor = str(dev.value or "").partition(":")
    if is_index(major) and is_index(minor):
        device.facts[f"{base}/major"] = dev._replace(value=int(major))
        device.facts[f"{base}/minor"] = dev._replace(value=int(minor))
    device.facts[f"{base}/node"] = Reading(node_path(scan.root, path, name), f"{path}/uevent", None)
    middle = scan.root.link(f"{path}/device/driver")
    if middle.present and middle.value != device.value("driver"):
        device.facts["driver_of_minor"] = middle


def node_path(root: SysRoot, path: str, name: str) -> str:
    """Where the node stands: DEVNAME of uevent, else the kernel's naming rule."""
    match = _DEVNAME.search(root.text(f"{path}/uevent") or "")
    if match and ".." not in match.group(1).split("/"):
        return "dev/" + match.group(1)
    return f"dev/accel/{name}" if name.startswith("accel") else f"dev/dri/{name}"
