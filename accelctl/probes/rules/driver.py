"""Drivers: the right one, bound, and of the version that its user-space library expects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import NamedTuple

from accelctl.abi.rooms import Room
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.rules._common import in_container, is_whole
from accelctl.probes.rules.hints import hint
from accelctl.probes.rules.kernel_modules import Disk, dkms_versions, loaded, modules
from accelctl.probes.rules.library_files import Libraries, parts, version_of

#: Drivers that keep a device for a virtual machine (kernel doc driver-api/vfio.rst; xen-pciback; pci-stub).
_PASSTHROUGH = re.compile(r"vfio|^pci-stub$|^(xen-)?pciback$|^uio_pci_generic$")
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.([0-7])$")
_EFFECTS = ("NODE-MISSING", "NODE-HIDDEN", "LIB-MISSING")


def judged(ctx: RuleContext) -> Iterator[tuple[Device, Room]]:
    """PCI accelerators whose driver matters: virtual functions may be kept for guests, second functions have none."""
    for device in ctx.report.devices:
        room = ctx.room(device)
        if (
            room is None
            or device.kind != "physical"
            or room.kind in ("virtual", "display")
            or not _ADDRESS.match(device.id)
        ):
            continue
        first = ctx.report.device(device.id[:-1] + "0")
        if first is None or first is device or first.chip != device.chip:
            yield device, room


def is_unbound(ctx: RuleContext, device: Device) -> bool:
    """No driver has it. Of a partial capture only a log line about a failed probe says so."""
    driver = device.reading("driver")
    if driver is None or driver.present:
        return False
    return is_whole(ctx) or bool(probe_failures(ctx, device))


def probe_failures(ctx: RuleContext, device: Device) -> list[re.Match[str]]:
    """Lines of drivers/base/dd.c: "probe with driver X failed with error -2", before 6.9 "X: probe of Y failed ..."."""
    address = re.escape(device.id)
    new = rf"^\S+ {address}: probe with driver (?P<driver>\S+) failed with error (?P<error>-?\d+)$"
    old = rf"^(?P<driver>\S+): probe of {address} failed with error (?P<error>-?\d+)$"
    return [*ctx.log_matches("probe with driver", new), *ctx.log_matches("probe of", old)]


def together(found: Iterable[Device], words: str = "has no driver") -> tuple[str | None, tuple[str, ...]]:
    """One cause is one finding: the device it names, or None with one consequence per device."""
    names = [device.id for device in found]
    return (names[0], ()) if len(names) == 1 else (None, tuple(f"{name} {words}" for name in names))


def _absent(path: str) -> Evidence:
    return Evidence(path, "absent")


# -- who has the device --


@rule("DRV-WRONG-OWNER", "DRV-OPEN", "DRV-PASSTHROUGH", explains=_EFFECTS)
def owner(ctx: RuleContext) -> Iterator[Finding]:
    """A device held by another driver than the loaded one that is made for it."""
    for device, room in judged(ctx):
        driver = device.value("driver")
        if driver is None:
            continue
        if driver in modules(room, "open"):
            yield _open_driver(ctx, device, room, driver)
        elif _PASSTHROUGH.search(driver) and not _lives_on_vfio(room):
            title = f"{device.id} is kept for a virtual machine by {driver}, so nothing here can use it"
            fix = (f"on purpose: nothing to do; else remove its id from the {driver} options and reboot",)
            yield Finding("DRV-PASSTHROUGH", "info", title, device.id, evidence(device.reading("driver")), fix)


def _lives_on_vfio(room: Room) -> bool:
    return any("vfio" in row["glob"] for row in room.table("node"))


def _open_driver(ctx: RuleContext, device: Device, room: Room, driver: str) -> Finding:
    vendor = [name for name in modules(room, "kernel") if loaded(ctx.root, name)]
    shown = evidence(device.reading("driver"), device.reading("driver_override"))
    if not vendor or device.value("driver_override") == driver:
        title = f"{driver}, the open driver, runs {device.id}; the vendor's kernel module is not loaded"
        install = room.install.get("driver", "install its driver")
        choice = ("on purpose: nothing to do", f"for the vendor's compute stack: {install}")
        return Finding("DRV-OPEN", "info", title, device.id, shown, choice)
    name = vendor[0]
    wording = hint(room, "NOT_PROBED")
    lines = list(ctx.log_matches(*wording)) if wording else []
    shown += (Evidence(f"sys/module/{name}", "present"), *(ctx.log_evidence(match) for match in lines[:1]))
    title = f"{device.id} is claimed by {driver} although the {name} module is loaded"
    fix = (
        f"printf 'blacklist {driver}\\noptions {driver} modeset=0\\n' | sudo tee /etc/modprobe.d/no-{driver}.conf",
        "rebuild the initramfs: sudo update-initramfs -u (Debian, Ubuntu) or sudo dracut --force (Fedora, RHEL, SUSE)",
        "sudo reboot",
    )
    shared = any(one.value("driver") in vendor for one in ctx.devices(room.name))
    if shared and not lines:
        return Finding("DRV-WRONG-OWNER", "warn", title, device.id, shown, fix, "possible")
    return Finding("DRV-WRONG-OWNER", "error", title, device.id, shown, fix)


# -- nobody has the device --


class Why(NamedTuple):
    """Why a room's devices have no driver; equal causes are one finding."""

    id: str
    level: str
    title: str
    certainty: str = "certain"
    shown: tuple[Evidence, ...] = ()
    fix: tuple[str, ...] = ()


