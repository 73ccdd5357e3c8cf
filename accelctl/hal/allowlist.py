"""The one list of files that may be opened, each with what reading it does to the machine.

Reading is not harmless: debugfs ``amdgpu_gpu_recover`` resets the GPU, ``pcie_bw`` blocks for a second, a link-speed
file wakes a card from D3cold. So nothing is opened that is not listed here or in a chip's ``[[attr]]`` rows, and no row
can overrule :data:`NEVER`.

The generic list is keyed by the file's name with digits folded to ``#``; sysfs names mean the same wherever they stand.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

FREE, WAKES, BLOCKS, PRIVILEGED = "free", "wakes", "blocks", "privileged"
EFFECTS = (FREE, WAKES, BLOCKS, PRIVILEGED)

#: Names whose read or write acts on the hardware. Sources: kernel ABI documents of habanalabs, PCI, amdgpu; ROCm issue
#: 616 (gpu_recover).
NEVER = re.compile(
    r"(^|/)(amdgpu_gpu_recover|\w+_reset|reset|force_reset\w*|remove|rescan|unbind|bind|new_id|remove_id|i915_wedged|error|eeprom|"
    r"rom|xgmi_error|psp_vbflash|amdgpu_evict_vram|amdgpu_test_ib|(i915_)?forcewake_user|resource\d+(_wc)?|data)$"
)
#: debugfs is root's and full of triggers: files there are listed by full name only.
DEBUGFS = "sys/kernel/debug/"

_SYS_FREE = """
 vendor device subsystem_vendor subsystem_device class revision uevent driver_override enable numa_node local_cpulist
