"""Small healthy machines, one for each way in which an accelerator shows on Linux: what the fuzz tests start from.

They are written in the notation of tests/cases.py. All values are invented; names and formats are the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelctl.abi.rooms import Room, Row, in_tree
from accelctl.hal.root import SysRoot
from tests.cases import machine

Files = dict[str, "str | bytes | None"]

BASE: Files = {
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet iommu=pt amdgpu.ppfeaturemask=0xffffffff",
    "proc/version": "Linux version 6.12.0 (build@host) (gcc 14) #1 SMP",
    "proc/sys/kernel/osrelease": "6.12.0",
    "proc/sys/kernel/tainted": "0",
    "proc/devices": "Character devices:\n  1 mem\n226 drm\n234 kfd\n195 nvidia\n\nBlock devices:\n  8 sd",
    "proc/self/status": "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t44 1000\n"
    "CapEff:\t0000000000000000\nSeccomp:\t0\nNoNewPrivs:\t0\nThreads:\t1",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max locked memory         8388608              8388608              bytes\n"
    "Max open files            1024                 1048576              files",
    "proc/self/cgroup": "0::/user.slice/user-1000.slice",
    "proc/self/mountinfo": "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n23 22 0:5 / /dev rw - devtmpfs udev rw",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"',
    "etc/group": "root:x:0:\nvideo:x:44:someone\nrender:x:105:",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsomeone:x:1000:1000::/home/someone:/bin/sh",
    "sys/class/dmi/id/sys_vendor": "Supermicro",
    "sys/class/dmi/id/product_name": "AS-8125GS",
    "sys/devices/system/cpu/online": "0-63",
    "sys/devices/system/node/online": "0-1",
    "sys/devices/system/node/node0/cpulist": "0-31",
    "sys/devices/system/node/node0/distance": "10 32",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       131928064 kB\nNode 0 MemFree: 1 kB",
    "sys/devices/system/node/node1/cpulist": "32-63",
    "sys/devices/system/node/node1/distance": "32 10",
    "sys/kernel/security/lockdown": "[none] integrity confidentiality",
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\1",
    "sys/class/iommu/dmar0": None,
    "lib/modules/6.12.0/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.xz": "",
    "lib/modules/6.12.0/updates/dkms/nvidia.ko": "",
    "lib/modules/6.11.0/updates/dkms/habanalabs.ko": "",
    "lib/firmware/amdgpu/vega10_sos.bin": "",
    "usr/lib/x86_64-linux-gnu/libcuda.so.550.107.02": "",
    "opt/rocm/lib/libamdhip64.so.6": "",
    "var/lib/dkms/nvidia/550.107.02/source": "",
    "usr/share/misc/pci.ids": "1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t744c  Navi 31\n\t\t1002 0e3b  Card\n"
    "8086  Intel Corporation\n\t56a0  DG2 [Arc A770]\nC 03  Display controller",
}
"""What every seed has of the machine around its accelerators. Its own pci.ids keeps that of this machine out."""

LOG = [
    "Linux version 6.12.0 (build@host)",
    "pci 0000:03:00.0: [1002:744c] type 00 class 0x030000 PCIe Endpoint",
    "pcieport 0000:00:01.0: PCI bridge to [bus 02-04]",
    "NVRM: Xid (PCI:0000:41:00): 31, pid=1234, name=python, Ch 00000010, MMU Fault",
    "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:03:00.0",
    "INFO: task python:4242 blocked for more than 120 seconds.",
]

LINK = {
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
}
_AER = {
    "aer_dev_correctable": "RxErr 0\nBadTLP 0\nTOTAL_ERR_COR 0",
    "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
}
_RESOURCE = "\n".join(
    f"0x{start:016x} 0x{end:016x} 0x{flags:016x}"
    for start, end, flags in [(0x4000000000, 0x43FFFFFFFF, 0x14220C), (0, 0, 0), (0x80000000, 0x8FFFFFFF, 0x40200)]
)
SAMPLES: dict[str, str | bytes] = {
    "int": "1234", "text": "words of a driver", "bool": "1", "percent": "50", "milli": "41000", "list_int": "1 2 3",
    "dpm": "0: 500Mhz *\n1: 1000Mhz", "gpu_metrics": b"\x10\x01\x01\x03" + bytes(200),
}  # fmt: skip


def function(address: str, vendor: str, device: str, class_: str = "0x030000", driver: str | None = None) -> Files:
    """All generic files of a PCI function."""
    plain = {
        "vendor": vendor, "device": device, "class": class_, "revision": "0xc8", "subsystem_vendor": vendor,
        "subsystem_device": "0x0e3b", "numa_node": "0", "local_cpulist": "0-31", "enable": "1", "power_state": "D0",
        "boot_vga": "0", "reset_method": "flr bus", "d3cold_allowed": "1", "resource": _RESOURCE,
        "resource0_resize": "0000000000003f00", "driver_override": "(null)", "power/control": "auto",
        "power/runtime_status": "active", "power/runtime_active_time": "1000", "config": "\x02\x10",
        "uevent": f"DRIVER={driver}\nPCI_CLASS={class_[2:]}\nPCI_ID={vendor[2:].upper()}:{device[2:].upper()}",
        "hwmon/hwmon3/name": "sensor", "hwmon/hwmon3/temp1_input": "41000", "hwmon/hwmon3/temp1_crit": "100000",
        "hwmon/hwmon3/temp1_label": "edge", "hwmon/hwmon3/power1_average": "18000000", "hwmon/hwmon3/fan1_input": "0",
        "hwmon/hwmon3/in0_input": "750", "hwmon/hwmon3/freq1_input": "500000000", "hwmon/hwmon3/fan1_fault": "0",
        **LINK, **_AER,
    }  # fmt: skip
    return {f"$D({address})/{name}": text for name, text in plain.items()}


def port(address: str) -> Files:
    """A root port."""
    files = {
        "vendor": "0x8086",
        "device": "0x347a",
        "class": "0x060400",
        **LINK,
        **_AER,
        "aer_rootport_total_err_cor": "0",
    }
    return {f"$D({address})/{name}": text for name, text in files.items()}


def sample(row: Row) -> str | bytes:
    """Text that a row's file may hold."""
    if row.get("conv") != "kv":
        return SAMPLES.get(row.get("conv", "text"), "100")
    fields = [str(field["name"]) for field in row.get("fields", ())] or ["A name", "other"]
    return "\n".join(f"{name}: {number}" for number, name in enumerate(fields))


