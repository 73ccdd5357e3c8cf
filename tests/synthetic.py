"""Made-up machines with any number of accelerators, for speed measurements and scale tests.

Each device is a GPU function behind a root port of its own, laid out as Linux lays out an amdgpu card: about sixty
files and links (identity, link, BARs, power, AER, DRM nodes, hwmon, memory counters). All values are invented.
"""

import os
from pathlib import Path

PORT_FILES = {
    "vendor": "0x8086",
    "device": "0x347a",
    "subsystem_vendor": "0x8086",
    "subsystem_device": "0x0000",
    "class": "0x060400",
    "revision": "0x04",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "numa_node": "0",
    "enable": "1",
    "aer_dev_correctable": "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 0",
    "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
}

FUNCTION_FILES = {
    "vendor": "0x1002",
    "device": "0x744c",
    "subsystem_vendor": "0x1002",
    "subsystem_device": "0x0e3b",
    "class": "0x030000",
    "revision": "0xc8",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "numa_node": "0",
    "local_cpulist": "0-15",
    "enable": "1",
    "power_state": "D0",
    "power/control": "auto",
    "power/runtime_status": "active",
    "power/runtime_active_time": "1000",
    "power/runtime_suspended_time": "0",
    "aer_dev_correctable": "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 0",
    "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    "mem_info_vram_total": "25753026560",
    "mem_info_vram_used": "28000256",
    "mem_info_vis_vram_total": "25753026560",
    "mem_info_gtt_total": "33554432000",
    "gpu_busy_percent": "0",
    "vbios_version": "113-D70201-00",
    "current_compute_partition": "SPX",
    "unique_id": "",
}

HWMON_FILES = {
    "name": "amdgpu",
    "temp1_input": "41000",
    "temp1_label": "edge",
    "power1_average": "18000000",
    "power1_cap": "303000000",
    "fan1_input": "0",
    "in0_input": "750",
    "freq1_input": "500000000",
    "freq1_label": "sclk",
}


def make_machine(root: Path, devices: int) -> Path:
    """Write a root tree with that many GPUs below `root` (which is made) and return it."""
    for folder in ("bus/pci/devices", "bus/pci/drivers/amdgpu", "class/drm", "class/hwmon", "module/amdgpu"):
        (root / "sys" / folder).mkdir(parents=True, exist_ok=True)
    _files(root / "sys/class/drm", {"version": "drm 1.1.0 20060810"})
    _files(root / "sys/module/amdgpu", {"version": "6.10.5", "initstate": "live"})
    _files(
        root / "proc", {"cmdline": "ro quiet", "meminfo": "MemTotal: 263856000 kB", "version": "Linux version 6.12.0"}
    )
    _files(root / "proc/sys/kernel", {"osrelease": "6.12.0"})
    for number in range(devices):
        _device(root, number)
    return root


def _device(root: Path, number: int) -> None:
    domain, bus = divmod(number, 127)
    port_bdf, bdf = f"{domain:04x}:00:{bus % 32:02x}.{bus // 32}", f"{domain:04x}:{bus + 1:02x}:00.0"
    port = root / f"sys/devices/pci{domain:04x}:00/{port_bdf}"
    function = port / bdf
    _files(port, PORT_FILES)
    _files(function, FUNCTION_FILES | {"unique_id": f"{0xA0000000 + number:x}", "resource": _resource(number)})
    _files(function, {"uevent": f"DRIVER=amdgpu\nPCI_ID=1002:744C\nPCI_SLOT_NAME={bdf}"})
    _link(root / "sys/bus/pci/devices" / port_bdf, port)
    _link(root / "sys/bus/pci/devices" / bdf, function)
    _link(function / "driver", root / "sys/bus/pci/drivers/amdgpu")
    _link(function / "subsystem", root / "sys/bus/pci")
    _link(root / "sys/bus/pci/drivers/amdgpu/module", root / "sys/module/amdgpu")
    for name, minor in ((f"card{number}", number), (f"renderD{128 + number}", 128 + number)):
        node = function / "drm" / name
        _files(
            node, {"dev": f"226:{minor}", "uevent": f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor"}
        )
        _link(node / "device", function)
        _link(node / "subsystem", root / "sys/class/drm")
        _link(root / "sys/class/drm" / name, node)
    hwmon = function / "hwmon" / f"hwmon{number}"
    _files(hwmon, HWMON_FILES)
    _link(hwmon / "device", function)
    _link(root / "sys/class/hwmon" / f"hwmon{number}", hwmon)


def _resource(number: int) -> str:
    """Start, end and flags of the regions: a 32 GiB BAR 0, 256 MiB BAR 2, 1 MiB BAR 5; a place of its own each."""
    base = 0x40_0000_0000 + number * 0x10_0000_0000
    regions = {
        0: (base, base + (1 << 35) - 1, 0x14220C),
        2: (base + (1 << 35), base + (1 << 35) + (1 << 28) - 1, 0x14220C),
        5: (0x8000_0000 + (number << 20), 0x8000_0000 + ((number + 1) << 20) - 1, 0x40200),
    }
    return "\n".join("0x{:016x} 0x{:016x} 0x{:016x}".format(*regions.get(i, (0, 0, 0))) for i in range(13))


def _files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")


def _link(link: Path, target: Path) -> None:
    """A relative link, so that the tree can be moved or packed."""
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(target, link.parent))
