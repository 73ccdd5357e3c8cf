"""The KFD topology: AMD's compute nodes, their memory banks and the links between them.

Traps held by real files: gpu_id 0 and an empty name are normal for CPU nodes, some topologies have no gpu_id at all, so
a GPU is told by ``simd_count`` > 0; an APU's "VRAM" bank is GTT; type 2 is PCIe, 11 is XGMI
(include/uapi/linux/kfd_ioctl.h, kfd_crat.h).
"""

from __future__ import annotations

import re

from accelctl.model.convert import is_index, whole
from accelctl.model.device import Device
from accelctl.model.reading import IDENTITY, STABLE, Reading, absent, computed
from accelctl.probes import pci
from accelctl.probes.context import Scan

LINK_TYPES = {
    0: "undefined",
    1: "HyperTransport",
    2: "PCIe",
    3: "AMBA",
    4: "MIPI",
    5: "QPI",
    9: "RDMA",
    11: "XGMI",
    12: "GPU on die",
}
TOPOLOGY = "sys/class/kfd/kfd/topology"
_IDENTITY = frozenset({"unique_id", "hive_id"})
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


def read_properties(scan: Scan, path: str) -> dict[str, Reading]:
    """Lines "name number" of a properties file, each a fact with its own line as the raw text."""
    facts = {}
    for line in (scan.root.text(path) or "").splitlines():
        name, _, number = line.strip().partition(" ")
        if _NAME.match(name):
            facts[name] = _property(path, line.strip(), number.strip(), IDENTITY if name in _IDENTITY else STABLE)
    return facts


def _property(path: str, line: str, number: str, scope: str) -> Reading:
    try:
        return Reading(whole(number), path, line, None, None, scope)
    except ValueError:
        return absent(path, "malformed", raw=line, scope=scope)


def find(scan: Scan) -> None:
    """Machine facts ``kfd/nodes/N/...``; each GPU node is given to the device it is."""
    base = scan.root.resolve(TOPOLOGY)
    nodes = [name for name in scan.root.listdir(f"{base}/nodes") if is_index(name)]
    if not nodes:
        return
    scan.machine["kfd/generation_id"] = scan.root.read(f"{base}/generation_id", "int")
    scan.machine["kfd/dev"] = scan.root.read(f"{base.rpartition('/')[0]}/dev")
    for node in sorted(nodes, key=int):
        _node(scan, f"{base}/nodes/{node}", node)


def _node(scan: Scan, folder: str, node: str) -> None:
    key = f"kfd/nodes/{node}"
    properties = read_properties(scan, f"{folder}/properties")
    facts: dict[str, Reading] = {f"{key}/properties/{name}": reading for name, reading in properties.items()}
    facts[f"{key}/gpu_id"] = scan.root.read(f"{folder}/gpu_id", "int", scope=IDENTITY)
    facts[f"{key}/name"] = scan.root.read(f"{folder}/name")
    for group in ("mem_banks", "io_links", "p2p_links"):
        for name in scan.root.listdir(f"{folder}/{group}"):
            if is_index(name):
                entries = read_properties(scan, f"{folder}/{group}/{name}/properties")
                facts.update({f"{key}/{group}/{name}/{entry}": reading for entry, reading in entries.items()})
    # Caches are counted only: a partitioned MI300 has hundreds a node, and no question asked here needs their sizes.
    caches = len(scan.root.listdir(f"{folder}/caches"))
    facts[f"{key}/caches_found"] = Reading(caches, f"{folder}/caches", str(caches))
    is_gpu = (_number(properties, "simd_count") or 0) > 0
    facts[f"{key}/kind"] = computed("gpu" if is_gpu else "cpu", "simd_count > 0")
    scan.machine.update(facts)
    if is_gpu:
        _give(scan, node, properties)


def _number(properties: dict[str, Reading], name: str) -> int | None:
    reading = properties.get(name)
    return reading.value if reading is not None and isinstance(reading.value, int) else None


def address_of(properties: dict[str, Reading]) -> str | None:
    """The PCI address a node names by domain and location_id (bus << 8 | device << 3 | function)."""
    location, domain = _number(properties, "location_id"), _number(properties, "domain") or 0
    if location is None or not 0 <= location < 1 << 16 or not 0 <= domain < 1 << 32:
        return None
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _give(scan: Scan, node: str, properties: dict[str, Reading]) -> None:
    address = address_of(properties)
    minor = _number(properties, "drm_render_minor")
    device = _by_minor(scan, minor) or scan.devices.get(address or "")
    how = "domain and location_id of the node's properties"
    scan.machine[f"kfd/nodes/{node}/device"] = computed(address, how) if address else absent(how, "malformed")
    if device is None:
        return
    device.facts["kfd/node"] = computed(int(node), f"{TOPOLOGY}/nodes/{node}/properties location_id")
    if device.id != address and address in scan.devices and not pci.ADDRESS.match(device.id):
        device.kind, device.parent, device.chip = "partition", address, scan.devices[address].chip
    target = properties.get("gfx_target_version")
    if target is not None:
        device.facts["kfd/gfx_target_version"] = target


def _by_minor(scan: Scan, minor: int | None) -> Device | None:
    """The device that owns a render minor: partitions have their own minor on a platform device."""
    if not minor or minor < 128:
        return None
    return next((device for device in scan.devices.values() if f"drm/renderD{minor}/dev" in device.facts), None)
