"""`accelctl smoke` for people and programs: a table of ops and element types, what failed, how far evidence reaches."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import accelctl
from accelctl.abi.capability import LADDER
from accelctl.abi.tensors import DTYPES
from accelctl.model.smokereport import FAILED, PASSED, PASSED_SIMULATED, SCHEMA, CaseRow, SmokeReport
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.render import junit as junit_xml
from accelctl.render import notes, term
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Page, Span
from accelctl.render.output import give
from accelctl.render.term import Term
from accelctl.render.units import counted, latency

_STYLE = {PASSED: "ok", PASSED_SIMULATED: "ok", FAILED: "critical"}
_OP, _CELL = 18, 9
"""Columns of the table: of an op's name, and of an element type."""
MOST_FAILURES = 20
"""Named in text; JSON and JUnit have all."""
_SHORT = ("blob", "alone", "service", "counted", "cached", "model")
"""The rungs of abi.capability.LADDER, lowest first, as short as a column."""


def show(report: SmokeReport, *, as_json: bool, junit: str) -> None:
    """Print the report, then write what else was asked for."""
    give(report, text, document, junit_text, as_json=as_json, junit=junit)


def remark(line: str) -> None:
    """On stderr: what follows for a chip that was upgraded. Empty: nothing."""
    if line:
        notes.warn(line)


def text(report: SmokeReport, terminal: Term) -> str:
    """The whole report."""
    page = Page(terminal)
    mark = " SIMULATED" if report.simulated else ""
    where = f"service at {report.target}" if report.target else "own service"
    proven = f", proven: {report.proven}" if report.proven else ""
    page.flow([], [[Span(report.device, "bold"), Span(f"{mark}  ({where}{proven}, seed {report.seed})")]])
    page.blank()
    _table(page, report)
    _failures(page, report)
    _evidence(page, report)
    _decode(page, report)
    for note in report.notes:
        page.flow([], [[Span(f"{terminal.glyphs.bullet} {note}")]])
    page.blank()
    page.flow([], [[Span(_verdict(report), _STYLE.get(report.verdict, "warn"))]])
    return page.text()


def _verdict(report: SmokeReport) -> str:
    counts = report.counts
    words = [f"{counts[PASS]} passed"] + [f"{counts[one]} {word}" for one, word in _OTHERS if counts[one]]
    hang = f"; it hangs: {report.hang}" if report.hang else ""
    gone = f"; the service is gone: {report.gone}" if report.gone else ""
    said = report.verdict + (" (simulated)" if report.simulated and "simulated" not in report.verdict else "")
    return f"{report.device}: {said}: {', '.join(words)}{hang}{gone}"


_OTHERS = ((FAIL, "failed"), (SKIP, "not supported"), (INCONCLUSIVE, "undecided"))


def _table(page: Page, report: SmokeReport) -> None:
    found = report.by_op()
    dtypes = [name for name in DTYPES if any(name in row for row in found.values())]
    page.line(Span("op".ljust(_OP)), *(Span(name.rjust(_CELL)) for name in dtypes), Span("   worst absolute error"))
    for op, row in found.items():
        if not op or not any(name in row for name in dtypes):
            continue
        cells = [_cell(page.term, row.get(name, [])) for name in dtypes]
        page.line(Span(op.ljust(_OP)), *cells, Span("   " + _worst([one for rows in row.values() for one in rows])))
    page.blank()


def _cell(terminal: Term, rows: Sequence[CaseRow]) -> Span:
    if not rows:
        return Span("".rjust(_CELL), "dim")
    bad = sum(row.result == FAIL for row in rows)
    gone = sum(row.result == SKIP for row in rows)
    if bad:
        return Span(f"{terminal.glyphs.error} {bad}/{len(rows)}".rjust(_CELL), "critical")
    if gone == len(rows):
        return Span("none".rjust(_CELL), "dim")
    return Span(f"{terminal.glyphs.ok} {len(rows) - gone}".rjust(_CELL), "ok")


def _worst(rows: Sequence[CaseRow]) -> str:
    measured = [row for row in rows if row.max_abs]
    if not measured:
        return "exact"
    worst = max(measured, key=lambda row: row.max_abs)
    return f"{worst.max_abs:.1e} ({worst.dtype})"


def _failures(page: Page, report: SmokeReport) -> None:
    bad = [row for row in report.rows if row.result == FAIL]
    for row in bad[:MOST_FAILURES]:
        head = f"{page.term.glyphs.error} {row.id}"
        page.flow([Span(head, "critical")], [[Span(row.detail)]], hang=len(head) + 2)
        if row.corner:
            page.flow([], [[Span(row.corner, "dim")]], indent=4)
    if len(bad) > MOST_FAILURES:
        page.line(Span(f"{len(bad) - MOST_FAILURES} more failed: see --json"))
    if bad:
        page.line(Span(f"again: accelctl smoke --device {report.device} --case '{bad[0].id}'", "command"))
        page.blank()


