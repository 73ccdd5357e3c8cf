"""`accelctl bringup` for people and programs: steps, findings, the verdict; JSON, JUnit, and progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelctl.errors import AccelError
from accelctl.exits import ExitCode
from accelctl.model.bringupreport import SCHEMA, BringupReport, Fact, StepResult, counts
from accelctl.model.finding import rank
from accelctl.model.report import Report
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.render import junit as junit_xml
from accelctl.render import nagios, notes, term
from accelctl.render.document import dumps, headed, pointer
from accelctl.render.findings import findings_section
from accelctl.render.htmlreport import html
from accelctl.render.layout import Page, Span
from accelctl.render.output import write
from accelctl.render.progress import progress as bar
from accelctl.render.term import Term
from accelctl.render.units import seconds

_STYLE = {PASS: "ok", FAIL: "critical", INCONCLUSIVE: "warn", SKIP: "dim"}
_WORDS = {PASS: "passed", FAIL: "FAILED", INCONCLUSIVE: "undecided", SKIP: "not run"}
_NAMES = 12


def show(report: BringupReport, *, as_json: bool, junit: str, as_nagios: bool) -> int:
    """Write the HTML report and what else was asked for, print, and give the exit status. The files come first: a
    closed pipe must not cost them. Nor must a full disk cost the verdict: what could not be written is told after it,
    and the status is then 7 where all was well."""
    page = report.html if report.html != "-" else ""
    lost = _lost(page, lambda: html(report)) + _lost(junit if junit != "-" else "", lambda: junit_text(report))
    if page and any(one.startswith(page) for one in lost):
        report.html = ""
    if as_nagios:
        line, code = nagios_line(report, lost)
        term.emit(line)
    else:
        term.emit(_shown(report, as_json, junit))
        code = report.exit_code or (int(ExitCode.UNUSABLE) if lost else 0)
    for one in lost:
        notes.error(one, who="accelctl bringup")
    return code


def _shown(report: BringupReport, as_json: bool, junit: str) -> str:
    if junit == "-":
        return junit_text(report)
    if report.html == "-":
        return html(report)
    return dumps(document(report)) if as_json else text(report, term.current())


def _lost(file: str, make: Callable[[], str]) -> list[str]:
    """Write a file, where one is wanted; why it could not be."""
    try:
        if file:
            write(file, make())
    except AccelError as error:
        return [error.message]
    return []


def text(report: BringupReport, terminal: Term) -> str:
    """The whole report."""
    page = Page(terminal)
    for one in report.subjects:
        mark = " SIMULATED" if one.simulated else ""
        proven = f", proven: {one.proven}" if one.proven else ""
        said = f"{mark}  {one.title} (back-end {one.chip or 'none'}{proven}), level {report.level}"
        page.flow([], [[Span(one.id, "bold"), Span(said)]])
    page.blank()
    for step in report.steps:
        _step(page, step, alone=len(report.subjects) == 1)
    _findings(page, report)
    page.blank()
    for note in report.notes:
        page.flow([], [[Span(f"{terminal.glyphs.bullet} {note}")]])
    style = "ok" if report.accepted else "critical" if report.rejected else "warn"
    names = ", ".join(one.id for one in report.subjects)
    page.flow([], [[Span(f"{names}: {report.verdict}", style), Span(f": {report.why}")]], comma="")
    if report.html:
        page.line(Span(f"report: {report.html}"))
    return page.text()


def _step(page: Page, step: StepResult, *, alone: bool) -> None:
    glyphs = page.term.glyphs
    sign = {PASS: glyphs.ok, FAIL: glyphs.error, SKIP: glyphs.skip, INCONCLUSIVE: glyphs.warn}[step.result]
    where = f" {step.device}" if step.device and not alone else ""
    head = f"{sign} {step.name:<{_NAMES}}{where} {_WORDS[step.result]:<9}"
    took = f" ({seconds(round(step.seconds, 1))})" if step.seconds and step.result != SKIP else ""
    kept = " (kept from before)" if step.kept else ""
    page.flow([Span(head, _STYLE[step.result])], [[Span(step.reason + took + kept)]], hang=len(head) + 1)


def _findings(page: Page, report: BringupReport) -> None:
    """Those that say something to do; remarks stand in the files."""
    shown = [one for one in report.findings if rank(one.level) >= rank("warn")]
    findings_section(page, Report("/", True, findings=shown))
    rest = len(report.findings) - len(shown)
    if rest:
        page.blank()
        page.line(Span(f"{rest} remarks (info) stand in the report", "dim"))


def show_plan(rows: Sequence[Any], *, as_json: bool) -> None:
    """Which steps would run, and why the others would not."""
    if as_json:
        found = [
            {"step": one.step.name, "device": one.device or None, "box_s": one.box_s, "skip": one.why or None}
            for one in rows
        ]
        term.emit(dumps(headed("accelctl.bringup-plan/1", steps=found)))
        return
    page = Page(term.current())
    for one in rows:
        head = f"{one.step.name:<{_NAMES}} {one.device}".rstrip()
        said = f"not run: {one.why}" if one.why else f"{one.step.title}; at most {seconds(one.box_s)}"
        page.flow([Span(head, "dim" if one.why else "bold")], [[Span(said)]], hang=_NAMES + 20)
    page.line(Span(f"at most {seconds(sum(one.box_s for one in rows if not one.why))} together"))
    term.emit(page.text())


# -- for programs ------------------------------------------------------------------------------------------------------


def document(report: BringupReport) -> dict[str, Any]:
    """Everything, typed and flat; sources and what changes by itself stand apart, as in probe's document."""
    evidence: dict[str, Any] = {}
    steps = [_step_document(number, step, evidence) for number, step in enumerate(report.steps)]
    return headed(
        SCHEMA,
        verdict=report.verdict,
        why=report.why,
        exit_code=report.exit_code,
        simulated=report.simulated,
        level=report.level,
        summary={**counts(report.steps), "findings": len(report.findings)},
        devices=[_device(one) for one in report.subjects],
        steps=steps,
        skipped=[
            {"step": step.name, "device": step.device or None, "result": step.result, "reason": step.reason}
            for step in report.with_result(SKIP, INCONCLUSIVE)
        ],
        findings=[
            one._asdict()
            | {"evidence": [each._asdict() for each in one.evidence], "fix": list(one.fix)}
            | {"consequences": list(one.consequences)}
            for one in report.findings
        ],
        volatile={
            "notes": list(report.notes),
            "started": report.started,
            "duration_s": round(report.seconds, 3),
            "command": report.command,
            "html": report.html or None,
            "steps": {
                f"{step.name}{'/' + step.device if step.device else ''}": {
                    "duration_s": step.seconds,
                    "box_s": step.box_s,
                    "kept": step.kept,
                }
                for step in report.steps
            },
        },
        evidence=evidence,
    )


