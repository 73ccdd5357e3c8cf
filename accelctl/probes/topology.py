"""How two devices reach each other: the matrix of link types, from the bus tree and the driver's own links.

Words (those of the field): XGMI and other driver links first; PIX one switch, PXB several bridges below one root port,
PHB one host bridge, NODE one NUMA node, SYS across NUMA nodes, "?" where neither NUMA nor the bus tells.
"""

from __future__ import annotations

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
    direct = _direct(scan, devices)
    places = [_place(scan, device) for device in devices]
    rows = [
        [_word(i, j, places, direct.get((one.id, other.id))) for j, other in enumerate(devices)]
        for i, one in enumerate(devices)
    ]
    value = {"order": [device.id for device in devices], "rows": rows}
    scan.machine["topology"] = computed(
        value, "common bridge on the paths in sysfs, numa_node, KFD io_links of type 11 (XGMI)"
    )


def _place(scan: Scan, device: Device) -> tuple[list[str], str, int | None]:
    """Bridges above (nearest first), host bridge folder, and NUMA node (from the bus, else from the KFD link to a CPU
    node).
    """
    above = [folder for _, folder in bridges(device)]
    host = (above[-1] if above else device.path).rpartition("/")[0]
    node = device.value("numa/node")
    if not isinstance(node, int) or node < 0:
        node = _kfd_cpu(scan, device)
    return above, host, node


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


def _word(i: int, j: int, places: list[tuple[list[str], str, int | None]], direct: str | None) -> str:
    if i == j:
        return "X"
    if direct is not None:
        return direct
    (above, host, node), (others, other_host, other_node) = places[i], places[j]
    if host == other_host and host.rpartition("/")[2].startswith("pci"):
        common = [folder for folder in above if folder in others]
        if not common:
            return "PHB"
        extra = above.index(common[0]) + others.index(common[0])
        return "PIX" if extra <= 2 else "PXB"
    if node is None or other_node is None:
        return "?"
    return "NODE" if node == other_node else "SYS"
