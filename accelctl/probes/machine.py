"""Facts of the whole machine that decide whether accelerators work: kernel, command line, NUMA, IOMMU, limits, shared
memory.
"""

from __future__ import annotations

import re

from accelctl.model.convert import whole
from accelctl.model.reading import IDENTITY, STABLE, Reading, absent, computed
from accelctl.probes.context import Field, Scan, read_fields


def _anonymous(text: str) -> str | None:
    """The kernel's version without the person and the machine that built it."""
    return re.sub(r"\([^()\s]+@[^()]*\) ", "", text) or None


_FILES: tuple[Field, ...] = (
    ("kernel/release", "proc/sys/kernel/osrelease", "text", None, STABLE),
    ("kernel/version", "proc/version", _anonymous, None, STABLE),
    ("kernel/tainted", "proc/sys/kernel/tainted", "int", None, STABLE),
    ("kernel/command_line", "proc/cmdline", "text", None, IDENTITY),
    ("kernel/lockdown", "sys/kernel/security/lockdown", "text", None, STABLE),
    ("system/vendor", "sys/class/dmi/id/sys_vendor", "text", None, STABLE),
    ("system/product", "sys/class/dmi/id/product_name", "text", None, STABLE),
    ("system/board", "sys/class/dmi/id/board_name", "text", None, STABLE),
    ("system/bios_version", "sys/class/dmi/id/bios_version", "text", None, STABLE),
    ("system/bios_date", "sys/class/dmi/id/bios_date", "text", None, STABLE),
    ("cpu/online", "sys/devices/system/cpu/online", "text", None, STABLE),
    ("numa/online", "sys/devices/system/node/online", "text", None, STABLE),
)
#: Parameters that change what an accelerator can do (Documentation/admin-guide/kernel-parameters.txt and the drivers'
#: own).
_PARAMETERS = re.compile(
    r"^(iommu|intel_iommu|amd_iommu|iommu\.\w+|pci|pcie_aspm|pcie_port_pm|nomodeset|nouveau\.modeset|modprobe\.blacklist|module_blacklist|"
    r"rd\.driver\.blacklist|amdgpu\.\w+|i915\.\w+|xe\.\w+|nvidia[\w-]*\.\w+|radeon\.\w+|amdkfd\.\w+|hugepages|hugepagesz|default_hugepagesz|"
    r"cma|mem|memmap|transparent_hugepage|numa_balancing|isolcpus|vfio[\w-]*\.\w+|module\.sig_enforce|lockdown|efi|intel_vpu\.\w+|drm[\w.]*)$"
)
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def describe(scan: Scan) -> None:
    """Fill ``scan.machine``."""
    root, facts = scan.root, scan.machine
    facts.update(read_fields(root, "", ((key, name, conv, unit, scope) for key, name, conv, unit, scope in _FILES)))
    _os_release(scan)
    _command_line(scan)
    _secure_boot(scan)
    _numa(scan)
    _iommu(scan)
    _limits(scan)
    _shm(scan)


def _os_release(scan: Scan) -> None:
    for path in ("etc/os-release", "usr/lib/os-release"):
        match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', scan.root.text(path) or "", re.MULTILINE)
        if match:
            scan.machine["os/name"] = Reading(match.group(1), path, match.group(0))
            return
    scan.machine["os/name"] = scan.root.read("etc/os-release")._replace(
        value=None, absence=absent("", "not_captured").absence
    )