def _device(one: Any) -> dict[str, Any]:
    return {
        "id": one.id,
        "title": one.title,
        "chip": one.chip or None,
        "simulated": one.simulated,
        "proven": one.proven or None,
        "left_alone": one.left_alone or None,
    }


def _step_document(number: int, step: StepResult, evidence: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, dict[str, Any]] = {}
    for fact in step.facts:
        owner = fact.owner or "machine"
        facts.setdefault(owner, {})[fact.name] = fact.value
        evidence[pointer(("steps", str(number), "facts", owner, fact.name))] = _proof(fact)
    return {
        "name": step.name,
        "device": step.device or None,
        "result": step.result,
        "reason": step.reason,
        "hang": step.hang or None,
        "out_of_time": step.cut,
        "findings": [one.id for one in step.findings],
        "command": step.command or None,
        "facts": facts,
    }


def _proof(fact: Fact) -> dict[str, str | None]:
    return {"unit": fact.unit or None, "source": fact.source, "raw": fact.raw}


def junit_text(report: BringupReport) -> str:
    """One test case per step."""
    mark = "simulated: " if report.simulated else ""
    cases = []
    for step in report.steps:
        name = f"{step.name} {step.device}".strip()
        result = {INCONCLUSIVE: FAIL}.get(step.result, step.result)
        said = f"undecided: {step.reason}" if step.result == INCONCLUSIVE else step.reason
        words = f"\n{junit_xml.words(step.findings)}" if step.findings else ""
        cases.append((name, step.seconds, result, f"{mark}{said}{words}"))
    properties = {
        "tool": f"accelctl {report.version}",
        "simulated": str(report.simulated).lower(),
        "level": str(report.level),
        "verdict": report.verdict,
    }
    return junit_xml.suite("accelctl bringup", ",".join(one.id for one in report.subjects), cases, properties)


def nagios_line(report: BringupReport, lost: Sequence[str] = ()) -> tuple[str, int]:
    """One line for a monitoring system, and its exit status. ``lost``: why files could not be written; all is not well
    then."""
    level = "ok" if report.accepted and not lost else "unknown"
    if report.rejected:
        level = "critical"
    elif level == "ok" and any(one.level == "warn" for one in report.findings):
        level = "warn"
    done = counts(report.steps)
    data: list[tuple[str, float, str]] = [(name, done[name], "") for name in (PASS, FAIL, SKIP, INCONCLUSIVE)]
    data.append(("time", round(report.seconds, 1), "s"))
    names = ", ".join(one.id for one in report.subjects)
    return nagios.line("bringup", level, "; ".join((f"{names}: {report.verdict}: {report.why}", *lost)), data)


# -- progress ----------------------------------------------------------------------------------------------------------


@contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[int, int, str, str], None]]:
    """On a terminal one line that changes; elsewhere a line for each step that begins."""
    begun: set[int] = set()

    def step(number: int, count: int, name: str, said: str) -> None:
        tick(f"{name} {said}".rstrip(), number - 1, count)
        if not enabled and number not in begun:
            begun.add(number)
            notes.note(f"step {number} of {count}: {name}")

    with bar(enabled=enabled) as tick:
        yield step
