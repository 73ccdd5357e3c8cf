"""How much memory there is to take: of the device where it says so, of the machine and our cgroup everywhere."""

from __future__ import annotations

from accelctl.hal.root import SysRoot
from accelctl.model.device import Device

_POOLS = (("memory/vram_total_bytes", "memory/vram_used_bytes"), ("memory/local_total_bytes", "memory/used_bytes"))
_UNLIMITED = 1 << 60


def free_bytes(root: SysRoot, device: Device) -> int:
    """Bytes: the least of what the device, the machine and the cgroup have free."""
    return min(_of_device(device), _of_machine(root), _of_cgroup(root))


def _of_device(device: Device) -> int:
    for total, used in _POOLS:
        have, taken = device.value(total), device.value(used)
        if isinstance(have, int) and isinstance(taken, int):
            return max(0, have - taken)
    return _UNLIMITED


def _of_machine(root: SysRoot) -> int:
    for line in (root.text("proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return _UNLIMITED


def _of_cgroup(root: SysRoot) -> int:
    """The limit of the cgroup we see as the root (a container's); what is used there counts as ours to come."""
    text = (root.text("sys/fs/cgroup/memory.max") or "").strip()
    return int(text) if text.isdigit() else _UNLIMITED
