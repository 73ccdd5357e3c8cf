"""PCI functions: which are accelerators, and everything the bus knows of them.

Classes 03 (display), 12 (processing accelerator) and 0b40 (co-processor) count, and whatever a chip room names at an
odd class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from accelctl.abi.rooms import Room, Row
from accelctl.model.convert import whole
from accelctl.model.device import Device
from accelctl.model.reading import IDENTITY, STABLE, VOLATILE, Reading, absent, computed
from accelctl.probes import power
from accelctl.probes.context import Field, Scan, read_fields

BUS = "sys/bus/pci/devices"
CLASSES = ("0x03", "0x12", "0x0b40")
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")

_IDS: tuple[tuple[str, str, str], ...] = (
    ("pci/vendor_id", "vendor", "PCI_ID"),
    ("pci/device_id", "device", "PCI_ID"),
    ("pci/class", "class", "PCI_CLASS"),
    ("pci/subsystem_vendor_id", "subsystem_vendor", "PCI_SUBSYS_ID"),
    ("pci/subsystem_device_id", "subsystem_device", "PCI_SUBSYS_ID"),
)
_FIELDS: tuple[Field, ...] = (
    ("pci/revision", "revision", "hex", None, STABLE),
    ("enable", "enable", "int", None, VOLATILE),
    ("boot_vga", "boot_vga", "int", None, STABLE),
    ("driver_override", "driver_override", "text", None, STABLE),
    ("reset_methods", "reset_method", "list", None, STABLE),
    ("numa/node", "numa_node", "int", None, STABLE),
    ("numa/local_cpulist", "local_cpulist", "text", None, STABLE),
    ("numa/local_cpus", "local_cpus", "text", None, STABLE),
    ("power/power_state", "power_state", "text", None, VOLATILE),
    ("power/d3cold_allowed", "d3cold_allowed", "int", None, STABLE),
)
_LINK: tuple[Field, ...] = (
    ("link/current_speed_gts", "current_link_speed", "gts", "GT/s", VOLATILE),
    ("link/current_width", "current_link_width", "lanes", "lanes", VOLATILE),
    ("link/max_speed_gts", "max_link_speed", "gts", "GT/s", STABLE),
    ("link/max_width", "max_link_width", "lanes", "lanes", STABLE),
)


def _from_uevent(scan: Scan, folder: str, name: str, key: str) -> Reading:
    """An id whose own file is missing: old kernels' snapshots often hold only uevent (PCI_ID=1002:744C,
    PCI_CLASS=30000).
    """
    path = f"{folder}/uevent"
    text = scan.root.text(path) or ""
    match = re.search(rf"^{key}=([0-9A-Fa-f]{{1,8}})(?::([0-9A-Fa-f]{{1,8}}))?$", text, re.MULTILINE)
    if match is None:
        return scan.root.read(f"{folder}/{name}", "hex")
    first, second = match.group(1), match.group(2)
    if key == "PCI_CLASS":
        return Reading("0x" + first.lower().zfill(6), path, match.group(0))
    part = first if name.endswith("vendor") else second or ""
    return (
        Reading("0x" + part.lower().zfill(4), path, match.group(0))
        if part
        else absent(path, "malformed", raw=match.group(0))
    )


def read_ids(scan: Scan, folder: str, names: set[str], known: Iterable[Reading] = ()) -> dict[str, Reading]:
    """The identifying registers of a function, each from its file, else from uevent. ``known`` were read before."""
    before = {reading.source: reading for reading in known if reading.present}
    ids = {}
    for key, name, uevent in _IDS:
        path = f"{folder}/{name}"
        if name not in names:
            reading = absent(path, scan.root.why_missing, errno="ENOENT")
        else:
            reading = before.get(path) or scan.root.read(path, "hex")
        ids[key] = reading if reading.present or "uevent" not in names else _from_uevent(scan, folder, name, uevent)
    return ids


def find(scan: Scan) -> None:
    """Enter every accelerator function of the bus into the scan, in address order."""
    for address in scan.root.listdir(BUS):
        if not ADDRESS.match(address):
            continue
        folder = scan.root.resolve(f"{BUS}/{address}")
        scan.functions[address] = folder
        class_ = _quick(scan, folder, "class", "PCI_CLASS")
        vendor = _quick(scan, folder, "vendor", "PCI_ID")
        if class_.value is None and vendor.value is None:
            continue
        if is_accelerator(scan, folder, vendor.value, class_.value):
            scan.add(build(scan, address, folder, (class_, vendor)))


def _quick(scan: Scan, folder: str, name: str, key: str) -> Reading:
    reading = scan.root.read(f"{folder}/{name}", "hex")
    return reading if reading.present else _from_uevent(scan, folder, name, key)


def is_accelerator(scan: Scan, folder: str, vendor: str | None, class_: str | None) -> bool:
    """By class, or by a room that names the function; bridges, network and storage need an exact device row."""
    if class_ is not None and class_.startswith(CLASSES):
        return True
    if vendor is None or vendor not in scan.rooms.vendors:
        return False
    match = scan.rooms.pci(vendor, scan.root.read(f"{folder}/device", "hex").value, class_)
    return match is not None and ("device" in match[1] or "class" in match[1])


def build(scan: Scan, address: str, folder: str, known: Iterable[Reading] = ()) -> Device:
    """One function with all bus-generic facts. Power first: what may be read depends on whether it sleeps. ``known``:
    ids of it that were read before."""
    names = set(scan.root.listdir(folder))
    device = Device(address, "physical", folder)
    facts = device.facts
    facts.update(read_ids(scan, folder, names, known))
    facts["driver"] = scan.root.link(f"{folder}/driver") if "driver" in names else _no_driver(scan, folder)
    facts.update(read_fields(scan.root, folder, (field for field in _FIELDS if field[1].partition("/")[0] in names)))
    if "power" in names:
        power.describe(scan, device)
    facts.update(read_fields(scan.root, folder, _LINK))
    _sriov(scan, device, names)
    _iommu(scan, device, names)
    _bars(scan, device, names)
    _aer(scan, device, names)
    _choose_room(scan, device)
    return device


def _no_driver(scan: Scan, folder: str) -> Reading:
    """No link: nothing is bound, unless the capture is too thin to say so (a full one has uevent, which names
    drivers).
    """
    uevent = scan.root.text(f"{folder}/uevent")
    told = scan.root.why_missing == "not_offered" or (uevent is not None and "DRIVER=" not in uevent)
    return absent(f"{folder}/driver", "no_driver" if told else "not_captured", errno="ENOENT")


def _choose_room(scan: Scan, device: Device) -> None:
    ids = (
        device.value("pci/vendor_id"),
        device.value("pci/device_id"),
        device.value("pci/class"),
        device.value("pci/subsystem_device_id"),
    )
    match: tuple[Room, Row] | None = scan.rooms.pci(*ids)
    room = match[0] if match else scan.rooms.driver(device.value("driver")) or _room_by_proc(scan, device.id)
    if room is None:
        return
    device.chip = room.name
    if device.kind == "physical" and room.kind in ("virtual", "display"):
        device.kind = room.kind
    name = match[1].get("name") if match else None
    if name:
        device.facts["name"] = computed(name, f"{room.name}/chip.toml, {match[1].get('source', '') if match else ''}")


def _room_by_proc(scan: Scan, address: str) -> Room | None:
    """A function whose id files are missing may still be named by its driver's /proc folder."""
    for room in scan.rooms.rooms:
        for row in room.table("proc"):
            folder = str(row.get("path", "")).partition("{bdf}")[0]
            if folder.startswith("proc/") and "{bdf}" in str(row.get("path")) and scan.root.exists(folder + address):
                return room
    return None


