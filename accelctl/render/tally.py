"""Counts that every output shares: devices by kind, findings by level, and how each accelerator fares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from accelctl.model.device import KINDS, Device
from accelctl.model.finding import LEVELS, Finding, rank
from accelctl.model.report import Report

#: What counts as an accelerator: whole devices. VFs and partitions are parts of one, virtual devices compute nothing.
WHOLE = "physical"
PARTS = ("vf", "partition")


class Tally(NamedTuple):
    """``health`` counts accelerators by the worst level of their findings, where info is ok too."""

    kinds: dict[str, int]
    levels: dict[str, int]
    worst: str
    health: dict[str, int]


def tally(report: Report) -> Tally:
    """Count once; all keys of KINDS and LEVELS are there, also with zero."""
    kinds = dict.fromkeys(KINDS, 0)
    health = {level: 0 for level in LEVELS if level != "info"}
    for device in report.devices:
        kinds[device.kind] += 1
        if device.kind == WHOLE:
            health[health_of(report, device)] += 1
    levels = dict.fromkeys(LEVELS, 0)
    for finding in report.findings:
        levels[finding.level] += 1
    return Tally(kinds, levels, worst(report.findings), health)


def worst(findings: Iterable[Finding]) -> str:
    """The worst level among findings, "ok" without any."""
    return max((finding.level for finding in findings), key=rank, default="ok")


def health_of(report: Report, device: Device) -> str:
    """The worst level among one device's findings; info is no complaint."""
    level = worst(finding for finding in report.findings if finding.device == device.id)
    return "ok" if level == "info" else level


def at_least(report: Report, level: str) -> bool:
    """True when a finding is at ``level`` or worse."""
    return any(rank(finding.level) >= rank(level) for finding in report.findings)
