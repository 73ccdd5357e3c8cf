"""Which devices are to be accepted: those that were named, else every accelerator of this machine.

Asked in a child: the libraries behind OpenCL and PyTorch start threads, and the process that keeps the time must be
able to fork.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from accelctl.abi import compute, registry, trial
from accelctl.abi.ops import Device as OpsDevice
from accelctl.accept.bringup.step import Order
from accelctl.errors import AccelError, NoDeviceError
from accelctl.hal.child import Watch
from accelctl.hal.reader import run_watched
from accelctl.hal.root import open_root
from accelctl.model.bringupreport import Subject
from accelctl.model.device import Device
from accelctl.probes.filters import parse_filters
from accelctl.stress import run, targets
from accelctl.stress.targets import Allowed, Candidate, Found

T = TypeVar("T")
NO_OPS, NO_MEMORY = "this chip offers no ops", "this chip offers no memory to allocate, map and free"
BY_LIBRARY = "its memory belongs to a library; stress drives devices of the kernel (accelctl stress --list)"
PHYSICAL = ("physical", "vf", "partition")
DEADLINE_S = 60.0
"""For the machine; third parties' chips that hang have a deadline each."""


def apart(work: Callable[[], T]) -> T:
    """What ``work`` returns, computed in a child. Raises what it raises."""

    def child(watch: Watch) -> T:
        return work()

    strangers = sum(registry.row(name).foreign for name in registry.names())
    total_s = DEADLINE_S + strangers * trial.deadline_s()
    return run_watched(child, deadline_s=DEADLINE_S, max_restarts=0, total_s=total_s).value


def chosen(order: Order) -> tuple[Subject, ...]:
    """The devices, each once. NoDeviceError (exit 3) that says what was looked for; UsageError for a filter that is
    none."""
    parse_filters([text for text in order.device if not _computes(text)])
    return apart(lambda: _chosen(order))


def _chosen(order: Order) -> tuple[Subject, ...]:
    found: list[Subject] = []
    here = None if order.device == (targets.SIMULATED,) else _machine(order)
    if not order.device:
        found += _accelerators(here)
    for text in order.device:
        found += [_computing(text, here)] if _computes(text) else _fitting(here, text)
    if order.sim:
        run.menu(targets.simulated(), run.Options(sim=dict(order.sim)))  # an option that there is not is told here
    return tuple({one.id: one for one in found}.values())


def allowed(order: Order) -> Allowed:
    """What the command line lifts, in stress' words."""
    return Allowed(order.unproven, order.shared, order.allow_wake)


def _machine(order: Order) -> Found:
    return targets.find(open_root("/", allow_wake=order.allow_wake), allowed(order))


def _computes(text: str) -> bool:
    """Is it the name of a device that a chip's ops tell of, as in sim:0?"""
    name, colon, which = text.partition(":")
    return bool(colon and which) and name in registry.names() and "=" not in text


def _computing(text: str, here: Found | None = None) -> Subject:
    found = compute.named(text)
    manifest, target = registry.manifest(found.name), found.device.target
    plain = Subject(
        text, found.device.title, manifest.name, target.simulated, NO_MEMORY, proven=manifest.proven, ops_device=text
    )
    if text == targets.SIMULATED:
        return replace(plain, memory="", memory_device=text)
    plain = replace(plain, on=_behind(found.device, here) if here is not None else ())
    if "memory" not in manifest.features:
        return plain
    for one in here.candidates if here is not None else ():
        if one.target.chip == target.chip and (
            one.device.id == text or (target.node and one.target.node == target.node)
        ):
            return replace(plain, memory="", memory_device=one.device.id, on=(), left_alone=one.refusal, lift=one.lift)
    return replace(plain, memory=BY_LIBRARY)


def _behind(one: OpsDevice, here: Found) -> tuple[str, ...]:
    """The devices of the machine that a library's device can be: the one with its node, else every one there is. A
    finding about a card must not be lost because the card was named as OpenCL names it."""
    if one.target.simulated or not one.accelerator:
        return ()
    nodes = {path.removeprefix("/") for path in (one.target.node, *one.target.others) if path}
    physical = [device for device in here.scan.devices.values() if device.kind in PHYSICAL]
    same = [device for device in physical if nodes & _nodes(device)]
    return tuple(device.id for device in same or physical)


