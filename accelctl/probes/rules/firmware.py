"""Firmware that a driver asked for and did not get: not on the disk, or not where the kernel looked at that time.

A driver that starts from the initramfs sees only the firmware in it. So "not found" while the file lies on the disk is
another fault, with another cure, than a file that is not there. Search path: Documentation/driver-api/firmware/
fw_search_path.rst; compressed files .xz and .zst: CONFIG_FW_LOADER_COMPRESS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from accelctl.abi.logrules import owner
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.probes.rules._common import in_container, is_whole, name_list
from accelctl.probes.rules.driver import is_unbound
from accelctl.probes.rules.hints import hint

_BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_NAME = r"(?P<file>[\w.+-]+(?:/[\w.+-]+)*)"
#: Wordings: drivers/base/firmware_loader/main.c; i915 intel_uc_fw.c and xe_uc_fw.c; accel/ivpu/ivpu_fw.c; amdgpu.
_LINES = (
    (
        "Direct firmware load for",
        rf"^\S+ {_BDF}: .*?Direct firmware load for {_NAME} failed with error (?P<error>-\d+)$",
    ),
    ("fetch failed", rf"^\S+ {_BDF}: .*?firmware {_NAME}: fetch failed with error (?P<error>-\d+)$"),
    ("request firmware", rf"^\S+ {_BDF}: .*?Failed to request firmware:? (?P<error>-\d+)$"),
    ("load firmware", rf'^\S+ {_BDF}: .*?Failed to load firmware "{_NAME}".*?(?P<error>-\d+)?$'),
)
#: What a driver says when it stops for good; each is a consequence here.
_FATAL = re.compile(
    r"Fatal error during GPU init|probe (?:with driver \S+|of \S+) failed with error|Device is NOT usable"
)
_ENOENT = "-2"


class Request(NamedTuple):
    """A failed request of one device: the file (None where the driver does not say), the errno and its line."""

    device: str
    file: str | None
    error: str
    line: Evidence


@rule(
    "FW-MISSING",
    "FW-INITRAMFS",
    "FW-LOAD",
    needs="log",
    explains=(
        "DRV-UNBOUND",
        "NODE-MISSING",
        "NODE-HIDDEN",
        "AMD-INIT",
        "INTEL-FIRMWARE",
        "INTEL-WEDGED",
        "HABANA-INIT",
    ),
)
def firmware(ctx: RuleContext) -> Iterator[Finding]:
    """Failed requests of accelerators; equal files of several devices are one finding."""
    groups: dict[tuple[str, str, str | None, str], list[Request]] = {}
    for request in _requests(ctx):
        device = ctx.report.device(request.device)
        if device is not None:
            kind, stopped = _kind(ctx, device, request), _stopped(ctx, device)
            if stopped or kind != "FW-INITRAMFS":  # a driver that runs, and a file that is there by now: healed
                level = "error" if stopped else "info"
                groups.setdefault((kind, level, request.file, request.error), []).append(request)
    for (identity, level, _, _), requests in groups.items():
        yield _finding(ctx, identity, level, requests)


def _requests(ctx: RuleContext) -> Iterator[Request]:
    """One per device and file: a driver often says it in two wordings; a nameless line adds nothing to a named one."""
    found: dict[tuple[str, str | None], Request] = {}
    for literal, pattern in _LINES:
        for match in ctx.log_matches(literal, pattern):
            groups = match.groupdict()
            name = owner(ctx.report, match["device"]) or match["device"]
            key = (name, groups.get("file"))
            found.setdefault(key, Request(*key, groups.get("error") or _ENOENT, ctx.log_evidence(match)))
    named = {name for name, file in found if file is not None}
    return (one for one in found.values() if one.file is not None or one.device not in named)


def _stopped(ctx: RuleContext, device: Device) -> bool:
    """Did the driver give up? One that runs asks for optional files too, and their absence is no fault."""
    return is_unbound(ctx, device) or bool(_last_words(ctx, device))


def _last_words(ctx: RuleContext, device: Device) -> list[str]:
    """Lines by which the driver of a device without one said that it stops."""
    if device.value("driver") is not None:
        return []
    lines = (match.group(0) for match in ctx.log_matches(device.id, rf"^.*{re.escape(device.id)}.*$"))
    return [line for line in lines if _FATAL.search(line)]


def _kind(ctx: RuleContext, device: Device, request: Request) -> str:
    if request.error != _ENOENT:
        return "FW-LOAD"
    return "FW-INITRAMFS" if _on_disk(ctx, device, request) else "FW-MISSING"


def _wanted(ctx: RuleContext, device: Device, request: Request) -> tuple[str, ...]:
    """Files that would have satisfied the driver: the one it named, else those its room knows."""
    if request.file is not None:
        return () if ".." in request.file else (request.file,)
    names = hint(ctx.room(device), "firmware_files")
    return tuple(names(device)) if names else ()


def _folders(ctx: RuleContext) -> list[str]:
    release = ctx.report.value("kernel/release") or ""
    custom = (ctx.root.text("sys/module/firmware_class/parameters/path") or "").strip("/")
    below = (f"updates/{release}", "updates", release, "")
    names = [f"{base}/{folder}" for base in ("lib/firmware", "usr/lib/firmware") for folder in below]
    return [name.rstrip("/") for name in (custom, *names) if name.strip("/")]


def _on_disk(ctx: RuleContext, device: Device, request: Request) -> str | None:
    """Path of the file, compressed or not, if it lies where the kernel looks now."""
    for name in _wanted(ctx, device, request):
        for folder in _folders(ctx):
            for ending in ("", ".zst", ".xz"):
                if ctx.root.exists(f"{folder}/{name}{ending}"):
                    return f"{folder}/{name}{ending}"
    return None


def _sure(ctx: RuleContext) -> bool:
    """Can the folder of firmware be seen as the kernel sees it?"""
    return is_whole(ctx) and not in_container(ctx)


def _finding(ctx: RuleContext, identity: str, level: str, requests: list[Request]) -> Finding:
    first = requests[0]
    devices = [device for request in requests if (device := ctx.report.device(request.device)) is not None]
    device = devices[0]
    wanted = _wanted(ctx, device, first)
    named = f"firmware {first.file}" if first.file else "its firmware" + (f" ({name_list(wanted)})" if wanted else "")
    shown: tuple[Evidence, ...] = (first.line,)
    path = _on_disk(ctx, device, first) if identity == "FW-INITRAMFS" else None
    certainty = "certain"
    if path:
        title = f"{named} is on the disk, but the driver of {device.id} did not find it when it started (initramfs)"
        shown += (Evidence(path, "present"),)
        certainty = "likely"
    elif identity == "FW-MISSING":
        title = f"{named} is missing: the driver of {device.id} asked for it and got error -2"
        shown += tuple(Evidence(f"lib/firmware/{name}", "absent") for name in wanted if _sure(ctx))
        certainty = "certain" if _sure(ctx) else "likely"
    else:
        title = f"{named} could not be loaded for {device.id}: error {first.error}"
    if level == "info":
        title += "; the driver runs without it"
    shown += evidence(device.reading("driver")) if level == "error" else ()
    effects = _effects(devices) if level == "error" else ()
    where = device.id if len(devices) == 1 else None
    return Finding(identity, level, title, where, shown, _fix(ctx, identity, device, wanted), certainty, effects)


def _effects(devices: list[Device]) -> tuple[str, ...]:
    return tuple(f"{one.id} has no driver, so it has no device node" for one in devices if one.value("driver") is None)


_REBUILD = "sudo update-initramfs -u (Debian, Ubuntu) or sudo dracut --force (Fedora, RHEL, SUSE)"


def _fix(ctx: RuleContext, identity: str, device: Device, wanted: tuple[str, ...]) -> tuple[str, ...]:
    room = ctx.room(device)
    again = f"sudo reboot, or: echo {device.id} | sudo tee /sys/bus/pci/drivers_probe"
    if identity == "FW-INITRAMFS":
        return (f"rebuild the initramfs so that it holds the file: {_REBUILD}", again)
    if identity == "FW-LOAD":
        read = f"what the driver said around it: sudo dmesg | grep -F '{device.id}'"
        return (read, "compare the firmware package's version with what this kernel's driver wants", again)
    which = f" that holds {wanted[0]}" if wanted else ""
    how = f" ({room.install['driver']})" if room is not None and "driver" in room.install else ""
    where = "on the host: " if in_container(ctx) else ""
    return (f"{where}install the firmware package{which}{how}", f"rebuild the initramfs: {_REBUILD}", again)
