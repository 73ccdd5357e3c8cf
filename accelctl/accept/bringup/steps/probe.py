"""Step "probe": what is in the machine, and what is wrong with it, as `accelctl probe` says it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

from accelctl.accept.bringup.step import FAIL, PASS, Came, Job
from accelctl.accept.probing import look
from accelctl.model.bringupreport import BAD, Fact, Subject
from accelctl.model.finding import Finding, rank
from accelctl.model.reading import STABLE, VOLATILE, Reading
from accelctl.model.report import Report

PROMOTED = "error"
NODE_RULES = ("NODE-PERMISSION", "NODE-CGROUP", "NODE-LSM")


def work(job: Job) -> Came:
    """Findings of the machine and of the devices that are to be accepted; facts of both, with their sources."""
    report, _ = look("/", allow_wake=job.order.allow_wake, kmsg=job.order.kmsg or None)
    known = {name for one in job.subjects for name in _names(one)}
    devices = [one for one in report.devices if one.id in known]
    findings = tuple(_judged(one, job.subjects) for one in report.findings if _concerns(one, job.subjects))
    bad = [one for one in findings if rank(one.level) >= BAD]
    facts = (*_facts("", report.machine), *(fact for one in devices for fact in _facts(one.id, one.facts)))
    said = f"{len(report.devices)} devices seen, {report.rules_run} rules run"
    if report.rules_not_run:
        said += f"; {len(report.rules_not_run)} checks of the kernel log not made"
    if bad:
        said = bad[0].title
    return Came(FAIL if bad else PASS, said, findings, facts, command=_command(job), fingerprint=fingerprint(report))


def _command(job: Job) -> str:
    ids = [one.memory_device for one in job.subjects if one.memory_device and not one.simulated]
    return " ".join(["accelctl probe", *(f"--device {identity}" for identity in ids)])


def _names(subject: Subject) -> set[str]:
    """Its names in probe's report."""
    return {subject.memory_device or subject.id, *(subject.on if len(subject.on) == 1 else ())}


def _concerns(finding: Finding, subjects: tuple[Subject, ...]) -> bool:
    """Of the machine, or of one of the devices. Where one can be any of several, what is an error of any of them."""
    if finding.device is None or any(finding.device in _names(one) for one in subjects):
        return True
    return rank(finding.level) >= BAD and any(finding.device in one.on for one in subjects)


def _judged(finding: Finding, subjects: tuple[Subject, ...]) -> Finding:
    """What nobody needs to open is a remark of probe's; of a device that was asked for it is an error."""
    asked = finding.device is not None and finding.device in {one.memory_device for one in subjects}
    if asked and finding.id in NODE_RULES and rank(finding.level) < BAD:
        return finding._replace(level=PROMOTED)
    return finding


def _facts(owner: str, facts: dict[str, Reading]) -> Iterator[Fact]:
    for name, reading in facts.items():
        gone = reading.absence
        raw = reading.raw or ""
        if gone is not None:
            raw = gone.kind.replace("_", " ") + (f" ({gone.errno})" if gone.errno else "")
        yield Fact(name, _plain(reading.value), reading.source, raw, reading.unit or "", owner)


def _plain(value: object) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, (str, int, float, bool)) else json.dumps(value, sort_keys=True)


def fingerprint(report: Report) -> str:
    """Of this one machine as it is: equal machines differ by their names; a driver that was loaded since counts."""
    facts = [(name, repr(one.value)) for name, one in sorted(report.machine.items()) if one.scope == STABLE]
    for device in report.devices:
        kept = [name for name, one in sorted(device.facts.items()) if one.scope != VOLATILE and name != "holders"]
        facts += [(f"{device.id}/{name}", repr(device.value(name))) for name in kept]
    text = json.dumps([os.uname().nodename, os.uname().release, facts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
