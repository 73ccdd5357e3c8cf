"""The report of `accelctl bringup` as one HTML file that an engineer attaches to a ticket.

The first page decides: the verdict, what was not done and why, what is wrong and what to type. Charts follow, and then
every fact with the place it was read at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelctl.model.bringupreport import ACCEPTED, PASSED_SIMULATED, BringupReport, Fact, StepResult, counts
from accelctl.model.finding import Finding
from accelctl.model.stressreport import FAIL, INCONCLUSIVE, PASS, SKIP
from accelctl.render.html import Html, details, joined, page, table, tag
from accelctl.render.htmlcharts import chart
from accelctl.render.units import counted, listed
from accelctl.render.units import seconds as duration

WORDS = {PASS: "passed", FAIL: "failed", SKIP: "not run", INCONCLUSIVE: "undecided"}
SIGNS = {PASS: "✓", FAIL: "✗", SKIP: "–", INCONCLUSIVE: "?"}
FOLDED = 24
"""Longer tables of facts are folded on the screen."""


def html(report: BringupReport) -> str:
    """The whole document."""
    names = listed([one.id for one in report.subjects], 3)
    return page(
        f"accelctl bringup: {names}: {report.verdict}",
        _head(report, names),
        _verdict(report),
        _missing(report),
        _devices(report),
        _findings(report.findings),
        _steps(report.steps),
        _charts(report.steps),
        _facts(report.steps),
        _foot(report),
    )


def _head(report: BringupReport, names: str) -> Html:
    mark = " (simulated)" if report.simulated else ""
    about = f"level {report.level}, begun {report.started}, took {duration(round(report.seconds, 1))}"
    return joined(
        [
            tag("h1", f"Acceptance of {names}{mark}"),
            tag("p", f"accelctl {report.version}, {about}", class_="soft small"),
            tag("p", tag("code", report.command), class_="small"),
        ]
    )


def _devices(report: BringupReport) -> Html:
    """What was looked at; equal ones on one line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in report.subjects:
        title = one.title + (" (simulated)" if one.simulated else "")
        groups.setdefault((title, one.chip or "none", one.proven or "not known"), []).append(one.id)
    rows = [(", ".join(names), *what) for what, names in groups.items()]
    head = ("device", "what it is", "back-end", "proven on")
    return joined([tag("h2", f"Devices ({len(report.subjects)})"), table(head, rows)])


def _verdict(report: BringupReport) -> Html:
    kind = FAIL if report.rejected else PASS if report.verdict in (ACCEPTED, PASSED_SIMULATED) else INCONCLUSIVE
    done = counts(report.steps)
    said = ", ".join(f"{done[result]} {word}" for result, word in WORDS.items() if done[result])
    simulated = "Nothing real was tested: the device is simulated." if report.simulated else ""
    return tag(
        "div",
        tag("strong", f"{SIGNS[kind]} {report.verdict}"),
        tag("p", report.why),
        tag("p", f"{counted(len(report.steps), 'step')}: {said}. {simulated}", class_="soft small"),
        *(tag("p", note, class_="small") for note in report.notes),
        class_=f"verdict {kind}",
    )


def _missing(report: BringupReport) -> Html:
    """What was not done, on the first page."""
    rows = [step for step in report.steps if step.result in (SKIP, INCONCLUSIVE)]
    if not rows:
        return joined([tag("h2", "Not done"), tag("p", "Nothing was left out.")])
    groups: dict[tuple[str, str, str], list[str]] = {}
    for step in rows:
        groups.setdefault((step.result, step.name, step.reason), []).append(step.device)
    shown = [
        (_word(result), f"{name} ({', '.join(found)})" if any(found) else name, reason)
        for (result, name, reason), found in groups.items()
    ]
    return joined([tag("h2", "Not done, and why"), table(("", "step", "why"), shown)])


def _name(step: StepResult) -> str:
    return f"{step.name} ({step.device})" if step.device else step.name


def _word(result: str) -> Html:
    return tag("span", f"{SIGNS[result]} {WORDS[result]}", class_=f"word {result}")


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return joined([tag("h2", "Findings"), tag("p", "None.")])
    return joined([tag("h2", f"Findings ({len(findings)})"), *map(_finding, findings)])


def _finding(one: Finding) -> Html:
    kind = FAIL if one.level in ("error", "critical") else INCONCLUSIVE if one.level == "warn" else SKIP
    where = one.device or "machine"
    doubt = f", {one.certainty}" if one.certainty != "certain" else ""
    parts: list[Html] = [
        tag(
            "h3",
            tag("span", one.level, class_=f"word {kind}"),
            f" {one.id} ",
            tag("span", where + doubt, class_="soft"),
        ),
        tag("p", one.title),
    ]
    if one.fix:
        parts += [tag("p", "What to do:", class_="soft small"), *(tag("pre", step) for step in one.fix)]
    if one.evidence:
        seen = [(tag("code", each.source), each.raw) for each in one.evidence]
        parts.append(table(("seen in", "what stood there"), seen, "facts"))
    parts += [tag("p", f"then: {effect}", class_="small") for effect in one.consequences]
    parts.append(tag("p", tag("code", f"accelctl explain {one.id}"), class_="small"))
    return tag("div", *parts, class_="finding")


def _steps(steps: Iterable[StepResult]) -> Html:
    rows = []
    for step in steps:
        took = tag("span", duration(round(step.seconds, 1)) if step.seconds else "", class_="whole")
        again = [tag("br"), tag("code", step.command)] if step.command else []
        kept = " (from the earlier part of this run)" if step.kept else ""
        rows.append((_word(step.result), _name(step), joined([step.reason + kept, *again]), took))
    return joined([tag("h2", "Steps"), table(("", "step", "what came out, and how to see it alone", "took"), rows)])


def _charts(steps: Iterable[StepResult]) -> Html:
    drawn = [chart(one, _name(step)) for step in steps for one in step.charts if one.bars]
    return joined([tag("h2", "Charts"), *drawn]) if drawn else Html("")


def _facts(steps: Iterable[StepResult]) -> Html:
    parts: list[Html] = [tag("h2", "Facts, each with its evidence")]
    for step in steps:
        owners = dict.fromkeys(fact.owner for fact in step.facts)
        for owner in owners:
            facts = [fact for fact in step.facts if fact.owner == owner]
            name = f"{step.name}: {owner or 'machine'} ({counted(len(facts), 'fact')})"
            rows = [(fact.name, _value(fact), fact.source, fact.raw) for fact in facts]
            body = table(("fact", "value", "read at", "what stood there, or why there is nothing"), rows, "facts")
            parts.append(details(name, body, shown=len(facts) <= FOLDED))
    return joined(parts) if len(parts) > 1 else Html("")


def _value(fact: Fact) -> Html | str:
    if fact.value is None:
        return tag("span", "not known", class_="skip")
    value = str(fact.value).lower() if isinstance(fact.value, bool) else str(fact.value)
    if isinstance(fact.value, float):
        value = f"{fact.value:.6g}"
    return f"{value} {fact.unit}" if fact.unit else value


def _foot(report: BringupReport) -> Html:
    return tag(
        "p",
        f"Written by accelctl {report.version}. This file is complete: it loads nothing and runs no scripts.",
        class_="soft small",
    )
