"""Capability records for people, and as JSON: `accelctl caps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelctl.abi.capability import LADDER, Capability
from accelctl.abi.capabilityfile import SCHEMA
from accelctl.accept.caps.diff import Delta
from accelctl.accept.caps.verify import (
    ABSENT,
    DIFFERS,
    HOLDS,
    REPLACED,
    STALE,
    UNPROVEN,
    UNSEEN,
    Verification,
    Verified,
)
from accelctl.render import term
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Line, Page, Span, clean
from accelctl.render.units import counted

_STYLE = {
    HOLDS: "ok",
    DIFFERS: "critical",
    STALE: "error",
    UNSEEN: "error",
    UNPROVEN: "dim",
    REPLACED: "dim",
    ABSENT: "dim",
}
_HANG = 12
_MARK = "SIMULATED"


def show_list(records: Sequence[Capability], path: str, *, as_json: bool) -> None:
    """One line for each."""
    if as_json:
        term.emit(dumps(headed(SCHEMA, file=path, capabilities=[one.document() for one in records])))
        return
    page = Page(term.current())
    if not records:
        page.flow([], [[Span(f"{path}: no records")]])
        page.flow([], [[Span("to gather some: "), Span(f"accelctl smoke --device DEVICE --save {path}", "command")]])
    else:
        header = ("kernel", "op", "device", "reached", "shown on", "fallback")
        page.table(header, [_row(one) for one in records], keys=3)
    term.emit(page.text())


def _row(one: Capability) -> list[Line]:
    days = sorted(rung.date for rung in one.evidence)
    cells = [
        (Span(clean(one.kernel), "bold"),),
        (Span(one.op),),
        (Span(clean(one.platform.device)),),
        (Span(one.reached or "nothing", "" if one.reached else "dim"),),
        (Span(days[-1] if days else "-"),),
        (Span(clean(one.fallback) or "-", "" if one.fallback else "dim"),),
    ]
    return [*cells[:3], (*cells[3], *((Span(f" {_MARK}"),) if one.simulated else ())), *cells[4:]]


def show_one(records: Sequence[Capability], *, as_json: bool) -> None:
    """All that is known of a kernel, on each platform."""
    if as_json:
        term.emit(dumps(headed(SCHEMA, capabilities=[one.document() for one in records])))
        return
    page = Page(term.current())
    for number, one in enumerate(records):
        if number:
            page.blank()
        _whole(page, one)
    term.emit(page.text())


def _whole(page: Page, one: Capability) -> None:
    mark = f" {_MARK}" if one.simulated else ""
    page.flow([], [[Span(clean(one.kernel), "bold"), Span(f" ({one.op}) on {clean(one.platform.device)}{mark}")]])
    on = one.platform
    versions = [f"{name} {value}" for name, value in on.versions]
    _field(page, "device", [on.architecture, f"driver {on.driver}" if on.driver else ""])
    _field(page, "toolchain", [*on.toolchain, *versions, f"fingerprint {one.recorded}"])
    _field(page, "when", one.preconditions.texts() or ["always"])
    _field(page, "else", [one.fallback or "the op is refused"])
    for name, said in one.semantics.items():
        written = f"writes {', '.join(said.in_place)}" if said.in_place else "writes its results only"
        captured = "can be captured in a graph" if said.graph_capture else "cannot be captured in a graph"
        _field(page, name, [said.function])
        _field(page, "", [said.schema])
        _field(page, "", [said.meta])
        _field(page, "", [written, captured] if said.schema else [])
    for rung in one.evidence:
        figures = [f"{name.replace('_', ' ')} {value:,.12g}" for name, value in rung.figures.items()]
        _field(page, "proven", [rung.rung, *figures, rung.date, *([rung.detail] if rung.detail else [])])
    if one.missing:
        _field(page, "missing", [one.missing, LADDER[one.missing]])


def _field(page: Page, label: str, words: Sequence[str]) -> None:
    items: list[Line] = [(Span(clean(word)),) for word in words if word]
    if items:
        page.flow((Span(label, "dim"),), items, indent=2, hang=_HANG)


def show_verified(found: Verification, *, as_json: bool) -> None:
    """What holds, and what does not."""
    if as_json:
        rows = [
            {
                "kernel": one.record.kernel,
                "op": one.record.op,
                "device": one.record.platform.device,
                "simulated": one.record.simulated,
                "state": one.state,
                "detail": one.detail,
            }
            for one in found.rows
        ]
        term.emit(dumps(headed("accelctl.caps-verify/1", file=found.path, verdict=_verdict(found), records=rows)))
        return
    page = Page(term.current())
    for one in found.rows:
        _verified(page, one)
    if found.rows:
        page.blank()
    page.flow([], [[Span(_verdict(found), _STYLE[DIFFERS] if found.exit_code in (1, 7) else "")]])
    if any(one.state == STALE for one in found.rows):
        device = next(one.record.platform.device for one in found.rows if one.state == STALE)
        again = f"accelctl smoke --device {clean(device)} --save {found.path}"
        page.flow([], [[Span("to prove again: "), Span(again, "command")]])
    term.emit(page.text())


def _verified(page: Page, one: Verified) -> None:
    style = _STYLE[one.state]
    glyphs = page.term.glyphs
    glyph = {HOLDS: glyphs.ok, DIFFERS: glyphs.critical, STALE: glyphs.error, UNSEEN: glyphs.error}
    head = f"{glyph.get(one.state, glyphs.bullet)} {one.state}"
    where = f"{clean(one.record.kernel)} ({one.record.op}) on {clean(one.record.platform.device)}"
    mark = f" {_MARK}" if one.record.simulated else ""
    detail = f": {clean(one.detail)}" if one.detail else ""
    page.flow((Span(head, style),), [(Span(f"{where}{mark}{detail}"),)], hang=_HANG, comma="")


def _verdict(found: Verification) -> str:
    states = [one.state for one in found.rows]
    parts = [f"{states.count(state)} {word}" for state, word in _COUNTED if state in states]
    simulated = any(one.record.simulated and one.state == HOLDS for one in found.rows)
    return f"{found.path}: {', '.join(parts) or 'no records'}{' (simulated ones among them)' if simulated else ''}"


_COUNTED = (
    (HOLDS, "hold"),
    (DIFFERS, "differ"),
    (STALE, "stale"),
    (UNSEEN, "not looked at"),
    (UNPROVEN, "unproven"),
    (REPLACED, "replaced"),
    (ABSENT, "not here"),
)


def show_diff(found: Sequence[Delta], a: str, b: str, *, as_json: bool) -> None:
    """What two files differ in."""
    if as_json:
        rows = [{**one._asdict(), "changes": [change._asdict() for change in one.changes]} for one in found]
        term.emit(dumps(headed("accelctl.caps-diff/1", before=a, after=b, differences=rows)))
        return
    page = Page(term.current())
    for one in found:
        head = (Span(one.state, "warn"),)
        page.flow(head, [(Span(f"{clean(one.kernel)} ({one.op}) on {clean(one.device)}", "bold"),)], hang=_HANG)
        for change in one.changes:
            words = f"{_said(change.before)} {page.term.glyphs.arrow} {_said(change.after)}"
            page.flow((), [(Span(f"{clean(change.fact)}: ", "dim"), Span(words))], indent=2)
    page.flow([], [[Span(f"{counted(len(found), 'kernel')} differ" if found else "no difference")]])
    term.emit(page.text())


def _said(value: Any) -> str:
    if value is None:
        return "-"
    return clean(", ".join(map(str, value)) if isinstance(value, list) else value)


def show_merged(records: Sequence[Capability], files: Sequence[str], path: str, *, as_json: bool) -> None:
    """What is in a file after others were added."""
    if as_json:
        term.emit(dumps(headed("accelctl.caps-merge/1", file=path, merged=list(files), records=len(records))))
        return
    page = Page(term.current())
    page.flow([], [[Span(f"{path}: {counted(len(records), 'record')}, {counted(len(files), 'file')} merged")]])
    term.emit(page.text())
