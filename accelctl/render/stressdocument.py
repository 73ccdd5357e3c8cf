"""`accelctl stress` for programs: the JSON document and the JUnit file."""

from __future__ import annotations

from typing import Any

import accelctl
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, SKIP, Outcome, StressReport
from accelctl.model.verdict import Series, Verdict
from accelctl.render import junit
from accelctl.render.document import headed

SCHEMA = "accelctl.stress/1"
MOST_SAMPLES = 512
"""Per series; of more, evenly spaced ones are written (first and last included)."""


def document(report: StressReport) -> dict[str, Any]:
    """Everything, typed and flat."""
    head = {
        name: getattr(report, name)
        for name in ("device", "chip", "driver", "node", "tier", "proven", "simulated", "seed", "command")
    }
    return headed(
        SCHEMA,
        result=report.result,
        interrupted=report.interrupted,
        **head,
        lifecycles=[_outcome(outcome) for outcome in report.outcomes],
        sweep=[row._asdict() | {"detail": list(row.detail)} for row in report.sweep],
        kernel_leaks=list(report.kernel_leaks),
        notes=report.notes,
    )


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "lifecycle": outcome.lifecycle,
        "result": outcome.result,
        "reason": outcome.reason,
        "cycles": outcome.cycles,
        "seconds": round(outcome.seconds, 3),
        "stages": [stage._asdict() for stage in outcome.stages],
        "verdict": _verdict(outcome.verdict),
        "series": [_series(series) for series in outcome.series],
        "failures": [failure._asdict() for failure in outcome.failures],
        "outstanding": list(outcome.outstanding),
        "mistakes": list(outcome.mistakes),
        "census": outcome.census,
        "replay": outcome.replay._asdict() | {"steps": list(outcome.replay.steps)} if outcome.replay else None,
        "hang": outcome.hang or None,
        "notes": list(outcome.notes),
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "overall": verdict.overall,
        "books": list(verdict.books),
        "unreadable": dict(verdict.unreadable),
        "judgements": [
            judgement._asdict()
            | {
                "at_stake": judgement.at_stake._asdict() if judgement.at_stake else None,
                "interval": list(judgement.interval) if judgement.interval else None,
                "stages": list(judgement.stages),
            }
            for judgement in verdict.judgements
        ],
    }


def _series(series: Series) -> dict[str, Any]:
    samples = series.samples
    step = max(1, -(-len(samples) // MOST_SAMPLES))
    kept = [*samples[: len(samples) - 1 : step], *samples[-1:]] if samples else []
    return {
        "name": series.name,
        "unit": series.unit,
        "scope": series.scope,
        "exact": series.exact,
        "source": series.source,
        "samples": [[s.cycles, round(s.seconds, 6), s.value, s.block] for s in kept],
    }


def junit_text(report: StressReport) -> str:
    """One test case per lifecycle and per swept stage."""
    cases = [_case(report, outcome) for outcome in report.outcomes]
    for row in report.sweep:
        name = f"sweep {row.lifecycle} {row.stage} {row.kind}"
        words = f"{row.points} points, {row.balanced} balanced, {row.stranded} stranded, {row.leaked} leaked"
        cases.append((name, 0.0, FAIL if row.leaked else "pass", words + "".join(f"\n{d}" for d in row.detail)))
    if report.kernel_leaks:
        cases.append(("kmemleak", 0.0, FAIL, "\n".join(report.kernel_leaks)))
    properties = {
        "tool": f"accelctl {accelctl.__version__}",
        "simulated": str(report.simulated).lower(),
        "proven": report.proven,
        "seed": str(report.seed),
    }
    return junit.suite("accelctl stress", report.device, cases, properties)


def _case(report: StressReport, outcome: Outcome) -> tuple[str, float, str, str]:
    words = [outcome.reason, *outcome.outstanding, *outcome.mistakes]
    if outcome.verdict is not None:
        words += [f"{j.counter}: {j.verdict}: {j.why}" for j in outcome.verdict.judgements]
    mark = "simulated: " if report.simulated else ""
    result = outcome.result if outcome.result in (FAIL, SKIP) else "pass"
    if outcome.result == INCONCLUSIVE:
        mark += "inconclusive: "
    return outcome.lifecycle, outcome.seconds, result, mark + "\n".join(word for word in words if word)
