"""What a run adds to the evidence that is kept (abi.capabilityfile): a rung that it stood on takes the place of the
older one, and a kernel that failed, or whose op did, loses what it had on this platform."""

from __future__ import annotations

from collections.abc import Iterable

import accelctl
from accelctl.abi.capability import Capability, Platform
from accelctl.abi.compute import Found
from accelctl.abi.condition import ALWAYS, Conditions
from accelctl.abi.framework import semantics_of
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.platforms import platform_of, templates_of
from accelctl.model.smokereport import CaseRow, KernelEvidence, SmokeReport
from accelctl.model.stressreport import FAIL


def gathered(before: Iterable[Capability], report: SmokeReport, found: Found | None) -> list[Capability]:
    """What was known, with what a run has shown. What failed is withdrawn whatever the run says in its favour, and no
    rung is taken from a run that could not be trusted: a failure that is about no op."""
    wrong = [row for row in report.rows if row.result == FAIL]
    ops, kernels = {row.op for row in wrong}, {name for row in wrong for name in _kernels(row)}
    templates = templates_of(found) if found is not None else {}
    records = {}
    for known in before:
        if known.op in ops or known.kernel in kernels:
            now = _platform(report, found, templates.get(known.kernel))
            if (known.platform.device, known.recorded) == (now.device, now.fingerprint):
                continue
        records[known.key] = known
    if not ops <= set(OPS) or any(run.result == FAIL for run in report.decode):
        return list(records.values())
    for one in report.evidence:
        if one.op not in OPS or one.op in ops or one.kernel in kernels:
            continue
        new = _fresh(report, found, one, templates.get(one.kernel))
        kept = records.pop(new.key, None)
        for rung in (*(kept.evidence if kept else ()), *one.rungs):
            new = new.climbed(rung)
        records[new.key] = new
    return list(records.values())


def _kernels(row: CaseRow) -> Iterable[str]:
    """Those that a failure is about: all that ran, or whose own evidence was wrong."""
    kind, _, what = row.id.partition("/")
    return [what] if kind == "evidence" else filter(None, row.kernel.split(", "))


def _platform(report: SmokeReport, found: Found | None, template: Template | None) -> Platform:
    """What a kernel ran on."""
    if found is None or template is None:
        return Platform(report.device, "", "", (f"accelctl {accelctl.__version__}",))
    return platform_of(found, template)


def _fresh(report: SmokeReport, found: Found | None, one: KernelEvidence, template: Template | None) -> Capability:
    """A record without evidence."""
    return Capability(
        kernel=one.kernel,
        op=one.op,
        platform=_platform(report, found, template),
        preconditions=conditions_of(template) if template is not None else ALWAYS,
        semantics=semantics_of(one.op),
        fallback=template.fallback if template is not None else "",
        simulated=report.simulated,
    )


def conditions_of(template: Template) -> Conditions:
    """As the chip says them; of a kernel that says none, its element types and whether operands may be views."""
    return template.conditions or Conditions(dtypes=template.dtypes, dense=not template.strided)
