"""PCIe links: narrower than both ends allow, slower although loaded, limited by slot or switch.

A card at rest lowers its rate to 2.5 GT/s and that is healthy; its width stays (NVIDIA) or is lowered by a power table
that the driver shows (amdgpu). So width alone is an alarm, rate only with a load beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Finding
from accelctl.probes.rules._common import (
    Link,
    by_file,
    is_guest,
    links,
    name_list,
    outward,
    physical,
    readings,
    sharers,
)
from accelctl.probes.upstream import bandwidth_gbs

#: Busy percent from which rest no longer explains a low rate. One sample proves little, so findings say "likely".
LOADED_PERCENT = 80


def _gbs(speed: float | None, width: int | None) -> str:
    rate = bandwidth_gbs(speed, width)
    return "an unknown rate" if rate is None else f"{rate:.2f} GB/s"


def _facts(device: Device, link: Link) -> tuple[str, ...]:
    ends = [link.lower] + ([link.upper] if link.upper else [])
    names = ("current_width", "max_width", "current_speed_gts", "max_speed_gts")
    return tuple(f"{end.base}{name}" for end in ends for name in names)


def _lowered_by_table(device: Device, width: int) -> bool:
    """True where the driver's power table has a level with this width: amdgpu prints "2.5GT/s, x8" in pp_dpm_pcie."""
    table = by_file(device, "pp_dpm_pcie")
    return table is not None and re.search(rf"\bx{width}\b", table.raw or "") is not None


def _once(ctx: RuleContext) -> Iterator[tuple[Device, Link, list[str]]]:
    """Every link once, with the accelerators that use it: one above several belongs to the machine, not to one."""
    seen: set[str] = set()
    users = sharers(ctx)
    for device in physical(ctx):
        for link in links(device):
            if link.lower.address not in seen:
                seen.add(link.lower.address)
                yield device, link, users.get(link.lower.address, [device.id])


def _owner(users: list[str]) -> str | None:
    return users[0] if len(users) == 1 else None


def _shared(users: list[str]) -> str:
    return "" if len(users) == 1 else f"; behind it: {name_list(users)}"


def _place(device: Device, link: Link) -> str:
    if link.lower.address == device.id:
        return "PCIe link"
    return f"PCIe link {link.lower.address} below {link.upper.address if link.upper else '?'}"


@rule("PCI-LINK-WIDTH", explains=("PCI-LINK-SPEED", "PCI-AER-CORRECTABLE"))
def narrow(ctx: RuleContext) -> Iterator[Finding]:
    """Fewer lanes than both ends have. No alarm where the port's limit is not known: a slot may have fewer lanes."""
    for device, link, users in _once(ctx):
        width, best = link.width, link.best_width
        most = best or link.lower.max_width
        if width is None or most is None or width >= most or _lowered_by_table(device, width):
            continue
        if best is None:
            yield _unknown_slot(device, link, width, most, _owner(users))
        else:
            speed = link.best_speed or link.lower.max_speed or link.speed
            at = f" at {speed:g} GT/s" if speed else ""
            title = (
                f"{_place(device, link)} has x{width} of x{best} lanes: {_gbs(speed, width)} instead of "
                f"{_gbs(speed, best)}{at}; card and port can both do x{best}{_shared(users)}"
            )
            fix = (
                "power off, reseat the card, clean its contacts, try it without riser or in another slot",
                "check the slot's bifurcation setting in the firmware (x8/x8 splits an x16 slot)",
                f"cat /sys/bus/pci/devices/{link.lower.address}/current_link_width",
            )
            facts = evidence(*readings(device, _facts(device, link)))
            yield Finding("PCI-LINK-WIDTH", "warn", title, _owner(users), facts, fix)


def _unknown_slot(device: Device, link: Link, width: int, most: int, owner: str | None) -> Finding:
    title = (
        f"{_place(device, link)} has x{width} lanes, the card can do x{most}; what its slot can do is not known here"
    )
    fix = (f"compare with the slot's printed width; lspci -vv -s {link.lower.address} shows both ends on the host",)
    return Finding(
        "PCI-LINK-WIDTH", "info", title, owner, evidence(*readings(device, _facts(device, link))), fix, "possible"
    )