@rule("DRV-NOT-LOADED", "DRV-NOT-INSTALLED", "DRV-OTHER-KERNEL", "DRV-BLOCKED", "DRV-UNBOUND", explains=_EFFECTS)
def nobody(ctx: RuleContext) -> Iterator[Finding]:
    """Accelerators without a driver, and why."""
    disk = Disk(ctx.root, ctx.report.value("kernel/release"))
    causes: dict[Why, list[Device]] = {}
    for device, room in judged(ctx):
        if is_unbound(ctx, device):
            why = _why(ctx, device, room, disk)
            if why is not None:
                causes.setdefault(why, []).append(device)
    for why, found in causes.items():
        identity, effects = together(found)
        shown = evidence(found[0].reading("driver")) + why.shown
        yield Finding(why.id, why.level, why.title, identity, shown, why.fix, why.certainty, effects)
    yield from _idle_builds(ctx, disk)


def _why(ctx: RuleContext, device: Device, room: Room, disk: Disk) -> Why | None:
    names = modules(room, "kernel")
    blocked = _blocked(ctx, device, names)
    if blocked is not None:
        return blocked
    running = [name for name in names if loaded(ctx.root, name)]
    failures = probe_failures(ctx, device)
    if running or failures:
        return _refused(ctx, device, running, failures)
    if disk.known:
        return _from_disk(ctx, room, names, disk)
    if not ctx.root.live:
        return None
    title = f"no driver is loaded for the {room.title}"
    where = "on the host (a container cannot load modules): " if in_container(ctx) else ""
    fix = (f"{where}sudo modprobe {names[0]}" if names else room.install.get("driver", "install its driver"),)
    return Why("DRV-NOT-LOADED", "warn", title, "likely", tuple(_absent(f"sys/module/{name}") for name in names), fix)


def _blocked(ctx: RuleContext, device: Device, names: list[str]) -> Why | None:
    """Kept away on purpose: driver_override, a blacklist on the kernel command line, nomodeset."""
    override = device.value("driver_override")
    if override and override not in names:
        title = f"driver_override keeps {device.id} for {override}, which has not taken it"
        fix = (f"echo | sudo tee /{device.path}/driver_override; sudo modprobe {names[0] if names else 'ITS_DRIVER'}",)
        return Why("DRV-BLOCKED", "warn", title, "certain", evidence(device.reading("driver_override")), fix)
    reading = ctx.report.machine.get("kernel/parameters")
    parameters = reading.value if reading is not None and isinstance(reading.value, dict) else {}
    for key in ("module_blacklist", "modprobe.blacklist", "rd.driver.blacklist"):
        hit = [name for name in names if name in re.split(r"[,\s]+", str(parameters.get(key, "")))]
        if hit:
            title = f"the kernel command line forbids {hit[0]} ({key})"
            fix = (f"remove {hit[0]} from {key}= in the boot loader's kernel line, then reboot",)
            return Why("DRV-BLOCKED", "warn", title, "certain", evidence(reading), fix)
    if "nomodeset" in parameters and str(device.value("pci/class") or "").startswith("0x03"):
        title = "nomodeset on the kernel command line keeps graphics drivers off"
        return Why(
            "DRV-BLOCKED",
            "warn",
            title,
            "likely",
            evidence(reading),
            ("remove nomodeset from the kernel line, then reboot",),
        )
    return None


