"""The part of a kernel log that a capture keeps: lines about accelerators, PCI, IOMMU, firmware and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from accelctl.abi.rooms import Room
from accelctl.accept.redact import Redactor
from accelctl.hal.kmsg import KernelLog, LogLine
from accelctl.model.report import Report

MAX_LINES = 20_000
"""Newest lines kept: a storm of error lines is as clear with fewer."""

_GENERIC = (
    r"\bpci(eport|ehp)?\b|\bPCIe\b|\bAER\b|\bDPC\b|\bBAR \d|\bDMAR\b|\bAMD-Vi\b|\biommu\b|\bvfio\b|\bdrm\b|"
    r"\bfirmware\b|\bmodule\b|\bkfd\b|\bXid\b|NVRM|\bGPU\b|\bNPU\b|Secure ?boot|lockdown|hung_task|"
    r"blocked for more than|soft lockup|hard LOCKUP|Machine [Cc]heck|\bmce:|Hardware Error|thermal|throttl|"
    r"out of memory|oom-kill|page allocation failure|Comm:|key was rejected|unavailable key|taint"
)
#: Lines that would tell more than they help, whatever else they hold.
_NEVER = re.compile(r"command line|BOOT_IMAGE|hostname|systemd\[|audit|root=|machine-id|SerialNumber:", re.I)


def relevant(log: KernelLog, report: Report, rooms: Iterable[Room]) -> list[LogLine]:
    """Lines that matter, in order: by word, by driver, by address of a device or of a bridge above it, and whatever a
    finding has as its evidence."""
    words = {row["name"] for room in rooms for table in ("module",) for row in room.table(table)}
    words |= {row["driver"] for room in rooms for row in room.table("platform") if "driver" in row}
    addresses = {device.id for device in report.devices}
    addresses |= {key.split("/")[1] for device in report.devices for key in device.under("upstream")}
    pattern = re.compile("|".join([_GENERIC, *(rf"\b{re.escape(word)}\b" for word in sorted(words | addresses))]), re.I)
    quoted = {
        line.strip() for finding in report.findings for one in finding.evidence for line in one.raw.splitlines() if line
    }
    kept = [
        line
        for line in log.lines
        if line.text.strip() in quoted or (pattern.search(line.text) and not _NEVER.search(line.text))
    ]
    return kept[-MAX_LINES:]


def log_text(lines: Iterable[LogLine], redactor: Redactor) -> str:
    """As ``dmesg`` prints it, which is what ``--kmsg`` and ``--root`` read."""
    return "".join(f"{_stamp(line)}{redactor.log_line(line.text)}\n" for line in lines)


def _stamp(line: LogLine) -> str:
    level = "" if line.priority is None else f"<{line.priority}>"
    return level + ("" if line.time_s is None else f"[{line.time_s:12.6f}] ")