def words_of(command_line: str) -> list[str]:
    """Split a kernel command line as the kernel does: double quotes keep blanks together."""
    return [word.replace('"', "") for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', command_line)]


def _command_line(scan: Scan) -> None:
    """The parameters that matter become stable facts; the whole line names disks and stays an identity."""
    reading = scan.machine["kernel/command_line"]
    chosen: dict[str, str] = {}
    for word in words_of(reading.value or ""):
        name, _, value = word.partition("=")
        if _PARAMETERS.match(name.replace("-", "_")) or _PARAMETERS.match(name):
            chosen[name] = value
    if reading.present:
        scan.machine["kernel/parameters"] = Reading(
            chosen, reading.source, " ".join(f"{k}={v}" if v else k for k, v in chosen.items())
        )
    else:
        scan.machine["kernel/parameters"] = reading._replace(scope=STABLE)


def _secure_boot(scan: Scan) -> None:
    """efivarfs: four bytes of attributes, then the value (Documentation/filesystems/efivarfs.rst)."""
    data = scan.root.data(_SECURE_BOOT)
    if data is None:
        reading = scan.root.read(_SECURE_BOOT)
        scan.machine["secure_boot"] = reading._replace(value=None)
    elif len(data) < 5:
        scan.machine["secure_boot"] = absent(_SECURE_BOOT, "malformed", raw=data.hex())
    else:
        scan.machine["secure_boot"] = Reading(data[4] == 1, _SECURE_BOOT, data[:5].hex(" "))


def _numa(scan: Scan) -> None:
    """NUMA nodes; memory of an accelerator can be a node without CPUs, so host memory is the sum of those that have
    some.
    """
    base = "sys/devices/system/node"
    for name in scan.root.listdir(base):
        if not re.fullmatch(r"node[0-9]{1,9}", name):
            continue
        key = f"numa/nodes/{name[4:]}"
        scan.machine[f"{key}/cpulist"] = scan.root.read(f"{base}/{name}/cpulist", lambda text: text)
        scan.machine[f"{key}/cpumap"] = scan.root.read(f"{base}/{name}/cpumap", lambda text: text)
        scan.machine[f"{key}/distance"] = scan.root.read(f"{base}/{name}/distance", "list_int")
        path = f"{base}/{name}/meminfo"
        match = re.search(r"^.*MemTotal:\s*([0-9]{1,15}) kB", scan.root.text(path) or "", re.MULTILINE)
        if match:
            scan.machine[f"{key}/memory_total_bytes"] = Reading(
                int(match.group(1)) * 1024, path, match.group(0).strip(), "bytes"
            )


def _iommu(scan: Scan) -> None:
    base = "sys/kernel/iommu_groups"
    if not scan.root.live and not scan.root.exists(base):
        scan.machine["iommu/active"] = absent(base, "not_captured")
        return
    units = scan.root.listdir("sys/class/iommu")
    groups = scan.root.listdir(base)
    scan.machine["iommu/units"] = Reading(units, "sys/class/iommu", " ".join(units))
    scan.machine["iommu/active"] = computed(bool(groups), f"{base} holds groups")
    scan.machine["iommu/groups"] = Reading(len(groups), base, str(len(groups)))


def _limits(scan: Scan) -> None:
    path = "proc/self/limits"
    text = scan.root.text(path)
    for key, label in (("limits/memlock", "Max locked memory"), ("limits/nofile", "Max open files")):
        match = re.search(rf"^{label}\s+(\S+)\s+(\S+)", text or "", re.MULTILINE)
        if match is None:
            scan.machine[f"{key}_soft"] = scan.root.read(path)._replace(
                value=None, raw=None, absence=absent("", "not_captured").absence
            )
            continue
        for part, word in (("soft", match.group(1)), ("hard", match.group(2))):
            scan.machine[f"{key}_{part}"] = _limit(path, word, match.group(0))


def _limit(path: str, word: str, line: str) -> Reading:
    try:
        value = word if word == "unlimited" else whole(word)
    except ValueError:
        value = -1
    if isinstance(value, int) and value < 0:
        return absent(path, "malformed", raw=line)
    return Reading(value, path, line)


def _shm(scan: Scan) -> None:
    """Size of /dev/shm: frameworks exchange tensors there, containers give 64 MiB by default."""
    size, free = scan.root.space("dev/shm")
    scan.machine["shm/size_bytes"], scan.machine["shm/free_bytes"] = size, free