def _refused(ctx: RuleContext, device: Device, running: list[str], failures: list[re.Match[str]]) -> Why:
    shown = tuple(Evidence(f"sys/module/{name}", "present") for name in running)
    shown += tuple(ctx.log_evidence(match) for match in failures[-1:])
    read = f"what it said: sudo dmesg | grep -F '{device.id}'"
    if failures:
        last = failures[-1]
        title = f"driver {last['driver']} gave up on {device.id}: its probe failed with error {last['error']}"
        return Why("DRV-UNBOUND", "error", title, "certain", shown, (read,))
    title = f"{' and '.join(running)} loaded, but no driver has taken {device.id}"
    fix = (read, f"does this driver know the device? modinfo {running[0]} | grep -i '{_alias(device)}'")
    return Why("DRV-UNBOUND", "error", title, "likely", shown, fix)


def _alias(device: Device) -> str:
    vendor, number = (
        str(device.value(f"pci/{key}") or "0x").removeprefix("0x").upper() for key in ("vendor_id", "device_id")
    )
    return f"v0000{vendor}d0000{number}"


def _from_disk(ctx: RuleContext, room: Room, names: list[str], disk: Disk) -> Why:
    """What the folder of the running kernel says: built but not loaded, built for other kernels, or not there."""
    for name in names:
        path = disk.find(name)
        if path is not None:
            title = f"module {name} lies ready for this kernel but is not loaded"
            fix = (f"sudo modprobe {name}", f"if that stays quiet: grep -r {name} /etc/modprobe.d /lib/modprobe.d")
            shown = (Evidence(path, "present"), _absent(f"sys/module/{name}"))
            return Why("DRV-NOT-LOADED", "error", title, "certain", shown, fix)
    for name in names:
        others = disk.other_kernels(name)
        if others:
            return _elsewhere(name, others, disk)
    wanted = " or ".join(names)
    title = f"no driver for the {room.title} is installed for kernel {disk.release}"
    title += f" (module {wanted})" if wanted else ""
    lacking = (Evidence(disk.base, f"no {wanted or 'known'} module"),)
    install = room.install.get("driver", f"install the driver of the {room.title}")
    return Why("DRV-NOT-INSTALLED", "error", title, "certain" if names else "likely", lacking, (install,))


def _elsewhere(name: str, others: list[str], disk: Disk) -> Why:
    title = f"module {name} is built for {', '.join(others)}, not for the running kernel {disk.release}"
    fix = (
        "install the headers of the running kernel: linux-headers-$(uname -r) or kernel-devel-$(uname -r)",
        f"sudo dkms autoinstall && sudo modprobe {name}",
    )
    above = disk.base.rpartition("/")[0]
    shown = (Evidence(f"{above}/{others[0]}", f"holds {name}.ko"), Evidence(disk.base, f"holds no {name}.ko"))
    return Why("DRV-OTHER-KERNEL", "error", title, "certain", shown, fix)


def _idle_builds(ctx: RuleContext, disk: Disk) -> Iterator[Finding]:
    """A module somebody built for this kernel, not loaded, while no device of its family is seen: a line, no more."""
    if not disk.out_of_tree:
        return
    present = {device.chip for device in ctx.report.devices}
    for room in ctx.rooms.rooms:
        for name in modules(room, "kernel"):
            path = disk.find(name) if room.name not in present and not loaded(ctx.root, name) else None
            if path in disk.out_of_tree.values():
                title = f"module {name} is built for this kernel but not loaded; no {room.title} is seen"
                yield Finding(
                    "DRV-NOT-LOADED", "info", title, None, (Evidence(str(path), "present"),), (f"sudo modprobe {name}",)
                )


# -- the driver and its library --


class Pair(NamedTuple):
    """Versions of a loaded module and of a library that must equal it, each with its source."""

    module: Reading
    path: str
    library: str