def of_room(room: Room, address: str) -> tuple[Files, dict[str, Any]]:
    """Files that a room's rows name, with their stars as 0, and its nodes."""
    files: Files = {f"$D({address})/{row['path'].replace('*', '0')}": sample(row) for row in room.table("attr")}
    for row in room.table("proc"):
        files[row["path"].replace("{bdf}", address).replace("{index}", "0")] = sample(row)
    for row in room.table("module"):
        files[f"sys/module/{row['name']}/initstate"] = "live"
        files[row.get("version_file", f"sys/module/{row['name']}/version")] = "550.54.14"
    for row in room.table("version"):
        files[row["file"]] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  date\nVersion=24.1.0\n6.2.4"
    for row in room.table("library"):
        files[f"usr/lib/x86_64-linux-gnu/{row['name'].replace('*', '')}"] = ""
    nodes: dict[str, Any] = {}
    for row in room.table("node"):
        path = row["glob"].replace("[0-9]*", "0").replace("*", "0")
        nodes[path] = {
            "mode": "0660",
            "uid": 0,
            "gid": 105,
            "major": row.get("major", 240),
            "minor": 0,
            "open": "EACCES",
        }
    return files, nodes


def minor(address: str, name: str, number: int) -> tuple[Files, dict[str, str], dict[str, Any]]:
    """A DRM minor of a function: files, links, node."""
    base = f"$D({address})/drm/{name}"
    files: Files = {f"{base}/dev": f"226:{number}", f"{base}/uevent": f"MAJOR=226\nMINOR={number}\nDEVNAME=dri/{name}"}
    links = {f"{base}/device": "../..", f"sys/class/drm/{name}": f"../../bus/pci/devices/{address}/drm/{name}"}
    return files, links, {f"dev/dri/{name}": {"gid": 105, "major": 226, "minor": number, "open": "EACCES"}}