def _busy(device: Device) -> Iterable[str]:
    """Keys of load figures at or above the threshold."""
    for key, reading in device.facts.items():
        if (
            "busy_percent" in reading.source
            and reading.source.endswith("busy_percent")
            and isinstance(reading.value, int)
            and reading.value >= LOADED_PERCENT
        ):
            yield key


@rule("PCI-LINK-SPEED")
def slow(ctx: RuleContext) -> Iterator[Finding]:
    """A low rate, only where the device is busy at the same time; at rest it is normal and no finding at all."""
    for device in physical(ctx):
        busy = list(_busy(device))
        for link in links(device) if busy else ():
            speed, best = link.speed, link.best_speed
            if speed is not None and best is not None and speed < best:
                title = (
                    f"{_place(device, link)} runs at {speed:g} GT/s under load, both ends can do {best:g}: "
                    f"{_gbs(speed, link.width)} instead of {_gbs(best, link.width)}"
                )
                fix = (
                    "look again under a steady load: accelctl probe",
                    "check the slot's PCIe generation setting in the firmware (Auto), riser and seating",
                )
                facts = evidence(*readings(device, (*_facts(device, link), *busy)))
                yield Finding("PCI-LINK-SPEED", "warn", title, device.id, facts, fix, "likely")
                break


@rule("PCI-LINK-SLOT")
def slot_limits(ctx: RuleContext) -> Iterator[Finding]:
    """The card could do more than its slot: a fact of the machine, not a fault."""
    for device in physical(ctx):
        path = links(device)
        link = path[outward(device, path)]
        card, best = bandwidth_gbs(link.lower.max_speed, link.lower.max_width), link.best_gbs
        if link.upper is None or card is None or best is None or best >= card:
            continue
        title = (
            f"the slot limits: port {link.upper.address} can do x{link.upper.max_width} at "
            f"{link.upper.max_speed:g} GT/s, the card x{link.lower.max_width} at {link.lower.max_speed:g} GT/s "
            f"({best:.2f} of {card:.2f} GB/s)"
        )
        facts = evidence(*readings(device, _facts(device, link)))
        fix = ("use a slot with more lanes or a newer PCIe generation if transfers are the bottleneck",)
        yield Finding("PCI-LINK-SLOT", "info", title, device.id, facts, fix)


@rule("PCI-LINK-UPSTREAM")
def bottleneck(ctx: RuleContext) -> Iterator[Finding]:
    """A link nearer to the root that can do less than the card's own link."""
    told: set[str] = set()
    users = sharers(ctx)
    for device in physical(ctx):
        path = links(device)
        index = outward(device, path)
        own = path[index].best_gbs
        for link in path[index + 1 :]:
            rate = link.best_gbs
            if own is None or rate is None or rate >= own or link.lower.address in told or link.upper is None:
                continue
            told.add(link.lower.address)
            behind = users[link.lower.address]
            title = (
                f"uplink {link.lower.address} to {link.upper.address} can do {rate:.2f} GB/s, less than the card's own "
                f"link ({own:.2f} GB/s); behind it: {name_list(behind)}"
            )
            fix = ("move the card below another root port if host transfers are the bottleneck",)
            facts = evidence(*readings(device, _facts(device, link)))
            yield Finding("PCI-LINK-UPSTREAM", "info", title, _owner(behind), facts, fix)


@rule("LINK-BRIDGE")
def two_stories(ctx: RuleContext) -> Iterator[Finding]:
    """Both ends of a link report the width of one training: they cannot differ. Rates may, between two reads."""
    if is_guest(ctx):
        return
    for device, link, users in _once(ctx):
        upper = link.upper
        if upper is None or link.lower.width is None or upper.width is None or link.lower.width == upper.width:
            continue
        title = (
            f"{link.lower.address} says its link has x{link.lower.width}, the port {upper.address} on the other end "
            f"says x{upper.width}"
        )
        keys = (f"{link.lower.base}current_width", f"{upper.base}current_width")
        fix = (
            "accelctl probe once more; if it stays, do not trust this machine's link figures (emulated port, firmware)",
        )
        yield Finding("LINK-BRIDGE", "warn", title, _owner(users), evidence(*readings(device, keys)), fix, "likely")
