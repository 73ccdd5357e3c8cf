"""What `accelctl smoke` does instead of running ops through the service: which device, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelctl.abi import compute
from accelctl.errors import UsageError
from accelctl.hal.endings import in_order
from accelctl.model.alignreport import AlignReport
from accelctl.model.semanticsreport import SemanticsReport
from accelctl.smoke.semantics import Tick, run

_NAMES = ("target", "op", "dtype", "case", "long", "trace", "save", "list_cases")
OURS = {f"--{name.replace('_', '-')}": name for name in _NAMES}
"""Option of a run of ops -> the command's parameter; beside --model."""


class Wanted(NamedTuple):
    """What is asked for instead of ops. ``ours``: options of a run of ops -> what they were given, or nothing."""

    device: tuple[str, ...] = ()
    semantics: bool = False
    intents: tuple[str, ...] = ()
    align: str = ""
    seed: int = 0
    ours: Mapping[str, object] = {}


def wanted(given: Mapping[str, Any]) -> Wanted:
    """From the parameters of the command."""
    ours = {option: given[name] for option, name in OURS.items()} | {"--no-model": not given["model"]}
    device, intents = tuple(given["device"] or ()), tuple(given["intent"] or ())
    return Wanted(device, given["semantics"], intents, given["align"], given["seed"], ours)


def device_for(asked: Wanted) -> str:
    """The one device that these are about: as it was named, else the first accelerator that is here. UsageError for
    options that do not go together, NoDeviceError."""
    if asked.semantics and asked.align:
        raise UsageError("--semantics and --align are two runs", "give one of them")
    if asked.intents and not asked.semantics:
        raise UsageError("--intent belongs to --semantics")
    given = [option for option, value in asked.ours.items() if value]
    given += ["--seed"] if asked.semantics and asked.seed else []
    if given:
        which = "--semantics" if asked.semantics else "--align"
        raise UsageError(f"{given[0]} does not go with {which}", "accelctl smoke --help")
    if len(asked.device) > 1:
        raise UsageError(f"--device {' '.join(asked.device)}: one device at a time")
    return asked.device[0] if asked.device else compute.choose([]).device.target.id


def semantics(device: str, intents: Sequence[str], tick: Tick) -> SemanticsReport:
    """See smoke.semantics."""
    with in_order():
        return run(device, tick, intents)


def align(device: str, other: str, tick: Tick, seed: int) -> AlignReport:
    """See smoke.align, which loads numpy."""
    from accelctl.smoke import align as aligning

    with in_order():
        return aligning.run(device, other, tick, seed)
