"""`accelctl backends check`: does a chip do what it promises? The suites of abi.conformance on one device, each
contract in a child process of its own, so that one that hangs or crashes costs only its own answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from accelctl.abi import compute, conformance, registry, rooms, telemetry
from accelctl.abi.handshake import Chip
from accelctl.abi.lifecycle import Env, Session, Target
from accelctl.abi.registry import label
from accelctl.abi.telemetry import Seat
from accelctl.abi.testbench import Check
from accelctl.abi.trial import of_its_own, said
from accelctl.abi.version import CONTRACTS
from accelctl.accept.plugins import listing
from accelctl.errors import AccelError, NoDeviceError
from accelctl.hal.child import Watch
from accelctl.hal.devfile import SYSCALLS
from accelctl.hal.reader import Event, Finished, Message, Stuck
from accelctl.hal.root import open_root
from accelctl.memory.va import space
from accelctl.model.device import Device
from accelctl.model.pluginreport import UNTRIED, CheckReport, CheckRow, ContractRow
from accelctl.model.stressreport import FAIL, PASS, SKIP
from accelctl.probes.filters import parse_filters
from accelctl.stress import targets

SILENT_S = 60.0
"""A contract that says nothing for so long hangs; a first kernel may have to be built."""
Tick = Callable[[str], None]


class Place(NamedTuple):
    """Where the contracts are tried: a device, and what probe knows of it (None: it is in this process only)."""

    target: Target
    device: Device | None = None


def check(name: str, device: str = "", tick: Tick = lambda contract: None) -> CheckReport:
    """Everything that a chip promises, on one device. AbiError where the chip is refused; NoDeviceError where the
    device that was asked for is not here."""
    if name not in registry.names() and any(room.name == name for room in rooms.all_rooms()):
        raise NoDeviceError(
            f"{name} is known by data only: there is no code to check", f"accelctl backends show {name}"
        )
    said = listing.manifest(name)
    row = registry.row(name)
    place = _place(name, said["features"], device)
    promised = [contract for contract in CONTRACTS if contract in said["features"]]
    checks: list[CheckRow] = []
    for contract in promised:
        tick(contract)
        checks += _tried(name, contract, place) if place is not None else []
    rows = tuple(_observed(contract, contract in promised, checks) for contract in CONTRACTS)
    simulated = said["tier"] == "simulated" or (place is not None and place.target.simulated)
    where = place.target.id if place is not None else ""
    return CheckReport(name, label(name, row), where, simulated, rows, tuple(checks))


def _observed(contract: str, promised: bool, checks: list[CheckRow]) -> ContractRow:
    mine = [one.result for one in checks if one.contract == contract]
    if not promised:
        return ContractRow(contract, False, "-", False)
    if not mine:
        return ContractRow(contract, True, f"{UNTRIED}: no device", False)
    counts = {word: mine.count(result) for word, result in (("passed", "pass"), ("failed", FAIL), ("skipped", SKIP))}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if contract == "memory" and not counts["failed"] and not any(map(_allocates, checks)):
        words = f"{UNTRIED}: nothing can be allocated here"
    return ContractRow(contract, True, words, counts["failed"] > 0)


def _allocates(one: CheckRow) -> bool:
    """Did a lifecycle run once? (The name is conformance's.)"""
    return one.contract == "memory" and one.name.endswith(": cycle") and one.result == PASS


def _place(name: str, features: list[str], device: str) -> Place | None:
    """The device; without one that is asked for, the first that the chip has here."""
    if device:
        place = _virtual(name, device) or _probed(name, device)
        if place is None:
            raise NoDeviceError(f"{device}: no device of chip {name} fits", f"accelctl backends show {name}")
        return place
    if "ops" in features:
        try:
            found = compute.devices(name)
        except NoDeviceError:
            found = []
        if found:
            return Place(found[0].device.target)
    if name == "sim":
        return Place(targets.simulated().target)
    return _probed(name, "")


def _virtual(name: str, device: str) -> Place | None:
    if not device.startswith(f"{name}:"):
        return None
    try:
        return Place(compute.named(device).device.target)
    except NoDeviceError:
        return Place(targets.simulated().target) if device == targets.SIMULATED == f"{name}:0" else None


def _probed(name: str, device: str) -> Place | None:
    """A device of this machine; none that somebody uses, or that is asleep."""
    found = targets.find(open_root("/"), targets.Allowed(unproven=True))
    mine = [one for one in found.candidates if one.target.chip == name]
    if device:
        wanted = parse_filters([device])
        mine = [one for one in mine if wanted(one.device)]
        refused = [one for one in mine if one.refusal]
        if refused and len(refused) == len(mine):
            raise NoDeviceError(f"{refused[0].device.id} is left alone: {refused[0].refusal}", refused[0].lift or None)
    usable = [one for one in mine if not one.refusal]
    return Place(usable[0].target, usable[0].device) if usable else None


def _tried(name: str, contract: str, place: Place) -> Iterator[CheckRow]:
    """The checks of one contract as they come; how the child ended, where it ended early."""

    def work(watch: Watch) -> str:
        """Only text leaves it: whatever is of a stranger's class would bring that class in here."""
        try:
            chip = registry.chips().load_tried(name)
            for one in _SUITES[contract](chip, place):
                watch.send(json.dumps([str(text) for text in one]))
        except BaseException as error:
            return said(error)
        return ""

    last = "its first check"
    with of_its_own(work, SILENT_S) as child:
        while isinstance(event := child.poll(SILENT_S), Message):
            row = CheckRow(contract, *json.loads(event.value))
            yield row
            last = f"what follows {row.name!r}"
    if not isinstance(event, Finished) or event.value:
        yield CheckRow(contract, f"{contract}: the rest", FAIL, f"{last} {_end(event)}")


def _end(event: Event | None) -> str:
    if isinstance(event, Finished):
        return f"failed: {event.value}"
    return f"ended the process ({event.state})" if isinstance(event, Stuck) else f"did not come back in {SILENT_S:g} s"


def _env(chip: Chip, target: Target) -> Env:
    """As for a real run. A chip that brings its own system calls (a simulated one) gets them."""
    plain = Env(space=space)
    own = getattr(chip.memory, "syscalls", None)
    return plain if own is None else Env(own(target, Env(SYSCALLS, plain.space)), plain.space)


def _memory(chip: Chip, place: Place) -> Iterator[Check]:
    yield from conformance.memory_checks(chip, place.target, _env(chip, place.target))


def _queue(chip: Chip, place: Place) -> Iterator[Check]:
    yield from conformance.check_queue(chip, place.target, _env(chip, place.target))


def _ops(chip: Chip, place: Place) -> Iterator[Check]:
    assert chip.ops is not None
    prepare = getattr(chip.ops, "prepare", None)
    if prepare is not None:
        prepare(place.target)
    yield from conformance.check_ops(chip, place.target, _env(chip, place.target))


def _schedule(chip: Chip, place: Place) -> Iterator[Check]:
    yield from conformance.check_schedule(chip, place.target, _env(chip, place.target))


def _telemetry(chip: Chip, place: Place) -> Iterator[Check]:
    if place.device is not None:
        yield from _told(chip, Seat(place.device, open_root("/")))
        return
    session: Session | None = None
    device = Device(place.target.id, "virtual", "", chip=chip.manifest.name)
    try:
        session = chip.memory.open(place.target, _env(chip, place.target)) if chip.memory is not None else None
        yield from _told(chip, Seat(device, None, session))
    except AccelError as error:
        yield Check("telemetry: a session", FAIL, error.message)
    finally:
        if session is not None:
            session.close()


def _told(chip: Chip, seat: Seat) -> Iterator[Check]:
    """The suite, and: of this device it says a number, or why there is none."""
    yield from conformance.check_telemetry(chip, seat)
    assert chip.telemetry is not None
    name, draft = "telemetry: says something", telemetry.Draft()
    try:
        gauge = chip.telemetry.open(seat)
        gauge.sample(draft, telemetry.Tick(time.time_ns(), time.monotonic_ns(), 0, lambda path: None))
        gauge.close()
    except Exception as error:
        yield Check(name, FAIL, said(error))
        return
    if draft.sources or draft.absences:
        yield Check(name, PASS)
    else:
        yield Check(name, FAIL, "no number of the device, and no reason why there is none")


_SUITES: dict[str, Callable[[Chip, Place], Iterator[Check]]] = {
    "memory": _memory,
    "queue": _queue,
    "ops": _ops,
    "telemetry": _telemetry,
    "schedule": _schedule,
}
