"""What ``probe --diff`` found and what ``probe --expect`` compared, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from accelctl.accept.diff import Change, Delta
from accelctl.accept.expect import Comparison
from accelctl.render import units
from accelctl.render.document import headed
from accelctl.render.layout import Line, Page, Span, cells, clean
from accelctl.render.term import Term

SCHEMA = "accelctl.diff/1"
_STATES = {"new": "ok", "gone": "error", "changed": ""}


def delta_text(delta: Delta, term: Term) -> str:
    """Changes grouped by machine and device, then findings that came and went."""
    page = Page(term)
    page.flow((), [(Span("before ", "dim"), Span(clean(delta.a))), (Span("after ", "dim"), Span(clean(delta.b)))])
    for subject in delta.subjects:
        page.blank()
        state = [Span("  "), Span(subject.state, _STATES[subject.state])] if subject.state != "changed" else []
        head = [Span(subject.id, "bold"), Span(f"  {clean(subject.name)}")] if subject.id else [Span("Machine", "bold")]
        page.line(*head, *state)
        wide = max((cells(one.fact) for one in subject.changes), default=0) + 2
        for one in subject.changes:
            page.flow((Span(clean(one.fact), "dim"),), [_change(one, page)], indent=2, hang=min(wide, 40))
    if delta.findings:
        page.blank()
        page.line(Span("Findings", "bold"))
    for came in delta.findings:
        lead = (Span(f"{came.state:<6}", _STATES[came.state]), Span(came.level, came.level))
        words = f"{came.device or 'machine'}: {clean(came.title)}"
        page.flow((*lead, Span(f" {came.id}  ", "bold")), [(Span(words),)], indent=2, hang=8)
    page.blank()
    page.line(Span(_total(delta), "bold"))
    return page.text()


def _change(one: Change, page: Page) -> Line:
    arrow = f" {page.term.glyphs.arrow} "
    return [_side(one.before, one.reason_before), Span(arrow, "dim"), _side(one.after, one.reason_after)]


def _side(value: Any, reason: str | None) -> Span:
    if reason is not None:
        return Span("not there" if reason == "no such fact" else f"({reason})", "dim")
    return Span(clean(value if isinstance(value, str) else json.dumps(value)))


def _total(delta: Delta) -> str:
    if delta.same:
        return "no difference"
    facts = sum(len(subject.changes) for subject in delta.subjects)
    came = sum(subject.state != "changed" for subject in delta.subjects)
    parts = [units.counted(facts, "fact") + " changed"] if facts else []
    parts += [f"{units.counted(came, 'device')} came or went"] if came else []
    parts += [f"{units.counted(len(delta.findings), 'finding')} came or went"] if delta.findings else []
    return ", ".join(parts)


def delta_document(delta: Delta) -> dict[str, Any]:
    """The same as JSON values (schema accelctl.diff/1)."""
    return headed(
        SCHEMA,
        a=delta.a,
        b=delta.b,
        same=delta.same,
        changes=[
            {
                "device": subject.id,
                "name": subject.name,
                "state": subject.state,
                "facts": [one._asdict() for one in subject.changes],
            }
            for subject in delta.subjects
        ],
        findings=[one._asdict() for one in delta.findings],
    )


def comparison_section(page: Page, comparison: Comparison) -> None:
    """The list to read beside the findings: every fact that is not as the manifest says."""
    page.blank()
    lead = (Span("Compared with ", "bold"), Span(clean(comparison.file), "bold"))
    if not comparison.findings:
        page.line(*lead, Span(": as expected", "ok"))
        return
    page.line(*lead)
    rows: list[list[Line]] = []
    for one in comparison.differences:
        found = Span(clean(one.found), "dim" if one.open else "error")
        rows.append(
            [(Span(one.device or "machine"),), (Span(clean(one.fact)),), (Span(clean(one.expected)),), (found,)]
        )
    if rows:
        page.table(["device", "fact", "expected", "found"], rows, indent=2)
    for finding in comparison.findings:
        if finding.id != "EXPECT-DIFFERS":
            head = (Span(finding.level, finding.level), Span(f" {finding.device or 'machine'}  "))
            page.flow(head, [(Span(clean(finding.title)),)], indent=2, hang=2)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """What ``--json`` holds of it, below ``expect``."""
    return {"file": comparison.file, "differences": [one._asdict() for one in comparison.differences]}