def _evidence(page: Page, report: SmokeReport) -> None:
    if not report.evidence:
        return
    page.line(Span("kernel".ljust(_OP)), *(Span(word.rjust(_CELL)) for word in _SHORT))
    for one in report.evidence:
        held = {rung.rung: rung for rung in one.rungs}
        cells = []
        for rung in LADDER:
            figures = held[rung].figures if rung in held else {}
            count = figures.get("cases", figures.get("launches"))
            cells.append(Span((f"{count:,.0f}" if count is not None else "-").rjust(_CELL), "" if count else "dim"))
        page.line(Span(one.kernel[: _OP - 1].ljust(_OP)), *cells)
    page.blank()


def _decode(page: Page, report: SmokeReport) -> None:
    for run in report.decode:
        sign = page.term.glyphs.ok if run.result == PASS else page.term.glyphs.error
        said = (
            f"first token {latency(run.first_token_seconds)}, then {latency(run.token_seconds)} each, "
            f"{run.tokens_per_second:.1f} tokens/s; {run.detail}"
        )
        head = f"{sign} small transformer {run.dtype}"
        page.flow([Span(head, "ok" if run.result == PASS else "critical")], [[Span(said)]], hang=len(head) + 2)
        launches = [[Span(f"{op} {count:,}")] for op, count in sorted(run.launches.items(), key=lambda one: -one[1])]
        page.flow([Span("launches: ")], launches, indent=4)


def document(report: SmokeReport) -> dict[str, Any]:
    """Everything, typed and flat."""
    return headed(
        SCHEMA,
        result=report.verdict,
        device=report.device,
        chip=report.chip,
        target=report.target or None,
        simulated=report.simulated,
        proven=report.proven or None,
        seed=report.seed,
        command=report.command,
        interrupted=report.interrupted,
        hang=report.hang or None,
        gone=report.gone or None,
        counts=report.counts,
        cases=[_row(row) for row in report.rows],
        model=[
            run._asdict()
            | {
                "prompts": list(run.prompts),
                "tokens": [list(one) for one in run.tokens],
                "step_seconds": [round(one, 6) for one in run.step_seconds],
                "launches": dict(run.launches),
                "token_seconds": round(run.token_seconds, 6),
                "tokens_per_second": round(run.tokens_per_second, 3),
            }
            for run in report.decode
        ],
        evidence=[
            {
                "kernel": one.kernel,
                "op": one.op,
                "rungs": [rung._asdict() | {"figures": dict(rung.figures)} for rung in one.rungs],
            }
            for one in report.evidence
        ],
        notes=list(report.notes),
    )


def _row(row: CaseRow) -> dict[str, Any]:
    found = row._asdict() | {"first": list(row.first) if row.first is not None else None}
    for name in ("max_abs", "max_rel"):
        value = found[name]
        found[name] = value if isfinite(value) else None
    return found | {"seconds": round(row.seconds, 4)}


def junit_text(report: SmokeReport) -> str:
    """One test case per case, and per run of the small transformer."""
    mark = "simulated: " if report.simulated else ""
    results = {INCONCLUSIVE: PASS}
    cases = [(row.id, row.seconds, results.get(row.result, row.result), mark + row.detail) for row in report.rows]
    for run in report.decode:
        spent = run.first_token_seconds + sum(run.step_seconds)
        cases.append((f"transformer/{run.dtype}", spent, run.result, mark + run.detail))
    properties = {
        "tool": f"accelctl {accelctl.__version__}",
        "simulated": str(report.simulated).lower(),
        "proven": report.proven or "unknown",
        "seed": str(report.seed),
    }
    return junit_xml.suite("accelctl smoke", report.device, cases, properties)


def show_devices(found: Sequence[Any], problems: Sequence[str], *, as_json: bool) -> None:
    """What could be tested here."""
    if as_json:
        rows = [
            {
                "device": one.device.target.id,
                "title": one.device.title,
                "chip": one.name,
                "accelerator": one.device.accelerator,
                "simulated": one.device.target.simulated,
                "proven": one.proven,
            }
            for one in found
        ]
        term.emit(dumps(headed("accelctl.smoke-list/1", devices=rows, problems=list(problems))))
        return
    page = Page(term.current())
    for one in found:
        kind = "" if one.device.accelerator else "  only when it is named"
        page.flow([Span(one.device.target.id.ljust(12), "bold")], [[Span(f"{one.device.title}{kind}")]], hang=13)
    for problem in problems:
        page.flow([Span(f"{page.term.glyphs.warn} ")], [[Span(problem)]], hang=2)
    page.line(Span(f"{counted(len(found), 'device')} with kernels"))
    term.emit(page.text())


def show_cases(cases: Sequence[Any], *, as_json: bool) -> None:
    """The catalogue."""
    if as_json:
        rows = [{"id": c.id, "op": c.op, "dtype": c.dtype, "corner": c.corner, "long": c.long} for c in cases]
        term.emit(dumps(headed("accelctl.smoke-cases/1", cases=rows)))
        return
    term.emit("".join(f"{c.id}{'  (' + c.corner + ')' if c.corner else ''}\n" for c in cases))