def _sriov(scan: Scan, device: Device, names: set[str]) -> None:
    """Which functions are virtual, of which physical one, and what a virtual one cannot have."""
    parent = scan.root.link(f"{device.path}/physfn") if "physfn" in names else _virtual_of(scan, device.id)
    if parent is not None:
        device.kind, device.parent = "vf", parent.value
        device.facts["sriov/physical_function"] = parent
        _no_own_link(device, names)
    if "sriov_totalvfs" in names:
        device.facts["sriov/total_vfs"] = scan.root.read(f"{device.path}/sriov_totalvfs", "int")
        device.facts["sriov/active_vfs"] = scan.root.read(f"{device.path}/sriov_numvfs", "int")
        links = [name for name in names if re.fullmatch(r"virtfn[0-9]{1,9}", name)]
        links.sort(key=lambda name: int(name[6:]))
        functions = [str(scan.root.link(f"{device.path}/{name}").value) for name in links]
        device.facts["sriov/virtual_functions"] = Reading(functions, f"{device.path}/virtfn*", " ".join(functions))


def _virtual_of(scan: Scan, address: str) -> Reading | None:
    """The physical function that lists this one as a VF; it has the lower address, so it is built first."""
    one = scan.virtual.get(address)
    return None if one is None else Reading(one.id, f"{one.path}/virtfn*", address)


