"""What a run adds to the evidence that is kept (abi.capabilityfile): a rung that it stood on takes the place of the
older one, and a kernel whose op failed loses what it had on this platform."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import accelctl
from accelctl.abi.capability import Capability, Platform
from accelctl.abi.compute import Found
from accelctl.abi.condition import ALWAYS, Conditions
from accelctl.abi.framework import semantics_of
from accelctl.abi.ops import Template
from accelctl.abi.opset import OPS
from accelctl.abi.platforms import platform_of, templates_of
from accelctl.model.smokereport import KernelEvidence, SmokeReport
from accelctl.model.stressreport import FAIL


def gathered(before: Iterable[Capability], report: SmokeReport, found: Found | None) -> list[Capability]:
    """What was known, with what a run has shown. Nothing of a run is taken whose service could not be trusted: a
    failure that is about no op."""
    failed = {row.op for row in report.rows if row.result == FAIL}
    records = {one.key: one for one in before}
    if not failed <= set(OPS) or any(run.result == FAIL for run in report.decode):
        return list(records.values())
    templates = templates_of(found) if found is not None else {}
    fresh = partial(_fresh, report, found)
    for one in report.evidence:
        if one.op not in OPS:
            continue
        new = fresh(one, templates.get(one.kernel))
        known = records.pop(new.key, None)
        if one.op in failed:
            continue
        for rung in (*(known.evidence if known else ()), *one.rungs):
            new = new.climbed(rung)
        records[new.key] = new
    return list(records.values())


def _fresh(report: SmokeReport, found: Found | None, one: KernelEvidence, template: Template | None) -> Capability:
    """A record without evidence."""
    if found is None or template is None:
        platform, conditions = Platform(report.device, "", "", (f"accelctl {accelctl.__version__}",)), ALWAYS
    else:
        platform, conditions = platform_of(found, template), conditions_of(template)
    return Capability(
        kernel=one.kernel,
        op=one.op,
        platform=platform,
        preconditions=conditions,
        semantics=semantics_of(one.op),
        fallback=template.fallback if template is not None else "",
        simulated=report.simulated,
    )


def conditions_of(template: Template) -> Conditions:
    """As the chip says them; of a kernel that says none, its element types and whether operands may be views."""
    return template.conditions or Conditions(dtypes=template.dtypes, dense=not template.strided)
