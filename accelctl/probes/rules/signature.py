"""Kernel modules that were built for this kernel and refused because nobody it trusts has signed them.

Wordings: kernel/module/signing.c ("Loading of REASON is rejected", later "NAME: loading of REASON is rejected") and
security/lockdown ("unsigned module loading is restricted"). "module verification failed ... tainting kernel" is not
among them: that module was loaded all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from accelctl.abi.rooms import Room
from accelctl.abi.rules import RuleContext, evidence, rule
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.probes.rules.driver import is_unbound, judged, together
from accelctl.probes.rules.kernel_modules import Disk, loaded, modules

_REASON = r"(?:unsigned module|module with (?:unavailable key|unsupported crypto))"
_LINES = (
    ("is rejected", rf"^(?:(?P<module>[\w-]+): )?[Ll]oading of {_REASON} is rejected$"),
    ("module loading is restricted", r"^Lockdown: \S+: unsigned module loading is restricted.*$"),
)
#: Where the signing key of locally built modules lies: Ubuntu's shim-signed, dkms 3, Fedora's akmods.
_KEYS = ("var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub", "etc/pki/akmods/certs/public_key.der")


class Suspect(NamedTuple):
    """A module that is not in the kernel although it should be: its file (None where the disk cannot be seen)."""

    room: Room
    module: str
    path: str | None
    devices: tuple[Device, ...]


class _Line(NamedTuple):
    """A refusal: the module it names, if it does, and the line."""

    module: str | None
    shown: Evidence


@rule("DRV-SIGNATURE", explains=("DRV-NOT-LOADED", "NODE-MISSING", "NODE-HIDDEN", "LIB-MISSING"))
def refused(ctx: RuleContext) -> Iterator[Finding]:
    """A line of the log about a refused module, together with a module that is not loaded."""
    lines = list(_lines(ctx))
    if not lines and not (ctx.log is None and _locked(ctx)):
        return
    suspects = list(_suspects(ctx))
    for suspect in suspects:
        own = [line.shown for line in lines if line.module in (None, suspect.module)]
        if own or not lines:
            yield _finding(ctx, suspect, own[-1:], alone=len(suspects) == 1)


def _lines(ctx: RuleContext) -> Iterator[_Line]:
    for literal, pattern in _LINES:
        for match in ctx.log_matches(literal, pattern):
            name = match.groupdict().get("module")
            yield _Line(name.replace("-", "_") if name else None, ctx.log_evidence(match))


def _locked(ctx: RuleContext) -> bool:
    """Secure Boot and lockdown together: then only signed modules are loaded (kernel_lockdown(7))."""
    lockdown = str(ctx.report.value("kernel/lockdown") or "")
    return ctx.report.value("secure_boot") is True and ("[integrity]" in lockdown or "[confidentiality]" in lockdown)


def _suspects(ctx: RuleContext) -> Iterator[Suspect]:
    """Modules built for this kernel and not loaded; without a view of the disk, those of unbound devices."""
    disk = Disk(ctx.root, ctx.report.value("kernel/release"))
    waiting: dict[str, list[Device]] = {}
    for device, room in judged(ctx):
        if is_unbound(ctx, device):
            waiting.setdefault(room.name, []).append(device)
    for room in ctx.rooms.rooms:
        for name in modules(room, "kernel"):
            if loaded(ctx.root, name):
                continue
            path = disk.find(name) if disk.out_of_tree else None
            built = path is not None and path in disk.out_of_tree.values()
            if built or (not disk.known and room.name in waiting):
                yield Suspect(room, name, path, tuple(waiting.get(room.name, ())))


def _finding(ctx: RuleContext, suspect: Suspect, lines: list[Evidence], *, alone: bool) -> Finding:
    secure = ctx.report.machine.get("secure_boot")
    on = secure is not None and secure.value is True
    why = "while Secure Boot is on" if on else "and this kernel only loads signed modules"
    identity, effects = together(suspect.devices) if suspect.devices else (None, ())
    shown = (
        *lines,
        *(evidence(secure) if on else evidence(ctx.report.machine.get("kernel/lockdown"))),
        Evidence(suspect.path or f"sys/module/{suspect.module}", "present" if suspect.path else "absent"),
    )
    certainty = "possible" if not lines else "certain" if suspect.path and alone else "likely"
    title = f"the signature of module {suspect.module} is not trusted {why}: the kernel refuses to load it"
    if not lines:
        title = f"module {suspect.module} is built but not loaded {why}: its signing key may not be enrolled"
    return Finding("DRV-SIGNATURE", "error", title, identity, shown, _enrol(ctx, suspect.module), certainty, effects)


def _enrol(ctx: RuleContext, module: str) -> tuple[str, ...]:
    key = next((path for path in _KEYS if ctx.root.exists(path)), None)
    place = (
        f"/{key}" if key else "KEY.der (the certificate that the build signed with, /" + " or /".join(_KEYS[:2]) + ")"
    )
    return (
        f"enrol the signing key: sudo mokutil --import {place}",
        "sudo reboot, choose Enroll MOK in the blue screen, confirm with the password given before",
        f"sudo modprobe {module}; or else sign it with a key that is enrolled (mokutil --list-enrolled)",
    )