local_cpus boot_vga modalias resource irq msi_bus d#cold_allowed power_state reset_method sriov_totalvfs sriov_numvfs
sriov_drivers_autoprobe sriov_vf_device aer_dev_correctable aer_dev_nonfatal aer_dev_fatal aer_rootport_total_err_cor
aer_rootport_total_err_nonfatal aer_rootport_total_err_fatal ari_enabled dma_mask_bits consistent_dma_mask_bits
runtime_status control runtime_active_time runtime_suspended_time runtime_usage runtime_enabled autosuspend_delay_ms
dev name type version srcversion initstate coresize refcnt taint online possible has_cpu has_memory cpulist cpumap
distance meminfo generation_id system_properties platform_id platform_rev gpu_id properties status modes enabled
lockdown supported_modes product_name product_version sys_vendor board_vendor board_name bios_vendor bios_version
bios_date chassis_type cap ecap max_seg_order compatible of_node model l#s_aspm l#_aspm clkpm policy dma_translation
"""
#: hwmon limits and labels are stored in the driver (Documentation/hwmon/sysfs-interface); inputs ask the chip.
_HWMON = re.compile(r"^(temp|power|fan|in|freq|energy|curr|pwm|humidity)#(_([a-z_#]+))?$")
_HWMON_FREE = frozenset({"label", "enable"})
#: These go through PCI configuration space, and newer kernels wake the device for it (drivers/pci/pci-sysfs.c).
_SYS_WAKES = "current_link_speed current_link_width max_link_speed max_link_width config resource#_resize"
_SYS_PRIVILEGED = "physical_slot"

#: Files outside sysfs, by full path with digits folded.
_EXACT = {
    "proc/cmdline", "proc/version", "proc/meminfo", "proc/cpuinfo", "proc/modules", "proc/mounts", "proc/devices",
    "proc/misc", "proc/sys/kernel/osrelease", "proc/sys/kernel/tainted", "proc/sys/kernel/dmesg_restrict",
    "proc/sys/kernel/perf_event_paranoid", "proc/sys/kernel/numa_balancing", "proc/sys/vm/overcommit_memory",
    "proc/sys/vm/max_map_count", "proc/sys/vm/nr_hugepages", "proc/driver/nvidia/version", "proc/driver/nvidia/params",
    "proc/driver/nvidia/registry", "proc/driver/nvidia/suspend_depth", "proc/self/status", "proc/self/cgroup",
    "proc/self/limits", "proc/self/mountinfo", "proc/self/uid_map", "proc/self/gid_map",
    "proc/#/wchan", "proc/#/stack", "proc/#/cgroup", "proc/#/comm", "proc/#/stat",
    "proc/#/status", "proc/#/cmdline", "proc/#/environ", "proc/#/sched", "etc/group", "etc/passwd", "etc/os-release",
    "proc/self/maps", "proc/#/maps", "proc/self/fdinfo/#", "proc/#/fdinfo/#", "proc/slabinfo",
    "usr/lib/os-release", "usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids",
    "run/.containerenv", "dev/kmsg", "var/log/kern.log", "var/log/messages", "sys/fs/cgroup/devices/devices.list",
    "sys/fs/cgroup/cgroup.controllers", "sys/fs/cgroup/memory.max", "accelctl-capture.json", "accelctl-kmsg.txt",
}  # fmt: skip
_EXACT_NAMES = {path.rpartition("/")[2] for path in _EXACT}
#: Files of debugfs that only count what a driver or the kernel gave out; their show functions wake no device (6.12).
#: Not here, though they count too: ttm/page_pool_shrink (reading it shrinks) and xe's ggtt (reading it wakes).
_DEBUGFS = {
    *(f"{DEBUGFS}{name}" for name in (
        "dma_buf/bufinfo", "ttm/page_pool", "ttm/buffer_objects", "dri/#/clients", "accel/#/clients",
        "dri/#/qxl_buffers", "dri/#/qxl_mem_mm", "dri/#/qxl_surf_mm", "dri/#/vram-mm",
        "dri/#/virtio-gpu-host-visible-mm", "dri/#/amdgpu_gem_info", "dri/#/amdgpu_vram_mm",
        "dri/#/amdgpu_gtt_mm", "dri/#/gtt_mm", "dri/#/stolen_mm",
        "dri/#/vram#_mm", "dri/#/tile#/vram_mm", "dri/#/i#_gem_objects", "dri/#/bo_stats", "dri/#/gem",
        "fail_usercopy/verbose", "fail_page_alloc/min-order", "fail_page_alloc/ignore-gfp-highmem",
    )),
    *(f"{DEBUGFS}{kind}/{knob}" for kind in ("failslab", "fail_page_alloc")
      for knob in ("ignore-gfp-wait", "verbose")),
}  # fmt: skip
#: Whole families of free files.
_PREFIXES = ("run/udev/data/", "sys/firmware/efi/efivars/SecureBoot-", "sys/firmware/efi/efivars/SetupMode-")
#: A module's own files. Its ``drivers`` links lead on to devices, whose files are no business of this rule.
_MODULE = re.compile(r"sys/module/[^/]+/(parameters/)?[^/]+")

_DIGITS = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def fold(name: str) -> str:
    """Digits to ``#``: temp12_input and temp3_input are one kind of file."""
    return _DIGITS.sub("#", name)


class _Glob(NamedTuple):
    """A chip's row. A regular expression takes 0.2 ms to make and a chip has dozens of rows: there are some for globs
    with wildcards alone, made when a name begins like the glob's last part."""

    path: str
    last: str
    start: str
    wild: bool
    effect: str

    def names(self, name: str) -> bool:
        """May a file of this name be meant?"""
        if self.start == self.last:
            return name == self.last
        return name.startswith(self.start) and _compiled(self.last).fullmatch(name) is not None

    def fits(self, path: str) -> bool:
        """Is this path meant? In sysfs from any folder border on, elsewhere as a whole."""
        if not self.wild:
            return path == self.path or (path.startswith("sys/") and path.endswith(f"/{self.path}"))
        return _compiled(self.path, "(?:sys/(?:.*/)?)?").fullmatch(path) is not None


