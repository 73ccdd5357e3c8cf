"""What several rule modules need: how to name sizes and devices, and what a path on the bus looks like as links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from accelctl.abi.rules import RuleContext
from accelctl.model.device import Device
from accelctl.model.reading import Reading
from accelctl.probes.pci import ADDRESS
from accelctl.probes.upstream import bandwidth_gbs, bridges

#: Legal link widths (PCIe base specification, Link Status register). 63 is what an all-ones read looks like.
WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
#: Vendors that use each other's bridges on their own cards: an AMD GPU's card switch may carry either id.
_FAMILY = {"0x1022": "0x1002"}
#: DMI words of hypervisors: what a guest sees of a link is made up.
_HYPERVISORS = (
    "qemu",
    "kvm",
    "vmware",
    "virtualbox",
    "xen",
    "bochs",
    "virtual machine",
    "bhyve",
    "parallels",
    "openstack",
)


def is_pci(device: Device) -> bool:
    """True for PCI functions."""
    return ADDRESS.match(device.id) is not None


def computing(ctx: RuleContext) -> Iterator[Device]:
    """Devices that compute on hardware: no display-only and no software devices."""
    return (device for device in ctx.report.devices if device.kind in ("physical", "vf", "partition"))


def physical(ctx: RuleContext) -> Iterator[Device]:
    """Physical PCI functions that compute."""
    return (device for device in ctx.report.devices if device.kind == "physical" and is_pci(device))


def is_whole(ctx: RuleContext) -> bool:
    """True where "not there" means that the machine has not got it: a running system or a complete capture."""
    return ctx.root.live or ctx.root.manifest.complete


def is_guest(ctx: RuleContext) -> bool:
    """True where the firmware's names are those of a hypervisor."""
    words = " ".join(str(ctx.report.value(f"system/{key}") or "") for key in ("vendor", "product")).lower()
    return any(word in words for word in _HYPERVISORS)


def in_container(ctx: RuleContext) -> bool:
    """True where a container runtime was recognised."""
    return ctx.report.value("container/kind") not in (None, "none")


def by_file(device: Device, name: str) -> Reading | None:
    """The fact that was read from a file of this name, whatever key its chip room gave it."""
    tail = "/" + name
    for reading in device.facts.values():
        if tail in reading.source and reading.source.endswith(tail):  # "in" takes half the time and is seldom true
            return reading
    return None


def size_words(size: int) -> str:
    """Bytes in the largest unit of 1024 that leaves a short number."""
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


def name_list(names: Sequence[str], limit: int = 4) -> str:
    """Names in a row; what is beyond the limit is counted."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def sharers(ctx: RuleContext) -> dict[str, list[str]]:
    """Bridge -> ids of the accelerators below it; VFs and partitions are part of their physical function."""
    found: dict[str, list[str]] = {}
    for device in physical(ctx):
        for address, _ in bridges(device):
            found.setdefault(address, []).append(device.id)
    return found


class End(NamedTuple):
    """One end of a link as its function reports it; None where unknown, unreadable or not a legal value."""

    address: str
    base: str
    speed: float | None
    width: int | None
    max_speed: float | None
    max_width: int | None
    vendor: str | None


class Link(NamedTuple):
    """A link on the way from a device to the root: ``upper`` is the end nearer to the root, None if not known."""

    lower: End
    upper: End | None

    @property
    def width(self) -> int | None:
        """Lanes in use, as either end says."""
        return self.lower.width or (self.upper.width if self.upper else None)

    @property
    def speed(self) -> float | None:
        """Rate in use in GT/s, as either end says."""
        return self.lower.speed or (self.upper.speed if self.upper else None)

    @property
    def best_width(self) -> int | None:
        """Lanes that both ends can do; None unless both say."""
        found = _least(self.lower.max_width, self.upper.max_width if self.upper else None)
        return None if found is None else int(found)

    @property
    def best_speed(self) -> float | None:
        """Rate in GT/s that both ends can do; None unless both say."""
        return _least(self.lower.max_speed, self.upper.max_speed if self.upper else None)

    @property
    def best_gbs(self) -> float | None:
        """GB/s that both ends can do."""
        return bandwidth_gbs(self.best_speed, self.best_width)


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)


def _end(device: Device, address: str, base: str) -> End:
    def number(key: str) -> float | None:
        value = device.value(f"{base}{key}")
        return value if isinstance(value, (int, float)) and value > 0 else None

    values = number("current_width"), number("max_width")
    widths = [int(value) if value is not None and value in WIDTHS else None for value in values]
    vendor = device.value("pci/vendor_id" if base == "link/" else f"{base}vendor_id")
    speeds = number("current_speed_gts"), number("max_speed_gts")
    return End(address, base, speeds[0], widths[0], speeds[1], widths[1], vendor)


def links(device: Device) -> list[Link]:
    """The real links of a path, nearest to the device first.

    The bridge above a device is a downstream port. The next one up is the upstream port of the same switch: between
    these two there is no link. So bridges pair off as (device, 1st), (2nd, 3rd), ...; a card with a switch of its own
    (Intel Arc, Radeon) reports an internal link on its function and the slot's link on the 2nd and 3rd bridge.
    """
    ends = [_end(device, device.id, "link/")]
    ends += [_end(device, address, f"upstream/{address}/") for address, _ in bridges(device)]
    found = [Link(ends[0], ends[1] if len(ends) > 1 else None)]
    found += [Link(ends[index], ends[index + 1]) for index in range(2, len(ends) - 1, 2)]
    return found


def family(vendor: str | None) -> str | None:
    """Vendor ids that count as one."""
    return _FAMILY.get(vendor or "", vendor)


def outward(device: Device, path: Sequence[Link]) -> int:
    """Index of the link that leaves the card: 1 where the first switch is the card vendor's own, else 0."""
    own = len(path) > 1 and path[1].lower.vendor is not None
    return 1 if own and family(path[1].lower.vendor) == family(device.value("pci/vendor_id")) else 0


def readings(device: Device, keys: Iterable[str]) -> list[Reading]:
    """Facts that are there, in order."""
    return [device.facts[key] for key in keys if key in device.facts]
