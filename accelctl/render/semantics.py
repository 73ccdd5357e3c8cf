"""`accelctl smoke --semantics` and `--align` for people and programs."""

from __future__ import annotations

from math import isfinite
from typing import Any

import accelctl
from accelctl.model import alignreport, semanticsreport
from accelctl.model.alignreport import AlignReport, AlignRow
from accelctl.model.semanticsreport import SemanticsReport
from accelctl.model.smokereport import FAILED, PASSED, PASSED_SIMULATED
from accelctl.model.stressreport import FAIL, PASS, SKIP
from accelctl.render import junit as junit_xml
from accelctl.render.document import headed
from accelctl.render.layout import Page, Span
from accelctl.render.output import give
from accelctl.render.term import Term
from accelctl.render.units import counted

_STYLE = {PASSED: "ok", PASSED_SIMULATED: "ok", FAILED: "critical"}
_INTENT, _CELL = 28, 8


def show(report: SemanticsReport, *, as_json: bool, junit: str) -> None:
    """Print the report, then write what else was asked for."""
    give(report, text, document, junit_text, as_json=as_json, junit=junit)


def text(report: SemanticsReport, terminal: Term) -> str:
    """A line for each intent, then what fails and what is absent."""
    page = Page(terminal)
    mark = " SIMULATED" if report.simulated else ""
    page.flow([], [[Span(report.device, "bold"), Span(f"{mark}  (semantics of the portable runtime)")]])
    _flags(page, report)
    page.blank()
    _table(page, report)
    for row in report.rows:
        if row.result != PASS:
            sign, style = (
                (page.term.glyphs.error, "critical") if row.result == FAIL else (page.term.glyphs.bullet, "dim")
            )
            head = f"{sign} {row.id}"
            page.flow([Span(head, style)], [[Span(f"{row.what}: {row.detail}")]], hang=len(head) + 2)
    page.blank()
    page.flow([], [[Span(_verdict(report), _STYLE.get(report.verdict, "warn"))]])
    return page.text()


def _flags(page: Page, report: SemanticsReport) -> None:
    for word in ("native", "emulated", "absent"):
        names = [name for name, how in report.capabilities.items() if how == word]
        if names:
            page.flow([Span(f"  {word.ljust(9)}")], [[Span(name)] for name in names], hang=11)


def _table(page: Page, report: SemanticsReport) -> None:
    page.line(Span("intent".ljust(_INTENT)), *(Span(word.rjust(_CELL)) for word in ("passed", "failed", "absent")))
    for intent in dict.fromkeys(row.intent for row in report.rows):
        results = [row.result for row in report.rows if row.intent == intent]
        cells = []
        for result, style in ((PASS, "ok"), (FAIL, "critical"), (SKIP, "dim")):
            count = results.count(result)
            cells.append(Span((str(count) if count else "-").rjust(_CELL), style if count else "dim"))
        page.line(Span(intent.ljust(_INTENT)), *cells)
    page.blank()


def _verdict(report: SemanticsReport) -> str:
    counts = report.counts
    words = [f"{counts[PASS]} of {counted(len(report.rows), 'assertion')} passed"]
    words += [f"{counts[FAIL]} failed"] if counts[FAIL] else []
    words += [f"{counts[SKIP]} for what the device does not have"] if counts[SKIP] else []
    hang = f"; it hangs: {report.hang}" if report.hang else ""
    return f"{report.device}: {report.verdict}: {', '.join(words)}{hang}"


def document(report: SemanticsReport) -> dict[str, Any]:
    """Everything, typed and flat; times stand below ``volatile``."""
    return headed(
        semanticsreport.SCHEMA,
        verdict=report.verdict,
        exit_code=report.exit_code,
        device=report.device,
        chip=report.chip,
        simulated=report.simulated,
        proven=report.proven or None,
        capabilities=dict(report.capabilities),
        counts=report.counts,
        hang=report.hang or None,
        assertions=[
            {"id": row.id, "intent": row.intent, "what": row.what, "result": row.result} for row in report.rows
        ],
        volatile={row.id: {"seconds": row.seconds, "detail": row.detail} for row in report.rows},
    )