def _no_own_link(device: Device, names: set[str]) -> None:
    """A VF shares link and sensors with its physical function; its own link registers are zero (PCIe SR-IOV)."""
    for key, *_ in _LINK:
        reading = device.facts[key]
        if not reading.value:
            detail = "a VF has no link of its own: see its physical function"
            missing = absent(reading.source, "not_applicable", detail=detail, raw=reading.raw, scope=reading.scope)
            device.facts[key] = missing._replace(unit=reading.unit)
    if "hwmon" not in names:
        detail = "not available on a VF: see its physical function"
        device.facts["sensors"] = absent(f"{device.path}/hwmon", "not_applicable", detail=detail)


def _iommu(scan: Scan, device: Device, names: set[str]) -> None:
    if "iommu_group" not in names:
        kind = scan.root.why_missing
        detail = "no IOMMU is translating for this device" if kind == "not_offered" else None
        device.facts["iommu/group"] = absent(f"{device.path}/iommu_group", kind, errno="ENOENT", detail=detail)
        return
    group = scan.root.link(f"{device.path}/iommu_group", lambda target: whole(target.rpartition("/")[2]))
    device.facts["iommu/group"] = group
    base = f"sys/kernel/iommu_groups/{group.value}"
    device.facts["iommu/type"] = scan.root.read(f"{base}/type")
    members = [name for name in scan.root.listdir(f"{base}/devices") if name != device.id]
    device.facts["iommu/shared_with"] = Reading(members, f"{base}/devices", " ".join(members))


_UNUSED = " ".join(["0x0000000000000000"] * 3)
"""What the kernel prints for a BAR that a function has not got: most lines of most functions."""


def _bars(scan: Scan, device: Device, names: set[str]) -> None:
    if "resource" not in names:
        return
    path = f"{device.path}/resource"
    for index, line in enumerate((scan.root.text(path) or "").splitlines()[:6]):
        if line == _UNUSED and f"resource{index}_resize" not in names:
            continue
        words = line.split()
        try:
            start, end, flags = (whole(word, 16) for word in words)
        except ValueError:
            device.facts[f"bars/{index}/size_bytes"] = absent(path, "malformed", raw=line[:80])
            continue
        if flags == 0 and f"resource{index}_resize" not in names:
            continue
        assigned = end > start
        size = end - start + 1 if assigned else 0
        device.facts[f"bars/{index}/size_bytes"] = Reading(size, path, line, "bytes")
        device.facts[f"bars/{index}/start"] = Reading(f"{start:#x}", path, line, None, None, IDENTITY)
        if f"resource{index}_resize" in names:
            _resizable(scan, device, index)


def _resizable(scan: Scan, device: Device, index: int) -> None:
    """resourceN_resize is a mask in hexadecimal: bit n set = 2**(n+20) bytes possible (Documentation/ABI/testing/sysfs-
    bus-pci).
    """
    reading = scan.root.read(f"{device.path}/resource{index}_resize", lambda text: whole(text, 16))
    device.facts[f"bars/{index}/resize_mask"] = (
        reading._replace(value=f"{reading.value:#x}") if reading.present else reading
    )
    if reading.present and 0 < reading.value < 1 << 44:
        size = 1 << (reading.value.bit_length() - 1 + 20)
        device.facts[f"bars/{index}/max_size_bytes"] = Reading(size, reading.source, reading.raw, "bytes")


def parse_aer(text: str) -> dict[str, int]:
    """Lines "Name count"; the TOTAL line need not equal their sum (Documentation/ABI/testing/sysfs-bus-pci-devices-
    aer_stats).
    """
    counts = {}
    for line in text.splitlines():
        if line.strip():
            name, count = line.split()
            counts[name] = whole(count)
    return counts


def _aer(scan: Scan, device: Device, names: set[str]) -> None:
    for kind in ("correctable", "nonfatal", "fatal"):
        if f"aer_dev_{kind}" in names:
            device.facts[f"aer/{kind}"] = scan.root.read(f"{device.path}/aer_dev_{kind}", parse_aer, scope=VOLATILE)
