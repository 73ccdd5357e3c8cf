"""Reports built by hand: every kind of device, finding and absence, without any scan."""

from __future__ import annotations

from typing import Any

from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import IDENTITY, VOLATILE, Reading, absent, computed
from accelctl.model.report import Report

BASE = "sys/devices/pci0000:00"


def read(value: Any, source: str = "sys/x", raw: str | None = None, **rest: Any) -> Reading:
    """A present fact whose raw text is its value unless given."""
    return Reading(value, source, str(value) if raw is None else raw, **rest)


def volatile(value: Any, source: str = "sys/x", **rest: Any) -> Reading:
    return read(value, source, scope=VOLATILE, **rest)


def node(device: Device, name: str, number: str, allowed: bool, kernel: bool | None = None) -> None:
    """A device node with its computed permission and the kernel's answer."""
    base, path = f"nodes/{name}", f"dev/{name}"
    device.facts[f"{base}/path"] = read(f"/{path}", path, f"char {number} 0660 0:44")
    device.facts[f"{base}/number"] = read(number, path)
    device.facts[f"{base}/access/computed"] = computed(allowed, "read and write for uid 1000 by group")
    device.facts[f"{base}/access/needs"] = (
        absent(path, "not_applicable") if allowed else computed("group video (44)", "what would give it")
    )
    device.facts[f"{base}/access/kernel"] = read(allowed if kernel is None else kernel, path, "allowed")


def gpu(number: int, address: str | None = None) -> Device:
    """An AMD card, idle, healthy."""
    address = address or f"0000:{number + 1:02x}:00.0"
    path = f"{BASE}/0000:00:{number + 1:02x}.0/{address}"
    device = Device(address, "physical", path, None, "amdgpu")
    device.facts.update(
        {
            "pci/vendor_id": read("0x1002", f"{path}/vendor"),
            "pci/device_id": read("0x744c", f"{path}/device"),
            "vendor": read("Advanced Micro Devices, Inc. [AMD/ATI]", "usr/share/misc/pci.ids"),
            "name": read("Navi 31 [Radeon RX 7900 XTX]", "usr/share/misc/pci.ids"),
            "driver": read("amdgpu", f"{path}/driver", "../../../bus/pci/drivers/amdgpu"),
            "driver_version": absent(
                "sys/module/amdgpu/version", "not_offered", errno="ENOENT", detail="its version is the kernel's"
            ),
            "link/current_speed_gts": volatile(2.5, f"{path}/current_link_speed", unit="GT/s"),
            "link/current_width": volatile(16, f"{path}/current_link_width", unit="lanes"),
            "link/max_speed_gts": read(16.0, f"{path}/max_link_speed", "16.0 GT/s PCIe", unit="GT/s"),
            "link/max_width": read(16, f"{path}/max_link_width", unit="lanes"),
            "link/narrowest": computed(address, "lowest max_link_speed x max_link_width"),
            "link/narrowest_gbs": computed(31.51, "the same", unit="GB/s"),
            "memory/vram_total_bytes": read(25753026560, f"{path}/mem_info_vram_total", unit="bytes"),
            "memory/vram_used_bytes": volatile(28000256, f"{path}/mem_info_vram_used", unit="bytes"),
            "numa/node": read(-1, f"{path}/numa_node"),
            "sensors/hwmon0/temp1/label": read("edge", f"{path}/hwmon/hwmon0/temp1_label"),
            "sensors/hwmon0/temp1/input_celsius": volatile(41.0, f"{path}/hwmon/hwmon0/temp1_input", unit="celsius"),
            "sensors/hwmon0/power1/average_mw": volatile(18000.0, f"{path}/hwmon/hwmon0/power1_average", unit="mW"),
            "sensors/hwmon0/power1/cap_mw": read(303000.0, f"{path}/hwmon/hwmon0/power1_cap", unit="mW"),
            "identity/unique_id": read(f"{0xA0000000 + number:016x}", f"{path}/unique_id", scope=IDENTITY),
            "vbios/version": read("113-D70201-00", f"{path}/vbios_version"),
        }
    )
    node(device, f"dri/renderD{128 + number}", f"226:{128 + number}", True)
    node(device, f"dri/card{number}", f"226:{number}", False)
    return device


def asleep(device: Device) -> Device:
    """The same device in runtime suspend."""
    device.facts["power/runtime_status"] = volatile("suspended", f"{device.path}/power/runtime_status")
    for key in ("link/current_speed_gts", "link/current_width", "sensors/hwmon0/temp1/input_celsius"):
        old = device.facts[key]
        device.facts[key] = absent(old.source, "asleep", fix="accelctl probe --allow-wake", scope=VOLATILE)
    return device


