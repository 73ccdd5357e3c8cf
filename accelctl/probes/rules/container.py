"""Nodes that are not there: hidden by the container, or never made on this machine.

In a container sysfs shows the host's devices, but /dev holds only what was given. That is no fault, only a fact with a
recipe; the same absence on a host is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch

from accelctl.abi.rooms import Room, Row
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.probes.rules._common import in_container, name_list
from accelctl.probes.rules.driver import judged
from accelctl.probes.rules.hints import hint
from accelctl.probes.rules.kernel_modules import modules


def _visible(ctx: RuleContext) -> bool:
    """Can a missing node be told from one that was not captured?"""
    root = ctx.root
    return root.live or bool(root.manifest.nodes) or (root.manifest.complete and root.exists("dev"))


@rule("NODE-MISSING", "NODE-HIDDEN")
def missing(ctx: RuleContext) -> Iterator[Finding]:
    """Devices with a driver and without the node that programs compute through."""
    if not _visible(ctx):
        return
    bound: dict[str, list[Device]] = {}
    for device, room in judged(ctx):
        if device.value("driver") in modules(room, "kernel", "open"):
            bound.setdefault(room.name, []).append(device)
    for name, devices in bound.items():
        room = ctx.rooms.by_name[name]
        lacking = [device for device in devices if _lacks(ctx, device, room)]
        paths = _own_paths(lacking) or [
            "/" + row["glob"].replace("[0-9]*", "N") for row in _rows(room, lacking[:1])[:1]
        ]
        shown = _shown(lacking)
        if not lacking:
            lacking, paths = devices, _shared(ctx, room)
            shown = tuple(Evidence(path.lstrip("/"), "absent") for path in paths)
        if paths:
            yield _finding(ctx, room, lacking, paths, shown)


def _rows(room: Room, devices: list[Device]) -> list[Row]:
    """Rows of the node that makes a device usable: "device" where a room has such nodes, "render" where it has not."""
    rows = [row for row in room.table("node") if row.get("per_device")]
    opened = any(device.value("driver") in modules(room, "open") for device in devices)
    for role in ("render",) if opened else ("device", "render", "compute"):
        found = [row for row in rows if row.get("role") == role]
        if found:
            return found
    return []


def _lacks(ctx: RuleContext, device: Device, room: Room) -> bool:
    """True where the node must exist and does not: its minor is in sysfs, or the driver makes nodes without DRM."""
    rows = _rows(room, [device])
    if not rows:
        return False
    if all(row["glob"].startswith(("dev/dri/", "dev/accel/")) for row in rows):
        own = _fitting(device, rows)
        return bool(own) and not any(reading.present for reading in own)
    return not any(reading.present for reading in _fitting(device, rows)) and not _loose(ctx, rows)


def _fitting(device: Device, rows: list[Row]) -> list[Reading]:
    """Facts of the device's nodes that fit the rows, present or not."""
    found = []
    for key, reading in device.under("nodes").items():
        path = "dev/" + key.removeprefix("nodes/").removesuffix("/path")
        if key.endswith("/path") and any(fnmatch(path, row["glob"]) for row in rows):
            found.append(reading)
    return found


def _loose(ctx: RuleContext, rows: list[Row]) -> bool:
    """Are there nodes of these rows that could not be joined to one device? Then nothing is known of any single one."""
    for row in rows:
        folder, _, pattern = row["glob"].rpartition("/")
        names = [path.rpartition("/")[2] for path in ctx.root.manifest.nodes if path.rpartition("/")[0] == folder]
        if any(fnmatch(name, pattern) for name in (*names, *ctx.root.listdir(folder))):
            return True
    return False


def _shared(ctx: RuleContext, room: Room) -> list[str]:
    """Compute nodes for all devices (/dev/kfd) whose driver has registered them while the node is not there."""
    registered = set(re.findall(r"^ *\d+ (\S+)$", ctx.root.text("proc/devices") or "", re.MULTILINE))
    found = []
    for row in room.table("node"):
        name = row["glob"].rpartition("/")[2]
        wanted = row.get("role") == "compute" and not row.get("per_device") and not ctx.root.exists(row["glob"])
        if wanted and (name in registered or ctx.root.exists(f"sys/class/{name}/{name}/dev")):
            found.append("/" + row["glob"])
    return found


def _own_paths(devices: list[Device]) -> list[str]:
    keys = (key for device in devices for key, one in device.under("nodes").items() if not one.present)
    return ["/dev/" + key.removeprefix("nodes/").removesuffix("/path") for key in keys if key.endswith("/path")]


def _shown(devices: list[Device]) -> tuple[Evidence, ...]:
    if not devices:
        return ()
    gone = [one for key, one in devices[0].under("nodes").items() if key.endswith("/path") and not one.present]
    return evidence(devices[0].reading("driver"), *gone[:2])


def _finding(
    ctx: RuleContext, room: Room, devices: list[Device], paths: list[str], shown: tuple[Evidence, ...]
) -> Finding:
    identity = devices[0].id if len(devices) == 1 else None
    names, places = name_list([device.id for device in devices]), name_list(paths)
    if in_container(ctx):
        title = f"not given to this container: {places}; {names} ({room.title}) shows in /sys only"
        return Finding("NODE-HIDDEN", "info", title, identity, shown, _recipes(room, paths))
    command = hint(room, "NODES_ON_DEMAND")
    if command:
        title = f"no node {places} for {names} yet: this driver's nodes are made at first use"
        return Finding("NODE-MISSING", "info", title, identity, shown, (command,), "likely")
    title = f"the driver runs {names}, but its device node is missing: {places}"
    fix = (
        "is udev running, is /dev a devtmpfs? findmnt /dev; systemctl status systemd-udevd",
        "sudo udevadm trigger --action=add && sudo udevadm settle",
    )
    return Finding("NODE-MISSING", "error", title, identity, shown, fix)


def _recipes(room: Room, paths: list[str]) -> tuple[str, ...]:
    """How the device is given to a container, by the engine's way of saying it."""
    known = hint(room, "CONTAINER") or {}
    plain = f"docker run {' '.join('--device ' + path for path in paths[:4])} ..."
    recipes = {"docker": plain, **known}
    return tuple(f"{how}: {recipes[how]}" for how in ("docker", "cdi", "kubernetes") if how in recipes)