def _nodes(device: Device) -> set[str]:
    return {str(one.value).removeprefix("/") for name, one in device.facts.items() if name.endswith("/path")}


def candidate(subject: Subject, order: Order) -> Candidate:
    """The same device for stress. Raises NoDeviceError where it has gone since."""
    if subject.memory_device == targets.SIMULATED:
        return targets.simulated()
    for one in _machine(order).candidates:
        if one.device.id == subject.memory_device:
            return one
    raise NoDeviceError(f"{subject.id} is not here any more", "accelctl probe")


# -- devices of the machine --------------------------------------------------------------------------------------------


def _accelerators(here: Found | None) -> list[Subject]:
    """Whole devices that compute, whether they may be opened or not; and what a chip's library finds beside them."""
    assert here is not None
    known = {one.device.id: one for one in here.candidates}
    found = [_subject(device, known.get(device.id)) for device in here.scan.devices.values() if device.kind in PHYSICAL]
    every, problems = compute.everything()
    nodes = {one.target.node for one in here.candidates if one.target.node}
    for one in every:
        if one.device.accelerator and one.device.target.node not in nodes:
            found.append(_computing(one.device.target.id, here))
    if not found:
        raise _none(here, [one.device.target.id for one in every], problems)
    return found


def _fitting(here: Found | None, text: str) -> list[Subject]:
    assert here is not None
    wanted = parse_filters([text])
    known = {one.device.id: one for one in here.candidates}
    found = [_subject(device, known.get(device.id)) for device in here.scan.devices.values() if wanted(device)]
    if not found:
        there = ", ".join(list(here.scan.devices)[:8]) or "no device at all"
        raise NoDeviceError(f"no device fits --device {text}; here: {there}", "accelctl stress --list")
    return found


def _subject(device: Device, one: Candidate | None) -> Subject:
    title = str(device.value("name") or (one.manifest.title if one is not None else "") or device.kind)
    chip = device.chip or ""
    if one is None:
        name, why = _ops_of(chip, "", device.id)
        return Subject(device.id, title, chip, memory=_unloadable(chip), ops=why, ops_device=name)
    name, why = _ops_of(one.target.chip, one.target.node, device.id)
    return Subject(
        device.id,
        title,
        chip,
        one.target.simulated,
        memory=NO_MEMORY if "memory" not in one.manifest.features else "",
        ops=why,
        ops_device=name,
        memory_device=one.device.id,
        left_alone=one.refusal,
        lift=one.lift,
        proven=one.manifest.proven,
    )


def _unloadable(chip: str) -> str:
    if not chip:
        return "no chip of accelctl knows this device"
    if chip not in registry.names():
        return f"accelctl has no back-end for {chip}"
    try:
        registry.manifest(chip)
    except AccelError as error:
        return error.message
    return NO_MEMORY


def _ops_of(chip: str, node: str, identity: str) -> tuple[str, str]:
    """(name of the device among those that compute, why there is none)."""
    try:
        offers = chip in registry.names() and "ops" in registry.manifest(chip).features
        found = compute.devices(chip) if offers else []
    except AccelError as error:
        return "", error.message
    for target in (one.device.target for one in found):
        if target.id == identity or (node and target.node == node):
            return target.id, ""
    return "", NO_OPS


def _none(here: Found, others: list[str], problems: list[str]) -> NoDeviceError:
    """What was looked for, and what is here all the same."""
    virtual = [one.device.id for one in here.candidates if one.only_by_name and not one.refusal]
    text = "no accelerator to accept: looked at PCI, DRM, accel, KFD, the nodes of known drivers and at "
    text += compute.LOOKED_FOR
    text += f"; by name only: {', '.join([*virtual, *others])}" if virtual or others else ""
    text += f"; not usable: {'; '.join(problems)}" if problems else ""
    return NoDeviceError(text, "accelctl bringup --device sim:0 (simulated)")