def finding(identity: str = "PCI-LINK-WIDTH", level: str = "error", device: str | None = None, **rest: Any) -> Finding:
    values: dict[str, Any] = {
        "title": "link is x8 of x16",
        "evidence": (Evidence("sys/x/current_link_width", "8"),),
        "fix": ("reseat the card",),
        **rest,
    }
    return Finding(identity, level, device=device, **values)


def report(*devices: Device, findings: tuple[Finding, ...] = (), live: bool = True, **machine: Any) -> Report:
    """A report with a few machine facts; keyword arguments are further ones, "__" standing for "/"."""
    made = Report("/" if live else "machine.tar.xz", live, devices=list(devices), findings=list(findings))
    made.machine.update(
        {
            "kernel/release": read("6.12.0", "proc/sys/kernel/osrelease"),
            "kernel/parameters": read({"iommu": "pt"}, "proc/cmdline", "iommu=pt"),
            "kernel/command_line": read("ro iommu=pt", "proc/cmdline", scope=IDENTITY),
            "iommu/active": computed(True, "sys/kernel/iommu_groups holds groups"),
            "numa/online": read("0", "sys/devices/system/node/online"),
            "shm/size_bytes": read(67108864, "dev/shm", unit="bytes"),
            "shm/free_bytes": volatile(67000000, "dev/shm", unit="bytes"),
            "log/source": volatile("dev/kmsg", "dev/kmsg"),
        }
    )
    made.machine.update({key.replace("__", "/"): one for key, one in machine.items()})
    made.rules_run, made.looked_for = 12, ["PCI functions"]
    return made


def full_machine() -> Report:
    """Everything at once: four equal cards of which one sleeps and one is lost, a PF with VFs, display, virtual."""
    cards = [gpu(0), gpu(1), asleep(gpu(2)), gpu(3)]
    flex = Device("0000:e1:00.0", "physical", f"{BASE}/0000:e1:00.0", None, "intel_gpu")
    flex.facts.update(
        {
            "pci/vendor_id": read("0x8086"),
            "pci/device_id": read("0x56c0"),
            "name": read("ATS-M [Data Center GPU Flex 170]"),
            "vendor": read("Intel Corporation"),
            "driver": read("i915"),
            "sriov/total_vfs": read(31),
            "sriov/active_vfs": read(2),
            "holders": Reading([], "proc/*/fd", "0 holders", None, None, VOLATILE),
        }
    )
    parts = [Device(f"0000:e1:00.{n}", "vf", f"{BASE}/0000:e1:00.{n}", flex.id, "intel_gpu") for n in (1, 2)]
    for part in parts:
        part.facts["driver"] = read("i915")
    node(parts[0], "dri/renderD140", "226:140", True, kernel=False)
    bmc = Device("0000:05:00.0", "display", f"{BASE}/0000:05:00.0", None, "bmc_display")
    bmc.facts.update({"name": read("ASPEED Graphics Family"), "driver": read("ast")})
    soft = Device("drm:card9", "virtual", "sys/devices/platform/vgem", None, "vgem")
    soft.facts["driver"] = absent("sys/devices/platform/vgem/driver", "no_driver")
    people = [{"pid": 4711, "command": "python3", "user": "someone", "descriptors": 2, "state": "D", "node": "/dev/x"}]
    cards[0].facts["holders"] = Reading(people, "proc/*/fd", "1 holders", None, None, VOLATILE)
    lost = finding(
        "PCI-LOST", "critical", cards[3].id, title="device lost from the bus", consequences=("X-Y: no node",)
    )
    ids = [device.id for device in cards]
    made = report(
        *cards[:1], bmc, *cards[1:], flex, *parts, soft,
        findings=(lost, finding(level="warn", device=cards[1].id), finding("LIM-MEMLOCK", "info", title="64 KiB")),
        topology=computed({"order": ids, "rows": [["X" if a == b else "SYS" for b in ids] for a in ids]}, "bus tree"),
        ordinals__amdgpu__order=computed(ids, "PCI address order"),
        ordinals__amdgpu__visible=computed([ids[2], ids[0]], "order after the masks", scope=VOLATILE),
        ordinals__amdgpu__environment__HIP_VISIBLE_DEVICES=volatile("2,0", "environment: HIP_VISIBLE_DEVICES"),
        processes_not_visible=volatile(41, "proc/*/fd"),
    )  # fmt: skip
    gone = absent("kernel log", "no_permission", fix="sudo dmesg > kernel.log", scope=VOLATILE)
    made.machine["log/source"] = gone
    made.rules_not_run = ["PCI-AER-FATAL", "NV-XID"]
    made.stuck = ["sys/devices/x/gpu_metrics"]
    return made