def rooms() -> dict[str, Room]:
    return {room.name: room for room in in_tree()}


class Plan:
    """What is collected for one machine."""

    def __init__(self) -> None:
        self.files: Files = dict(BASE)
        self.links: dict[str, str] = {}
        self.nodes: dict[str, Any] = {"dev/kmsg": {"mode": "0600", "major": 1, "minor": 11}}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.full: set[str] = set()

    def gpu(self, chip: str, address: str, ids: tuple[str, str, str], driver: str, above: tuple[str, ...] = ()) -> None:
        """A PCI function with its driver and IOMMU group; the first one of a room has all files of the room's rows."""
        self.parents[address] = above
        for bridge in above:
            self.files.update(port(bridge))
        self.files.update(function(address, *ids, driver))
        if chip not in self.full:
            self.full.add(chip)
            files, nodes = of_room(rooms()[chip], address)
            self.files.update(files)
            self.nodes.update(nodes)
        group = int(address[5:7], 16)
        self.links[f"$D({address})/driver"] = f"/sys/bus/pci/drivers/{driver}"
        self.links[f"sys/bus/pci/drivers/{driver}/module"] = f"/sys/module/{driver}"
        self.links[f"$D({address})/iommu_group"] = f"/sys/kernel/iommu_groups/{group}"
        self.links[f"sys/kernel/iommu_groups/{group}/devices/{address}"] = f"/sys/bus/pci/devices/{address}"
        self.files[f"sys/kernel/iommu_groups/{group}/type"] = "DMA-FQ"
        self.files[f"sys/module/{driver}/initstate"] = "live"

    def drm(self, address: str, *minors: tuple[str, int]) -> None:
        for name, number in minors:
            files, links, nodes = minor(address, name, number)
            self.files.update(files)
            self.links.update(links)
            self.nodes.update(nodes)

    def build(self, environ: Mapping[str, str] | None = None, log: Sequence[str] = ()) -> SysRoot:
        links = {path: target for path, target in self.links.items() if path not in self.files}
        process = {"uid": 1000, "gid": 1000, "groups": (44, 1000)}
        return machine(
            files=self.files, links=links, nodes=self.nodes, process=process, dmesg=[*LOG, *log], environ=environ,
            parents=self.parents,
        )  # fmt: skip


AMD = ("0x1002", "0x744c", "0x030000")


def _kfd(plan: Plan, addresses: list[str]) -> None:
    base = "sys/devices/virtual/kfd/kfd/topology"
    plan.links["sys/class/kfd/kfd"] = "../../devices/virtual/kfd/kfd"
    plan.files |= {
        f"{base}/generation_id": "2", f"{base}/nodes/0/gpu_id": "0", f"{base}/nodes/0/name": "",
        f"{base}/nodes/0/properties": "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0",
        f"{base}/nodes/0/mem_banks/0/properties": "heap_type 0\nsize_in_bytes 5",
        "sys/devices/virtual/kfd/kfd/dev": "234:0",
    }  # fmt: skip
    for number, address in enumerate(addresses, 1):
        node, bus = f"{base}/nodes/{number}", int(address[5:7], 16)
        plan.files |= {
            f"{node}/gpu_id": f"{1000 + number}", f"{node}/name": "gfx1100", f"{node}/caches/0/properties": "level 1",
            f"{node}/properties": f"cpu_cores_count 0\nsimd_count 192\nlocation_id {bus << 8}\ndomain 0\n"
            f"drm_render_minor {127 + number}\nunique_id 99\ngfx_target_version 110000",
            f"{node}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 1234\nflags 0",
            f"{node}/io_links/0/properties": f"type 2\nnode_from {number}\nnode_to 0\nweight 20",
            f"{node}/io_links/1/properties": f"type 11\nnode_from {number}\nnode_to {number % len(addresses) + 1}",
        }  # fmt: skip


