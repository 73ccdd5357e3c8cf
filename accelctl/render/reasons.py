"""The few words that stand where a value would: why there is none."""

from __future__ import annotations

from accelctl.model.reading import Reading
from accelctl.model.report import Report

#: Absence kind -> the few words that stand where a number would. ``--why`` tells the rest.
REASONS = {
    "no_node": "no node",
    "no_driver": "no driver",
    "no_permission": "no permission",
    "hidden_by_container": "hidden by container",
    "asleep": "asleep",
    "costly": "not read, it blocks",
    "kernel_too_old": "kernel too old",
    "not_offered": "not offered",
    "not_captured": "not captured",
    "empty": "empty",
    "timed_out": "timed out",
    "unreadable": "unreadable",
    "malformed": "not understood",
    "not_applicable": "not applicable",
    "not_allowed": "never read",
}


def nowhere(report: Report) -> str:
    """What it means that there is not even a file to ask for a fact."""
    kernel = report.machine.get("kernel/release")
    partial = kernel is not None and kernel.absence is not None and kernel.absence.kind == "not_captured"
    return REASONS["not_captured"] if partial and not report.live else REASONS["not_offered"]


def reason(*readings: Reading | None, otherwise: str = "not offered") -> str:
    """Why there is no value, in few words, from the first reading that says so."""
    for reading in readings:
        if reading is not None and reading.absence is not None:
            return REASONS.get(reading.absence.kind, reading.absence.kind)
    return otherwise
