"""A machine full of names, addresses and serial numbers, none of which may leave it."""

from __future__ import annotations

from typing import Any

from accelctl.hal.root import SysRoot
from tests.cases import function, machine

D, N = "$D(0000:41:00.0)", "$D(0000:81:00.0)"

UUID = "5ec12e7a-1111-2222-3333-444455556666"
DISK = "deadbeef-1234-5678-9abc-def012345678"
BOX = "0c0ffee5ec12e7a5ec12e7a5ec12e7a5"
UNIQUE = "5ec12e7a55e71a11"
SECRETS = [
    UNIQUE, str(int(UNIQUE, 16)), "SN-4711-SECRET", "PCB0815SECRET", UUID, DISK, BOX, "secrethost", "alicia",
    "bobsgroup", "rosebud", "aa:bb:cc:dd:ee:77", "10.20.30.40", "fe80::5ec1:2e7a:1:2", "nfs-server.example.com",
    "pod5ec12e7a", "topsecretjob", "EDIDSECRET", "VPDSECRET", "DSNSECRET",
]  # fmt: skip
"""Planted below; each must be gone from the archive, whatever its case."""

FILES: dict[str, str | bytes | None] = {
    **function("0000:41:00.0", "0x1002", "0x740f", "0x038000", current_link_width="16", numa_node="0"),
    **function("0000:81:00.0", "0x10de", "0x20b5", "0x030200"),
    f"{D}/unique_id": UNIQUE,
    f"{D}/serial_number": "SN-4711-SECRET",
    f"{D}/fru_id": "PCB0815SECRET",
    f"{D}/product_name": "Instinct MI210",
    f"{D}/mem_info_vram_total": "68702699520",
    f"{D}/uevent": "DRIVER=amdgpu\nPCI_ID=1002:740F\nASSET_OWNER=alicia\nPCI_SLOT_NAME=0000:41:00.0",
    f"{D}/config": bytes(range(64)) + b"DSNSECRET" * 20,
    f"{D}/edid": b"EDIDSECRET",
    f"{D}/vpd": b"VPDSECRET",
    f"{D}/drm/renderD128/dev": "226:128",
    f"{D}/drm/renderD128/uevent": "MAJOR=226\nMINOR=128\nDEVNAME=dri/renderD128",
    "sys/devices/virtual/kfd/kfd/topology/generation_id": "1",
    "sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id": "51201",
    "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties": "simd_count 416\nlocation_id 16640\ndomain 0\n"
    f"drm_render_minor 128\nunique_id {int(UNIQUE, 16)}\nvendor_id 4098",
    "proc/driver/nvidia/gpus/0000:81:00.0/information": "Model: \t\t NVIDIA A100\n"
    f"GPU UUID: \t GPU-{UUID}\nDevice Minor: \t 0",
    "proc/sys/kernel/osrelease": "6.12.0",
    "proc/version": "Linux version 6.12.0 (alicia@secrethost) (gcc 12) #1 SMP",
    "proc/cmdline": f"BOOT_IMAGE=/vmlinuz root=UUID={DISK} iommu=pt secret.pw=rosebud",
    "proc/self/cgroup": f"0::/kubepods.slice/kubepods-pod5ec12e7a.slice/docker-{BOX}.scope",
    "proc/self/status": "Name:\ttopsecretjob\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n"
    "Groups:\t44 1000\nCapEff:\t0000000000000000\nThreads:\t1",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         8388608              8388608              bytes     ",
    "proc/self/mountinfo": "22 1 0:20 / /proc rw - proc proc rw\n"
    "99 1 0:50 / /home/alicia rw - nfs nfs-server.example.com:/home rw,addr=10.20.30.40\n"
    "23 1 0:21 / /dev/shm rw - tmpfs tmpfs rw",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalicia:x:1000:1000:Alicia Secret:/home/alicia:/bin/sh",
    "etc/group": "root:x:0:\nvideo:x:44:alicia\nbobsgroup:x:1000:alicia\nother:x:77:alicia",
    "etc/os-release": 'PRETTY_NAME="Debian 12"\nMACHINE_OWNER=alicia',
}
LINKS: dict[str, str] = {
    f"{D}/driver": "../../../bus/pci/drivers/amdgpu",
    f"{N}/driver": "../../../bus/pci/drivers/nvidia",
    "sys/bus/pci/drivers/amdgpu/module": "../../../../module/amdgpu",
    "sys/class/drm/renderD128": "../../devices/pci0000:41/0000:41:00.0/drm/renderD128",
    f"{D}/drm/renderD128/device": "../../../0000:41:00.0",
    "sys/class/kfd/kfd": "../../devices/virtual/kfd/kfd",
    "usr/lib/x86_64-linux-gnu/libamdhip64.so.6": "/home/alicia/libamdhip64.so.6.1",
}
NODES: dict[str, dict[str, Any]] = {
    "dev/dri/renderD128": {"mode": 0o660, "gid": 44, "major": 226, "minor": 128, "open": None, "acl": None},
    "dev/kfd": {"mode": 0o660, "gid": 44, "major": 509, "acl": "u::rw-,u:1234:rw-,g::rw-,m::rw-,o::---"},
}
ENVIRON: dict[str, str] = {
    "HIP_VISIBLE_DEVICES": "0",
    "CUDA_VISIBLE_DEVICES": f"GPU-{UUID}",
    "HOME": "/home/alicia",
    "SECRET_TOKEN": "rosebud",
    "KUBERNETES_SERVICE_HOST": "10.20.30.40",
}
LOG: list[str | tuple[float, str]] = [
    f"Command line: BOOT_IMAGE=/vmlinuz root=UUID={DISK} secret.pw=rosebud",
    "amdgpu 0000:41:00.0: amdgpu: serial number: SN-4711-SECRET, unique_id 5ec12e7a55e71a11",
    "e1000 0000:00:19.0 eth0: MAC aa:bb:cc:dd:ee:77 firmware",
    "NFS: server 10.20.30.40 fe80::5ec1:2e7a:1:2 module of secrethost for alicia in /home/alicia/x",
    "NVRM: Xid (PCI:0000:81:00): 79, pid=4711, name=topsecretjob, GPU has fallen off the bus.",
    "systemd[1]: Hostname set to <secrethost>.",
    "random: crng init done rosebud",
]


def secret_machine() -> SysRoot:
    """An AMD and an NVIDIA card in it, seen by an ordinary user in a container."""
    return machine(
        files=FILES,
        links=LINKS,
        denied={f"{D}/power_dpm_force_performance_level": "EACCES"},
        nodes=NODES,
        process={"uid": 1000, "gid": 1000, "groups": (44, 1000)},
        environ=ENVIRON,
        dmesg=LOG,
    )