def amdgpu() -> SysRoot:
    """Two functions with DRM, KFD, XGMI; one partition on a platform device."""
    plan = Plan()
    for number, address in enumerate(("0000:03:00.0", "0000:04:00.0")):
        plan.gpu("amdgpu", address, AMD, "amdgpu", ("0000:00:01.0", "0000:02:00.0") if number else ("0000:00:02.0",))
        plan.drm(address, (f"card{number}", number), (f"renderD{128 + number}", 128 + number))
    _kfd(plan, ["0000:03:00.0", "0000:04:00.0"])
    base = "sys/devices/platform/amdgpu_xcp_0"
    plan.files |= {f"{base}/drm/renderD130/dev": "226:130", f"{base}/drm/renderD130/uevent": "DEVNAME=dri/renderD130"}
    plan.links |= {
        f"{base}/subsystem": "../../../bus/platform", f"{base}/drm/renderD130/device": "../..",
        "sys/class/drm/renderD130": f"/{base}/drm/renderD130",
        f"{base}/driver": "../../../bus/platform/drivers/amdgpu_xcp",
    }  # fmt: skip
    return plan.build({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"})


def xe() -> SysRoot:
    """A card with tiles behind a switch of its own, and two virtual functions."""
    plan = Plan()
    above = ("0000:00:01.0", "0000:01:00.0", "0000:02:01.0")
    plan.gpu("intel_gpu", "0000:03:00.0", ("0x8086", "0x56a0", "0x038000"), "xe", above)
    plan.drm("0000:03:00.0", ("card0", 0), ("renderD128", 128))
    for number in (1, 2):
        address = f"0000:03:00.{number}"
        plan.files.update(
            {key: one for key, one in function(address, "0x8086", "0x56a0").items() if "hwmon" not in key}
        )
        plan.parents[address] = above
        plan.links[f"$D({address})/driver"] = "/sys/bus/pci/drivers/xe"
        plan.links[f"$D({address})/physfn"] = "../0000:03:00.0"
        plan.links[f"$D(0000:03:00.0)/virtfn{number - 1}"] = f"../{address}"
    plan.files |= {"$D(0000:03:00.0)/sriov_totalvfs": "7", "$D(0000:03:00.0)/sriov_numvfs": "2"}
    return plan.build({"ZE_AFFINITY_MASK": "0.0"})


def nvidia() -> SysRoot:
    """A vendor driver that speaks through /proc, with nodes of its own and a library of another version."""
    plan = Plan()
    for address in ("0000:41:00.0", "0000:42:00.0"):
        plan.gpu("nvidia", address, ("0x10de", "0x2330", "0x030200"), "nvidia", ("0000:40:01.0",))
    plan.files["proc/driver/nvidia/gpus/0000:41:00.0/information"] = (
        "Model: \t\t H100\nIRQ:   \t\t 99\nDevice Minor: \t 0"
    )
    plan.links["usr/lib/x86_64-linux-gnu/libcuda.so.1"] = "libcuda.so.550.107.02"
    for path in ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl"):
        plan.nodes[path] = {
            "mode": "0666",
            "major": 195,
            "minor": int(path[-1]) if path[-1].isdigit() else 255,
            "open": None,
        }
    return plan.build({"CUDA_VISIBLE_DEVICES": "1,GPU-1234"})


def virtio() -> SysRoot:
    """The minor's parent is a virtio device, whose parent is the function."""
    plan = Plan()
    plan.gpu("virtio_gpu", "0000:00:05.0", ("0x1af4", "0x1050", "0x038000"), "virtio-pci")
    base = "$D(0000:00:05.0)/virtio2"
    plan.files |= {f"{base}/drm/card0/dev": "226:0", f"{base}/drm/card0/uevent": "DEVNAME=dri/card0"}
    plan.links |= {
        f"{base}/drm/card0/device": "../..", f"{base}/driver": "/sys/bus/virtio/drivers/virtio_gpu",
        "sys/class/drm/card0": "/sys/bus/pci/devices/0000:00:05.0/virtio2/drm/card0",
    }  # fmt: skip
    return plan.build()


def software() -> SysRoot:
    """vgem and vkms without a bus, a SoC's GPU and NPU on the platform bus."""
    plan = Plan()
    for name, where, card in (
        ("vgem", "sys/devices/platform/vgem", "card0"), ("vkms", "sys/devices/faux/vkms", "card1"),
        ("panthor", "sys/devices/platform/fd800000.gpu", "renderD128"),
        ("rocket", "sys/devices/platform/npu", "renderD129"),
    ):  # fmt: skip
        plan.files |= {
            f"{where}/drm/{card}/dev": f"226:{card[-1]}",
            f"{where}/drm/{card}/uevent": f"DEVNAME=dri/{card}",
        }
        plan.links |= {f"{where}/drm/{card}/device": "../..", f"sys/class/drm/{card}": f"/{where}/drm/{card}"}
        plan.links |= {
            f"{where}/subsystem": "/sys/bus/platform",
            f"{where}/driver": f"/sys/bus/platform/drivers/{name}",
        }
        plan.files[f"{where}/power/runtime_status"] = "suspended"
    return plan.build()


def class_folders() -> SysRoot:
    """Drivers without DRM: class folders joined by link, by a file with the address, or by nothing."""
    plan = Plan()
    plan.gpu("tenstorrent", "0000:0a:00.0", ("0x1e52", "0xb140", "0x120000"), "tenstorrent")
    plan.gpu("habanalabs", "0000:0b:00.0", ("0x1da3", "0x1020", "0x120000"), "habanalabs")
    plan.gpu("neuron", "0000:0c:00.0", ("0x1d0f", "0x7364", "0x120000"), "neuron")
    folders = {
        "tenstorrent/tenstorrent!0": "0a",
        "habanalabs/hl0": "0b",
        "neuron_device/neuron0": "0c",
        "accel/accel0": "0b",
    }
    for entry, bus in folders.items():
        base = f"sys/devices/virtual/{entry}"
        plan.files |= {f"{base}/dev": f"261:{(bus[-1:].upper() == 'B' and 1) or 0}", f"{base}/uevent": "DEVNAME=x/y"}
        plan.links |= {f"{base}/device": f"/sys/bus/pci/devices/0000:{bus}:00.0", f"sys/class/{entry}": f"/{base}"}
    plan.files["sys/devices/virtual/habanalabs/hl0/pci_addr"] = "0000:0b:00.0"
    plan.files["proc/driver/tenstorrent/0/pids"] = "12 34"
    return plan.build()


def crowd() -> SysRoot:
    """Four GPUs below two switches on two NUMA nodes, one group with strangers in it, one function without a driver."""
    plan = Plan()
    for number in range(4):
        switch = ("0000:00:01.0", "0000:01:00.0") if number < 2 else ("0000:80:01.0", "0000:81:00.0")
        address = f"0000:{0x20 + number:02x}:00.0"
        plan.gpu(
            "amdgpu",
            address,
            ("0x1002", "0x740f", "0x120000"),
            "amdgpu",
            (*switch, f"0000:{switch[1][5:7]}:0{number}.0"),
        )
        plan.files[f"$D({address})/numa_node"] = str(number // 2)
    _kfd(plan, [f"0000:{0x20 + number:02x}:00.0" for number in range(4)])
    plan.links["sys/kernel/iommu_groups/32/devices/0000:99:00.0"] = "/nowhere"
    del plan.links["$D(0000:23:00.0)/driver"]
    return plan.build()


def ailing() -> SysRoot:
    """Nearly everything that can be wrong with drivers: unbound, held by another, no firmware, library too new."""
    plan = Plan()
    for number, (chip, ids, driver) in enumerate((
        ("nvidia", ("0x10de", "0x2330", "0x030200"), "nouveau"), ("amdgpu", AMD, "amdgpu"), ("amdgpu", AMD, "amdgpu"),
        ("habanalabs", ("0x1da3", "0x1020", "0x120000"), "vfio-pci"),
    )):  # fmt: skip
        address = f"0000:{0x51 + number:02x}:00.0"
        plan.gpu(chip, address, ids, driver, ("0000:50:01.0",) if number < 2 else ())
        if driver == "amdgpu":
            del plan.links[f"$D({address})/driver"]
    plan.files["sys/module/nvidia/version"] = "550.54.14"
    plan.links["usr/lib/x86_64-linux-gnu/libcuda.so.1"] = "libcuda.so.560.28.03"
    plan.files["proc/cmdline"] = "ro nomodeset module_blacklist=foo"
    log = [
        "amdgpu 0000:52:00.0: Direct firmware load for amdgpu/vega10_sos.bin failed with error -2",
        "amdgpu 0000:52:00.0: amdgpu: Fatal error during GPU init",
        "amdgpu: probe of 0000:52:00.0 failed with error -2",
        "amdgpu 0000:53:00.0: probe with driver amdgpu failed with error -22", "Loading of unsigned module is rejected",
        "amdgpu 0000:53:00.0: Direct firmware load for amdgpu/none.bin failed with error -2",
        "pci 0000:52:00.0: BAR 0: no space for [mem size 0x10000000 64bit pref]",
        "libamdhip64.so.6: cannot open shared object file: No such file or directory",
        "INFO: task python:77 blocked for more than 120 seconds.", " amdgpu_device_init+0x1/0x2 [amdgpu]",
        "NVRM: API mismatch: the client has the version 560.28.03, but",
        "NVRM: this kernel module has the version 550.54.14.",
    ]  # fmt: skip
    return plan.build(log=log)


def container() -> SysRoot:
    """A container that was given one of two cards; version 1 cgroup list; a capture that calls itself complete."""
    plan = Plan()
    plan.gpu("amdgpu", "0000:03:00.0", AMD, "amdgpu")
    plan.drm("0000:03:00.0", ("card0", 0), ("renderD128", 128))
    del plan.nodes["dev/dri/card0"]
    plan.files |= {
        "run/.containerenv": "", "proc/self/cgroup": "5:devices:/docker/0123456789abcdef\n0::/",
        "sys/fs/cgroup/devices/devices.list": "c 226:128 r\nc 1:* rwm\na *:* m", "proc/self/uid_map": "0 100000 65536",
    }  # fmt: skip
    return plan.build({"container": "podman", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def _of_every_room(name: str) -> Callable[[], SysRoot]:
    def build() -> SysRoot:
        plan, room = Plan(), rooms()[name]
        driver = next((row["name"] for row in room.table("module") if row.get("role") == "kernel"), name)
        row = next(iter(room.table("pci")), {"vendor": "0x1234"})
        ids = (row["vendor"], row.get("device", "0x0001"), row.get("class", "0x12").ljust(8, "0"))
        plan.gpu(name, "0000:07:00.0", ids, driver, ("0000:00:03.0",))
        for table in room.table("sysclass"):
            entry = table.get("entry", "x0").replace("[0-9]*", "0").replace("*", "0")
            plan.files[f"{table['dir']}/{entry}/dev"] = "240:0"
            plan.files[f"{table['dir']}/{entry}/{table.get('bdf_file', 'uevent')}"] = "0000:07:00.0"
            if table.get("link"):
                plan.links[f"{table['dir']}/{entry}/{table['link']}"] = "/sys/bus/pci/devices/0000:07:00.0"
        return plan.build(dict.fromkeys(room.visible_env, "0,1"))

    return build


def empty() -> SysRoot:
    """Nothing at all."""
    return Plan().build()


FAMILIES: dict[str, Callable[[], SysRoot]] = {
    one.__name__: one for one in (amdgpu, xe, nvidia, virtio, software, class_folders, crowd, ailing, container, empty)
}


def every_room() -> dict[str, Callable[[], SysRoot]]:
    """A machine for each chip room in the tree, made from its own rows."""
    return {name: _of_every_room(name) for name in rooms()}