@rule("DRV-MISMATCH", explains=("LIB-MISSING",))
def mismatch(ctx: RuleContext) -> Iterator[Finding]:
    """A kernel module and a user-space library that must be of one version, and are not."""
    for room in ctx.rooms.rooms:
        module = module_version(ctx, room)
        patterns = hint(room, "LOCKSTEP", ()) if module is not None else ()
        if module is None or not patterns:
            continue
        found = [Pair(module, path, version) for path, version in library_versions(ctx, room, patterns)]
        wrong = [pair for pair in found if parts(pair.library) != parts(str(module.value))]
        if wrong:
            yield _differ(ctx, room, wrong[0], all_wrong=len(wrong) == len(found))
        else:
            yield from _other_client(ctx, room, module)


def module_version(ctx: RuleContext, room: Room) -> Reading | None:
    """Version of the room's loaded kernel module, from sysfs or the driver's own version file."""
    for row in room.table("module"):
        path = row.get("version_file")
        if row.get("role") == "kernel" and path and ctx.root.exists(path):
            reading = ctx.root.read(path)
            if reading.present:
                return reading
    for row in room.table("version"):
        if row.get("what") == "kernel module" and ctx.root.exists(row["file"]):
            match = re.search(row["pattern"], ctx.root.text(row["file"]) or "")
            if match:
                return Reading(match.group(1), row["file"], match.group(0).strip())
    return None


def library_versions(ctx: RuleContext, room: Room, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(path, version) of each library that the loader would take by its fixed name."""
    extra = [folder for row in room.table("library") for folder in row.get("dirs", ())]
    disk = Libraries(ctx.root)
    for pattern in patterns:
        for path in disk.files(pattern, extra):
            version = version_of(ctx.root, path) if fnmatch(path, "*.so.[0-9]") else None
            if version is not None:
                yield path, version


def _differ(ctx: RuleContext, room: Room, pair: Pair, *, all_wrong: bool) -> Finding:
    module, newer = str(pair.module.value), parts(pair.library) > parts(str(pair.module.value))
    name = modules(room, "kernel")[0]
    which = "the library is the newer one" if newer else "the module is the newer one"
    sides = f"kernel module {name} is {module}, user-space library is {pair.library}"
    shown = (*evidence(pair.module), Evidence(pair.path, f"-> {ctx.root.resolve(pair.path).rpartition('/')[2]}"))
    on_disk = [version for version in dkms_versions(ctx.root, name) if parts(version) == parts(pair.library)]
    shown += tuple(Evidence(f"var/lib/dkms/{name}/{version}", "present") for version in on_disk)
    return Finding(
        "DRV-MISMATCH",
        "error" if all_wrong else "warn",
        f"driver/library version mismatch: {sides} ({which})",
        together(list(ctx.devices(room.name)))[0],
        shown,
        _align(ctx, room, name, module, newer=newer),
        consequences=(hint(room, "LOCKSTEP_EFFECT"),) if hint(room, "LOCKSTEP_EFFECT") else (),
    )


def _align(ctx: RuleContext, room: Room, name: str, module: str, *, newer: bool) -> tuple[str, ...]:
    if in_container(ctx):
        return (
            "mount the host's library into the container (container toolkit or CDI) instead of the image's own",
            f"if the host's packages were updated: reboot the host, its module is still {module}",
        )
    helpers = [one for one in reversed(modules(room, "helper")) if loaded(ctx.root, one)]
    unload = f"sudo modprobe -r {' '.join([*helpers, name])} && sudo modprobe {name}"
    hold = f"then hold the packages, so that they only change with a reboot: sudo apt-mark hold '{name}*'"
    if newer:
        return (f"sudo reboot, or unload and reload the modules once nothing uses them: {unload}", hold)
    return (f"install the library packages of version {module}, or load the module of the library's version", hold)


def _other_client(ctx: RuleContext, room: Room, module: Reading) -> Iterator[Finding]:
    """The driver's own complaint about a program whose library has another version, while those found here agree."""
    wording = hint(room, "CLIENT_MISMATCH")
    for match in ctx.log_matches(*wording) if wording else ():
        client, kernel = match["client"], match["module"]
        if parts(kernel) == parts(str(module.value)) and parts(client) != parts(kernel):
            title = f"driver/library version mismatch: a program uses library version {client}, the module is {kernel}"
            fix = ("a container image or a static copy brings its own library: let it use the host's version",)
            shown = (*evidence(module), ctx.log_evidence(match))
            identity, _ = together(list(ctx.devices(room.name)))
            yield Finding("DRV-MISMATCH", "warn", title, identity, shown, fix, "likely")
            return