def junit_text(report: SemanticsReport) -> str:
    """One test case for each assertion."""
    mark = "simulated: " if report.simulated else ""
    cases = [(row.id, row.seconds, row.result, f"{mark}{row.what}: {row.detail}") for row in report.rows]
    properties = {
        "tool": f"accelctl {accelctl.__version__}",
        "simulated": str(report.simulated).lower(),
        "proven": report.proven or "unknown",
    }
    return junit_xml.suite("accelctl semantics", report.device, cases, properties)


# -- align --


def show_align(report: AlignReport, *, as_json: bool, junit: str) -> None:
    """Print the report, then write what else was asked for."""
    give(report, align_text, align_document, align_junit, as_json=as_json, junit=junit)


def align_text(report: AlignReport, terminal: Term) -> str:
    """A line for each op, and the first one that drifts."""
    page = Page(terminal)
    mark = " SIMULATED" if report.simulated else ""
    title = f"{report.device} and {report.other}"
    page.flow([], [[Span(title, "bold"), Span(f"{mark}  (known samples, op by op, seed {report.seed})")]])
    page.blank()
    for row in report.rows:
        _align_row(page, row)
    page.blank()
    page.flow([], [[Span(_align_verdict(report), _STYLE.get(report.verdict, "warn"))]])
    return page.text()


def _align_row(page: Page, row: AlignRow) -> None:
    glyphs = page.term.glyphs
    sign, style = {PASS: (glyphs.ok, "ok"), FAIL: (glyphs.error, "critical")}.get(row.result, (glyphs.bullet, "dim"))
    head = f"{sign} {row.number:3d}  {row.sample.ljust(18)}{row.op.ljust(18)}"
    page.flow([Span(head, style)], [[Span(row.detail)]], hang=len(head) + 1)


def _align_verdict(report: AlignReport) -> str:
    drift = report.drift
    where = f"{report.device}, {report.other}: {report.verdict}"
    hang = f"; it hangs: {report.hang}" if report.hang else ""
    if drift is not None and drift.tolerance:
        return f"{where}: the first op that drifts is {drift.name}: {drift.detail} (allowed: {drift.tolerance}){hang}"
    if drift is not None:
        return f"{where}: {drift.name}: {drift.detail}{hang}"
    counts = report.counts
    skipped = f", {counts[SKIP]} not supported" if counts[SKIP] else ""
    return f"{where}: {counted(counts[PASS], 'op')} in step{skipped}"


def align_document(report: AlignReport) -> dict[str, Any]:
    """Everything, typed and flat."""
    drift = report.drift
    return headed(
        alignreport.SCHEMA,
        verdict=report.verdict,
        exit_code=report.exit_code,
        device=report.device,
        other=report.other,
        simulated=report.simulated,
        seed=report.seed,
        counts=report.counts,
        drift=_plain(drift) if drift is not None else None,
        hang=report.hang or None,
        ops=[_plain(row) for row in report.rows],
    )


def _plain(row: AlignRow) -> dict[str, Any]:
    found = row._asdict() | {"first": list(row.first) if row.first is not None else None}
    return found | {name: found[name] if isfinite(found[name]) else None for name in ("max_abs", "max_rel")}


def align_junit(report: AlignReport) -> str:
    """One test case for each op."""
    mark = "simulated: " if report.simulated else ""
    cases = [(row.name, 0.0, row.result, mark + row.detail) for row in report.rows]
    properties = {"tool": f"accelctl {accelctl.__version__}", "simulated": str(report.simulated).lower()}
    return junit_xml.suite("accelctl align", f"{report.device} {report.other}", cases, properties)
