"""How two devices reach each other: the matrix of link types, from the bus tree and the driver's own links.

Words (those of the field): XGMI and other driver links first; PIX one switch, PXB several bridges below one root port,
PHB one host bridge, NODE one NUMA node, SYS across NUMA nodes, "?" where neither NUMA nor the bus tells.
"""

from __future__ import annotations

from typing import NamedTuple

from accelctl.model.device import Device
from accelctl.model.reading import computed
from accelctl.probes.context import Scan
from accelctl.probes.kfd import LINK_TYPES
from accelctl.probes.upstream import bridges

MEANING = {
    "X": "the device itself",
    "XGMI": "direct link between the devices",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe bridges of one root port",
    "PHB": "through one PCIe host bridge",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "across NUMA nodes",
    "?": "not known from what could be read",
}


def describe(scan: Scan) -> None:
    """One machine fact: device order and rows of link words."""
    devices = [device for device in scan.devices.values() if device.kind in ("physical", "partition", "vf")]
    if len(devices) < 2:
        return
    order = [device.id for device in devices]
    rows = _rows([_place(scan, device) for device in devices])
    index = {identity: number for number, identity in enumerate(order)}
    for (one, other), word in _direct(scan, devices).items():
        rows[index[one]][index[other]] = word
    for number, row in enumerate(rows):
        row[number] = "X"
    value = {"order": order, "rows": rows}
    scan.machine["topology"] = computed(
        value, "common bridge on the paths in sysfs, numa_node, KFD io_links of type 11 (XGMI)"
    )


class Place(NamedTuple):
    """Bridges above a device (nearest first), host bridge folder, and NUMA node (from the bus, else from the KFD link
    to a CPU node).
    """

    above: list[str]
    host: str
    node: int | None


def _place(scan: Scan, device: Device) -> Place:
    above = [folder for _, folder in bridges(device)]
    host = (above[-1] if above else device.path).rpartition("/")[0]
    node = device.value("numa/node")
    if not isinstance(node, int) or node < 0:
        node = _kfd_cpu(scan, device)
    return Place(above, host, node)


def _links(scan: Scan, device: Device) -> list[tuple[int | None, int | None]]:
    """(type, node_to) of a device's KFD io_links."""
    found: list[tuple[int | None, int | None]] = []
    base, index = f"kfd/nodes/{device.value('kfd/node')}/io_links", 0
    while f"{base}/{index}/node_to" in scan.machine:
        values = (scan.machine.get(f"{base}/{index}/{name}") for name in ("type", "node_to"))
        found.append(tuple(None if one is None else one.value for one in values))  # type: ignore[arg-type]
        index += 1
    return found


def _kfd_cpu(scan: Scan, device: Device) -> int | None:
    for kind, target in _links(scan, device):
        node = scan.machine.get(f"kfd/nodes/{target}/kind")
        if kind == 2 and node is not None and node.value == "cpu":
            return target
    return None


def _direct(scan: Scan, devices: list[Device]) -> dict[tuple[str, str], str]:
    by_node = {device.value("kfd/node"): device.id for device in devices if device.value("kfd/node") is not None}
    found = {}
    for device in devices:
        for kind, target in _links(scan, device):
            if kind in (1, 11, 12) and target in by_node:
                found[device.id, by_node[target]] = LINK_TYPES[kind] if kind != 11 else "XGMI"
    return found


def _rows(places: list[Place]) -> list[list[str]]:
    """The words by the bus alone. Devices of one host bridge and one node see all others alike, but for those that they
    share a root port with: 64 devices are 4096 pairs.
    """
    below: dict[str, list[int]] = {}  # root port -> devices
    for index, one in enumerate(places):
        if one.above and _is_host_bridge(one.host):
            below.setdefault(one.above[-1], []).append(index)
    far: dict[tuple[str, int | None], list[str]] = {}
    rows = []
    for one in places:
        key = one.host, one.node
        if key not in far:
            far[key] = [_far(one, other) for other in places]
        row = list(far[key])
        for index in below.get(one.above[-1], ()) if one.above else ():
            row[index] = _near(one, places[index])
        rows.append(row)
    return rows


def _is_host_bridge(folder: str) -> bool:
    return folder.rpartition("/")[2].startswith("pci")


def _far(one: Place, other: Place) -> str:
    if one.host == other.host and _is_host_bridge(one.host):
        return "PHB"
    if one.node is None or other.node is None:
        return "?"
    return "NODE" if one.node == other.node else "SYS"


def _near(one: Place, other: Place) -> str:
    """Below one root port: by the bridges up to the first common one."""
    common = next(folder for folder in one.above if folder in other.above)
    extra = one.above.index(common) + other.above.index(common)
    return "PIX" if extra <= 2 else "PXB"
