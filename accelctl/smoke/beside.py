"""What `accelctl smoke` does instead of running ops through the service: which device, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.abi import compute
from accelctl.errors import UsageError
from accelctl.hal.endings import in_order
from accelctl.model.alignreport import AlignReport
from accelctl.model.semanticsreport import SemanticsReport
from accelctl.smoke.semantics import Tick, run


def device_for(given: Sequence[str], *, semantics: bool, intents: Sequence[str], align: str) -> str:
    """The one device that these are about: as it was named, else the first accelerator that is here. UsageError for
    options that do not go together, NoDeviceError."""
    if semantics and align:
        raise UsageError("--semantics and --align are two runs", "give one of them")
    if intents and not semantics:
        raise UsageError("--intent belongs to --semantics")
    if len(given) > 1:
        raise UsageError(f"--device {' '.join(given)}: one device at a time")
    return given[0] if given else compute.choose([]).device.target.id


def semantics(device: str, intents: Sequence[str], tick: Tick) -> SemanticsReport:
    """See smoke.semantics."""
    with in_order():
        return run(device, tick, intents)


def align(device: str, other: str, tick: Tick, seed: int) -> AlignReport:
    """See smoke.align, which loads numpy."""
    from accelctl.smoke import align as aligning

    with in_order():
        return aligning.run(device, other, tick, seed)
