"""Which records of a device that is here were written on another platform: one look, nothing is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from accelctl.abi import capabilityfile, compute
from accelctl.abi.capability import Capability
from accelctl.abi.compute import Found
from accelctl.abi.platforms import platform_of, templates_of

GONE = "the chip has no such kernel now"


class Stale(NamedTuple):
    """A record that proves nothing here any more, and that no newer one replaces."""

    kernel: str
    op: str
    device: str
    why: str


def stale(path: str, device: str) -> list[Stale]:
    """Of a file, those of a device that is here; none where there is no file. UsageError for a file that is none,
    NoDeviceError for a device that is not here."""
    records = [one for one in capabilityfile.read(path) if one.platform.device == device]
    if not records:
        return []
    reasons = reasons_of(records, compute.named(device))
    fresh = {(one.kernel, one.op) for one in records if not reasons[one.key]}
    return [
        Stale(one.kernel, one.op, device, reasons[one.key])
        for one in records
        if reasons[one.key] and (one.kernel, one.op) not in fresh
    ]


def reasons_of(records: Iterable[Capability], found: Found) -> dict[tuple[str, str, str, str], str]:
    """Key of a record of this device -> why it is stale; empty: it is fresh."""
    templates = templates_of(found)
    reasons = {}
    for one in records:
        template = templates.get(one.kernel)
        known = template is not None and template.op == one.op
        reasons[one.key] = one.stale(platform_of(found, template)) if template is not None and known else GONE
    return reasons
