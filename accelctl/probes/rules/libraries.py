"""The user-space side: a library that is not found, and programs that quietly ran on the CPU instead.

These lines come from programs, not from the kernel: they are seen when output is handed over with ``--kmsg FILE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch

from accelctl.abi.logrules import LogRule, ids, log_findings
from accelctl.abi.rooms import Room
from accelctl.abi.rules import RuleContext, rule
from accelctl.model.finding import Evidence, Finding
from accelctl.probes.rules._common import in_container
from accelctl.probes.rules.driver import together
from accelctl.probes.rules.hints import hint
from accelctl.probes.rules.library_files import Libraries

#: ld.so's wording (glibc elf/dl-load.c): NAME: cannot open shared object file: No such file or directory.
_LITERAL = "cannot open shared object file"
_PATTERN = r"^.*?(?<![^\s:/])(?P<name>lib[^\s:/]{1,120}): cannot open shared object file.*$"

LOG_RULES = (
    LogRule(
        "CPU-FALLBACK",
        "error",
        "CPU device will be used",
        r"^.*?\b(?P<kind>\w+) device is not set properly[.,]? CPU device will be used.*$",
        lambda match: (
            f"the program did not run on the {match['kind']}: it fell back to the CPU, so its results say nothing"
        ),
        (
            "install the framework build that was made for this chip and its generation",
            "let a check of the device's own counters (accelctl top) confirm where the next run happens",
        ),
        device=None,
        source="PaddlePaddle/Paddle issue 73315; MonkeyOCR issue 242 (the same line for CUDA)",
        split=True,
    ),
)


@rule(*ids(LOG_RULES), needs="log")
def fallback(ctx: RuleContext) -> Iterator[Finding]:
    """The line a framework prints before it silently computes on the CPU."""
    yield from log_findings(ctx, LOG_RULES)


@rule("LIB-MISSING", needs="log")
def not_opened(ctx: RuleContext) -> Iterator[Finding]:
    """A library of a chip's runtime that the loader did not find."""
    seen: set[str] = set()
    for match in ctx.log_matches(_LITERAL, _PATTERN):
        name = match["name"]
        room = _room_of(ctx, name)
        if room is not None and name not in seen:
            seen.add(name)
            yield _missing(ctx, room, name, ctx.log_evidence(match))


def _room_of(ctx: RuleContext, name: str) -> Room | None:
    """The room a library belongs to, by its rows or its family's prefixes; one that is present goes first."""
    present = {device.chip for device in ctx.report.devices}
    rooms = sorted(ctx.rooms.rooms, key=lambda room: room.name not in present)
    for room in rooms:
        if any(fnmatch(name, row["name"]) for row in room.table("library")) or name.startswith(_prefixes(room)):
            return room
    return None


def _prefixes(room: Room) -> tuple[str, ...]:
    return tuple(hint(room, "LIBRARY_PREFIXES", ()))


def _missing(ctx: RuleContext, room: Room, name: str, line: Evidence) -> Finding:
    extra = [folder for row in room.table("library") for folder in row.get("dirs", ())]
    stem = re.sub(r"\.so.*$", ".so*", name)
    disk = Libraries(ctx.root)
    there, other = next(disk.files(name, extra), None), next(disk.files(stem, extra), None)
    title = f"user-space runtime incomplete: {name} was not found by the loader"
    shown: tuple[Evidence, ...] = (line,)
    install = room.install.get("runtime", f"the runtime of the {room.title}")
    fix: tuple[str, ...] = (
        f"install what it is part of: {install}",
        f"then: ldconfig -p | grep {stem.removesuffix('*')}",
    )
    if there is not None:
        shown += (Evidence(there, "present"),)
        folder = there.rpartition("/")[0]
        fix = (f"tell the loader where it is: export LD_LIBRARY_PATH=/{folder}:$LD_LIBRARY_PATH", "or: sudo ldconfig")
    elif other is not None:
        shown += (Evidence(other, "present"),)
        fix = (f"another version is there (/{other}): install the one that provides {name}", *fix[1:])
    identity, _ = together(list(ctx.devices(room.name)))
    return Finding("LIB-MISSING", "error", title, identity, shown, fix)


@rule("LIB-ABSENT")
def halves(ctx: RuleContext) -> Iterator[Finding]:
    """The driver's management library is there, its compute library is not: worth knowing, no fault by itself."""
    present = {device.chip for device in ctx.report.devices if device.kind in ("physical", "vf")}
    disk = Libraries(ctx.root)
    for room in (room for room in ctx.rooms.rooms if room.name in present):
        roles = {row.get("role") for row in room.table("library")}
        if "management" not in roles or not roles & {"compute", "runtime"}:
            continue
        # Libraries that must equal the driver come with it; only a container may be given one without the other.
        if hint(room, "LOCKSTEP") and not in_container(ctx):
            continue
        management = [path for path in disk.by_role(room, "management").values() if path is not None]
        if management and not any(disk.by_role(room, "compute", "runtime").values()):
            yield _only_managed(ctx, room, management[0])


def _only_managed(ctx: RuleContext, room: Room, path: str) -> Finding:
    rows = room.table("library")
    names = ", ".join(row["name"].removesuffix("*") for row in rows if row.get("role") in ("compute", "runtime"))
    title = f"the {room.title} can be managed here but no compute runtime is installed ({names} not found)"
    fix: tuple[str, ...] = (room.install.get("runtime", "install its runtime"),)
    if in_container(ctx):
        fix = ("take an image that holds the runtime, or let the container toolkit mount it", *fix)
    identity, _ = together(list(ctx.devices(room.name)))
    return Finding("LIB-ABSENT", "info", title, identity, (Evidence(path, "present"),), fix, "likely")
