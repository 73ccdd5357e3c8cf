"""Step "expected": is this machine what its type must be? (`accelctl probe --expect`)"""

from __future__ import annotations

import shlex

from accelctl.accept.bringup.step import FAIL, PASS, Came, Job
from accelctl.accept.probing import look
from accelctl.model.bringupreport import BAD, Fact
from accelctl.model.finding import rank


def work(job: Job) -> Came:
    """Differences from the file, as findings."""
    report, compared = look(
        "/", allow_wake=job.order.allow_wake, kmsg=job.order.kmsg or None, expected=job.order.expect
    )
    assert compared is not None
    findings = tuple(compared.findings)
    bad = [one for one in findings if rank(one.level) >= BAD]
    facts = tuple(
        Fact(one.fact, one.found, one.source, f"expected {one.expected}; {one.raw}", owner=one.device or "")
        for one in compared.differences
    )
    said = bad[0].title if bad else f"{len(report.devices)} devices compared with {job.order.expect}"
    command = f"accelctl probe --expect {shlex.quote(job.order.expect)}"
    return Came(FAIL if bad else PASS, said, findings, facts, command=command)
