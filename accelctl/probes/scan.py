"""One pass over a machine: find, join, describe, judge. The order matters and stands here alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from accelctl.abi.rooms import Directory, Room, all_rooms
from accelctl.abi.rules import RuleContext
from accelctl.hal.kmsg import KernelLog, read_log, read_named
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.model.reading import Reading, absent
from accelctl.model.report import Report
from accelctl.probes import (
    chipfacts,
    container,
    drm,
    engine,
    holders,
    kfd,
    machine,
    names,
    nodes,
    ordinals,
    pci,
    sensors,
    sysclass,
    topology,
    upstream,
)
from accelctl.probes.context import Scan

LOOKED_FOR = (
    "PCI functions of classes 03, 12, 0b40 and of known vendors (sys/bus/pci/devices)",
    "DRM and accel minors (sys/class/drm, sys/class/accel)",
    "KFD nodes (sys/class/kfd)",
    "class folders and device nodes of known vendor drivers",
)


@dataclass(frozen=True)
class LogText:
    """The kernel log as one text for rules."""

    source: str
    text: str


def look(root: SysRoot, rooms: Iterable[Room] | None = None, more: Callable[[Scan], None] = lambda scan: None) -> Scan:
    """Everything that can be read about the machine and its accelerators. ``more`` adds devices that only one command
    knows, before the processes that hold one are looked for: that walk is the most expensive part."""
    scan = Scan(root, Directory(all_rooms() if rooms is None else rooms))
    machine.describe(scan)
    container.describe(scan)
    pci.find(scan)
    drm.find(scan)
    sysclass.find(scan)
    kfd.find(scan)
    chipfacts.allow(scan, present_rooms(scan))
    chipfacts.describe_rooms(scan, present_rooms(scan))
    bridges: dict[str, dict[str, Reading]] = {}
    for device in scan.devices.values():
        if pci.ADDRESS.match(device.id):
            upstream.describe(scan, device, bridges)
        _driver(scan, device)
        sensors.describe(scan, device)
        chipfacts.describe(scan, device)
    nodes.find(scan)
    names.describe(scan)
    scan.devices = dict(sorted(scan.devices.items(), key=_order))
    topology.describe(scan)
    ordinals.describe(scan)
    more(scan)
    holders.describe(scan)
    return scan


def _order(item: tuple[str, Device]) -> tuple[bool, str]:
    """PCI functions by address, then everything else by name."""
    return not pci.ADDRESS.match(item[0]), item[0]


def present_rooms(scan: Scan) -> list[Room]:
    """Rooms of the devices found."""
    chips = {device.chip for device in scan.devices.values()}
    return [room for room in scan.rooms.rooms if room.name in chips]


def _driver(scan: Scan, device: Device) -> None:
    """Module and version of the bound driver; most in-tree drivers carry no version of their own."""
    driver = device.facts.get("driver")
    if driver is None or not driver.present:
        return
    module = scan.root.link(f"{device.path}/driver/module")
    device.facts["driver_module"] = module
    name = module.value or driver.value
    version = scan.root.read(f"sys/module/{name}/version")
    if not version.present and version.absence is not None and version.absence.kind == "not_offered":
        version = absent(
            version.source, "not_offered", errno="ENOENT", detail="an in-tree driver: its version is the kernel's"
        )
    device.facts["driver_version"] = version


def probe(root: SysRoot, rooms: Iterable[Room] | None = None, kmsg: str | None = None) -> Report:
    """Scan, read the kernel log, run the rules. ``kmsg`` names a log file, "-" is standard input."""
    return judge(look(root, rooms), kmsg)


def judge(scan: Scan, kmsg: str | None = None) -> Report:
    """The second half of :func:`probe`: the log and the rules, of what was looked at."""
    root = scan.root
    log = read_named(kmsg) if kmsg else read_log(root)
    report = Report(root.tree.name, root.live, scan.machine, list(scan.devices.values()), looked_for=list(LOOKED_FOR))
    report.log_source = log.source if log.absence is None else None
    report.machine["log/source"] = _log_fact(log)
    context = RuleContext(root, report, scan.rooms, _as_text(log))
    report.findings = engine.run(context, engine.collect(rule_rooms(scan)))
    return report


def rule_rooms(scan: Scan) -> list[Room]:
    """Rooms whose rules apply: those present, and those whose kernel module is loaded though no device was found."""
    present = present_rooms(scan)
    return present + [room for room in scan.rooms.rooms if room not in present and _has_traces(scan, room)]


def _has_traces(scan: Scan, room: Room) -> bool:
    roles = ("helper", "open")
    return any(
        scan.root.exists(f"sys/module/{row['name']}") for row in room.table("module") if row.get("role") not in roles
    )


def _log_fact(log: KernelLog) -> Reading:
    if log.absence is None:
        return Reading(log.source, log.source, f"{len(log.lines)} lines", None, None, "volatile")
    return Reading(None, log.source or "kernel log", None, None, log.absence, "volatile")


def _as_text(log: KernelLog) -> LogText | None:
    if log.absence is not None:
        return None
    return LogText(log.source, "\n".join(line.text for line in log.lines))