_Name = tuple[bool, "str | None", "str | None", bool]
"""What the last name of a path decides by itself: never opened, its effect in sysfs, the one below hwmon, and whether
:data:`_EXACT` has it. Plain tuples, which are taken apart much faster than named ones."""


class AllowList:
    """Answers which effect opening a path has; None means that it is never opened."""

    def __init__(self) -> None:
        self._names: dict[str, str] = dict.fromkeys(_SYS_FREE.split(), FREE)
        self._names.update(dict.fromkeys(_SYS_WAKES.split(), WAKES))
        self._names.update(dict.fromkeys(_SYS_PRIVILEGED.split(), PRIVILEGED))
        self._globs: list[_Glob] = []
        self._by_name: dict[str, list[_Glob]] = {}
        self._known: dict[str, _Name] = {}
        self._seen: set[tuple[str, str]] = set()

    def add(self, glob: str, effect: str) -> None:
        """Allow a chip's files: ``glob`` is matched against the end of a path in sysfs, from a folder border on, and
        elsewhere against the whole path. ``*`` does not cross a folder border.
        """
        if effect not in EFFECTS:
            raise ValueError(f"unknown effect {effect!r}")
        if (glob, effect) not in self._seen:
            self._seen.add((glob, effect))
            last = "*" if "[" in glob else glob.rpartition("/")[2]  # a set may hold a slash
            start, wild = _WILD.split(last, maxsplit=1)[0], _WILD.search(glob) is not None
            self._globs.append(_Glob(glob, last, start, wild, effect))
            self._by_name.clear()

    def effect(self, path: str) -> str | None:
        """The side-effect class of opening ``path`` (below the root), or None."""
        if ".." in path and ".." in path.split("/"):  # what it names depends on links: no rule can speak for it
            return None
        name = path.rpartition("/")[2]
        never, in_sysfs, sensor, exact = self._known.get(name) or self._learn(name)
        if path.startswith("sys/"):
            if never or ("/debug/" in path and path.startswith(DEBUGFS)):
                return FREE if fold(path) in _DEBUGFS else None
            if in_sysfs is not None:
                return in_sysfs
            if sensor is not None and "/hwmon" in path:
                return sensor
        if (exact and fold(path) in _EXACT) or path.startswith(_PREFIXES):
            return FREE
        if path.startswith("sys/module/") and _MODULE.fullmatch(path):
            return FREE
        if never or path.startswith("dev/"):  # no row opens a device node
            return None
        globs = self._by_name.get(name)
        if globs is None:
            globs = self._by_name[name] = [one for one in self._globs if one.names(name)]
        return next((one.effect for one in globs if one.fits(path)), None) if globs else None

    def _learn(self, name: str) -> _Name:
        shape = fold(name)
        never = NEVER.search(name) is not None  # speaks of the last name of a path alone
        known = self._known[name] = never, self._names.get(shape), _sensor(shape), shape in _EXACT_NAMES
        return known


_WILD = re.compile(r"(\*|\?|\[!?[^\]]+\])")


@lru_cache(maxsize=4096)
def _compiled(glob: str, before: str = "") -> re.Pattern[str]:
    return re.compile(before + _pattern(glob))


def _pattern(glob: str) -> str:
    """A glob as a regular expression in which no wildcard crosses a folder border (fnmatch's do)."""
    words = {"*": "[^/]*", "?": "[^/]"}
    parts = _WILD.split(glob)  # every second part is a wildcard
    wild = [words.get(part) or part.replace("[!", "[^/", 1) for part in parts[1::2]]
    plain = [re.escape(part) for part in parts[::2]]
    return "".join(a + b for a, b in zip(plain, [*wild, ""], strict=True))


@lru_cache(maxsize=4096)
def _sensor(shape: str) -> str | None:
    match = _HWMON.match(shape)
    if match is None:
        return None
    return FREE if match.group(3) in _HWMON_FREE else WAKES
