"""`accelctl backends` for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import accelctl
from accelctl.abi.manifest import TIERS
from accelctl.abi.version import CONTRACTS, FEATURES
from accelctl.model.pluginreport import (
    BROKEN,
    UNTRIED,
    Canary,
    CheckReport,
    ChipDetail,
    ChipRow,
    Listing,
    Trial,
    VersionRow,
    Versions,
)
from accelctl.model.stressreport import FAIL, SKIP
from accelctl.render import junit as junit_xml
from accelctl.render import term
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Page, Span
from accelctl.render.output import give
from accelctl.render.term import Term
from accelctl.render.units import counted

LIST, SHOW, CHECK = "accelctl.backends/1", "accelctl.backend/1", "accelctl.conformance/1"
VERSIONS, CANARY = "accelctl.versions/1", "accelctl.canary/1"
_MARKS = {"memory": "M", "queue": "Q", "ops": "O", "schedule": "S", "telemetry": "T"}


# -- list --


def show_list(found: Listing, *, as_json: bool) -> None:
    """Print the list."""
    term.emit(dumps(_list_document(found)) if as_json else _list_text(found, term.current()))


def _list_document(found: Listing) -> dict[str, Any]:
    rows = [
        {
            **asdict(row),
            "features": None if row.features is None else list(row.features),
            "problem": row.problem or None,
        }
        for row in found.rows
    ]
    return headed(LIST, loaded=found.loaded, chips=rows, data_only=list(found.data_only), problems=list(found.problems))


def _list_text(found: Listing, terminal: Term) -> str:
    page = Page(terminal)
    heads = ("chip", "from", "ABI", "contracts", "tier", "title")
    page.table(heads, [_cells(row) for row in found.rows], keys=1)
    page.blank()
    legend = ", ".join(f"{mark} {name}" for name, mark in _MARKS.items())
    page.flow([], [[Span(f"contracts: {legend}", "dim")]])
    more = len(found.data_only)
    page.flow([], [[Span(f"{more} more chips are known by data only (probe): accelctl backends show NAME", "dim")]])
    if any(row.features is None and not row.problem for row in found.rows):
        page.flow([], [[Span("?: known when it is loaded: accelctl backends list --load", "dim")]])
    for line in found.problems:
        page.flow([Span(f"{terminal.glyphs.warn} ", "warn")], [[Span(line)]], hang=2)
    return page.text()


def _cells(row: ChipRow) -> list[list[Span]]:
    origin = row.origin if row.origin == "in-tree" else f"{row.origin} {row.version}"
    unknown = Span("refused", "error") if row.problem else Span("?", "dim")
    contracts = unknown if row.features is None else Span(_contracts(row.features))
    tier = Span(
        row.tier or ("-" if row.problem else "?"), {"proven": "ok", "simulated": "warn"}.get(row.tier or "", "")
    )
    abi = "?" if row.abi is None else str(row.abi)
    return [[Span(row.name, "bold")], [Span(origin)], [Span(abi)], [contracts], [tier], [Span(row.title or "-")]]


def _contracts(features: Sequence[str]) -> str:
    return "".join(mark if name in features else "." for name, mark in _MARKS.items())


# -- show --


def show_chip(found: ChipDetail, *, as_json: bool) -> None:
    """Print one chip."""
    term.emit(dumps(_chip_document(found)) if as_json else _chip_text(found, term.current()))


def _chip_document(found: ChipDetail) -> dict[str, Any]:
    row = found.row
    return headed(
        SHOW,
        name=row.name,
        title=row.title,
        origin=row.origin,
        version=row.version or None,
        module=found.module or None,
        manifest=found.manifest,
        proven=row.proven,
        room=found.where or None,
        ids=found.ids,
        nodes=list(found.nodes),
        modules=list(found.modules),
        install=found.install,
        lacks=list(found.lacks),
        versions=list(found.versions),
    )


def _chip_text(found: ChipDetail, terminal: Term) -> str:
    page, row, said = Page(terminal), found.row, found.manifest
    origin = row.origin if row.origin == "in-tree" else f"{row.origin} {row.version}"
    page.flow([], [[Span(row.name, "bold"), Span(f"  {row.title}  ({origin})")]])
    page.blank()
    if said is None:
        _pair(page, "code", "none: its room is data, for probe")
        _pair(page, "proven", str(row.proven))
    else:
        _pair(page, "ABI", str(said["abi"]))
        _pair(page, "proven", f"{said['proven']} (tier {said['tier']}: {TIERS[said['tier']]})")
        for name in CONTRACTS:
            _pair(page, name, FEATURES[name] if name in said["features"] else "not offered")
        _pair(page, "also", ", ".join(word for word in said["features"] if word not in CONTRACTS) or "-")
        _pair(page, "drivers", ", ".join(said["drivers"]) or "-")
        _pair(page, "calls go to", said["control_plane"])
        _pair(page, "addresses", said["address_space"])
        _pair(page, "peers", "reach each other's memory" if said["p2p"] else "do not reach each other's memory")
        _pair(page, "rollback", said["rollback"])
        _pair(page, "toolchains", ", ".join(said["toolchains"]) or "-")
        _pair(page, "by name only", "yes" if said["by_name_only"] else "no")
        _pair(page, "module", found.module)
    if found.where:
        _pair(page, "PCI rows", str(found.ids))
        _pair(page, "modules", ", ".join(found.modules) or "-")
        _pair(page, "nodes", ", ".join(found.nodes) or "-")
        for key, text in found.install.items():
            _pair(page, f"install {key}", text)
        _pair(page, "room", found.where)
    else:
        _pair(page, "room", "none: probe does not know it")
    if found.versions:
        _pair(page, "on the shelf", ", ".join(found.versions))
    page.blank()
    for line in found.lacks:
        page.flow([Span(f"{terminal.glyphs.bullet} lacks ")], [[Span(line)]], hang=8)
    return page.text()


def _pair(page: Page, name: str, text: str) -> None:
    page.flow([Span(name, "dim")], [[Span(text)]], hang=20)


# -- check --


def show_check(report: CheckReport, *, as_json: bool, junit: str) -> None:
    """Print the report, and write JUnit where it was asked for."""
    give(report, _check_text, _check_document, _check_junit, as_json=as_json, junit=junit)


def _check_document(report: CheckReport) -> dict[str, Any]:
    return headed(
        CHECK,
        result=report.verdict,
        chip=report.name,
        who=report.who,
        device=report.device or None,
        simulated=report.simulated,
        contracts=[one._asdict() for one in report.contracts],
        checks=[one._asdict() for one in report.checks],
    )


def _check_text(report: CheckReport, terminal: Term) -> str:
    page, glyphs = Page(terminal), terminal.glyphs
    mark = " SIMULATED" if report.simulated else ""
    page.flow([], [[Span(report.who, "bold"), Span(f"{mark}  on {report.device or 'no device'}")]])
    page.blank()
    rows = []
    for one in report.contracts:
        word = Span("differs", "critical") if one.differs else Span("no", "ok") if one.promised else Span("-", "dim")
        word = Span("?", "warn") if one.promised and not report.device else word
        rows.append([[Span(one.name)], [Span("yes" if one.promised else "no")], [Span(one.observed)], [word]])
    page.table(("contract", "promised", "observed", "differs"), rows, keys=1)
    page.blank()
    for result, sign, style in ((FAIL, glyphs.error, "critical"), (SKIP, glyphs.skip, "dim")):
        for row in (row for row in report.checks if row.result == result):
            page.flow([Span(f"{sign} {row.name}", style)], [[Span(row.detail)]], hang=len(row.name) + 4)
    if report.checks:
        page.blank()
    style = {BROKEN: "critical", UNTRIED: "warn"}.get(report.verdict, "ok")
    page.flow([], [[Span(f"{report.name}: {report.verdict}{_why(report)}", style)]])
    return page.text()


def _why(report: CheckReport) -> str:
    if report.verdict == UNTRIED:
        return ": the handshake passed; no device of it is here to try the rest on (--device)"
    bad = [one for one in report.checks if one.result == FAIL]
    return f": {counted(len(bad), 'check')} of {len(report.checks)} failed" if bad else f": {len(report.checks)} checks"


def _check_junit(report: CheckReport) -> str:
    cases = [(f"{one.contract}: {one.name}", 0.0, one.result, one.detail) for one in report.checks]
    properties = {
        "tool": f"accelctl {accelctl.__version__}",
        "chip": report.who,
        "device": report.device or "none",
        "simulated": str(report.simulated).lower(),
    }
    return junit_xml.suite("accelctl backends check", report.name, cases, properties)


# -- new, add --


def show_new(name: str, folder: str, files: Sequence[str], *, as_json: bool) -> None:
    """What was written, and what to type next."""
    if as_json:
        term.emit(dumps(headed("accelctl.scaffold/1", name=name, folder=folder, files=list(files))))
        return
    page = Page(term.current())
    page.line(Span(f"{folder}/", "bold"))
    for file in files:
        page.line(Span(file), indent=2)
    page.blank()
    page.line(Span(f"accelctl backends add {folder}", "command"))
    page.line(Span(f"accelctl backends promote {name} 0.1.0", "command"))
    page.line(Span(f"accelctl backends check {name}", "command"))
    term.emit(page.text())


def show_added(name: str, row: VersionRow, *, as_json: bool) -> None:
    """One new version."""
    if as_json:
        term.emit(dumps(headed("accelctl.added/1", name=name, version=row.version, folder=row.folder)))
        return
    page = Page(term.current())
    page.line(Span(f"{name} {row.version} is on the shelf: {row.folder}"))
    page.line(Span(f"to try it: accelctl backends canary {name} {row.version}", "command"))
    page.line(Span(f"to use it: accelctl backends promote {name} {row.version}", "command"))
    term.emit(page.text())


# -- versions --


def show_versions(found: Sequence[Versions], *, as_json: bool) -> None:
    """The shelf."""
    term.emit(dumps(_versions_document(found)) if as_json else _versions_text(found, term.current()))


def _versions_document(found: Sequence[Versions]) -> dict[str, Any]:
    return headed(
        VERSIONS,
        chips=[
            {
                "name": one.name,
                "folder": one.folder,
                "since": one.since or None,
                "first_smoke": one.smoke or None,
                "problem": one.problem or None,
                "versions": [{**row._asdict(), "problem": row.problem or None} for row in one.rows],
            }
            for one in found
        ],
    )


def _versions_text(found: Sequence[Versions], terminal: Term) -> str:
    page = Page(terminal)
    if not found:
        page.line(Span("no version of any chip is on the shelf: accelctl backends add PATH"))
    for one in found:
        page.line(Span(one.name, "bold"), Span(f"  {one.folder}"))
        for row in one.rows:
            word = "current" if row.current else "before" if row.before else ""
            first = {"": "not smoked since", "passed": "its first smoke passed", "failed": "its first smoke FAILED"}
            more = f"since {one.since}, {first[one.smoke]}" if row.current else row.problem
            sign = terminal.glyphs.arrow if row.current else " "
            page.flow(
                [Span(f"  {sign} {row.version}", "ok" if row.current else "")], [[Span(f"{word:<8} {more}")]], hang=22
            )
            if row.current and one.smoke == "failed":
                page.line(Span(f"accelctl backends rollback {one.name}", "command"), indent=4)
        if one.problem:
            page.flow([Span(f"  {terminal.glyphs.warn} ", "warn")], [[Span(one.problem)]], hang=4)
        if not one.problem and not any(row.current for row in one.rows):
            page.line(Span("none is used: accelctl backends promote ", "dim"), Span(f"{one.name} VERSION"), indent=4)
    return page.text()


def show_canary(found: Canary, *, as_json: bool) -> None:
    """Two versions side by side."""
    term.emit(dumps(_canary_document(found)) if as_json else _canary_text(found, term.current()))


def _canary_document(found: Canary) -> dict[str, Any]:
    return headed(
        CANARY,
        result=_canary_word(found),
        chip=found.name,
        device=found.device,
        simulated=found.simulated,
        base=_trial_document(found.base) if found.base else None,
        new=_trial_document(found.new),
        worse=list(found.worse),
        slower=list(found.slower),
    )


def _trial_document(one: Trial) -> dict[str, Any]:
    return one._asdict() | {
        "bench": {name: {"median": median, "unit": unit} for name, median, unit in one.bench},
        "error": one.error or None,
    }


def _canary_word(found: Canary) -> str:
    word = "worse" if found.worse or found.slower else "no worse"
    return f"{word} (simulated)" if found.simulated else word


def _canary_text(found: Canary, terminal: Term) -> str:
    page = Page(terminal)
    mark = " SIMULATED" if found.simulated else ""
    page.line(Span(found.name, "bold"), Span(f"{mark}  on {found.device}"))
    page.blank()
    rows = [_trial(word, one) for word, one in (("in use", found.base), ("new", found.new)) if one is not None]
    page.table(("", "version", "smoke", "passed", "failed", "not supported", "seconds"), rows, keys=2)
    page.blank()
    if found.base is not None and found.base.bench and found.new.bench:
        _figures(page, found.base, found.new)
    for line in (*found.worse[:20], *(f"{one}: slower" for one in found.slower)):
        page.flow([Span(f"{terminal.glyphs.error} ", "critical")], [[Span(line)]], hang=2)
    if len(found.worse) > 20:
        page.line(Span(f"{len(found.worse) - 20} more: --json"))
    good = not found.worse and not found.slower
    page.flow([], [[Span(f"{found.name} {found.new.version}: {_canary_word(found)}", "ok" if good else "critical")]])
    if good:
        page.line(Span(f"accelctl backends promote {found.name} {found.new.version}", "command"))
    return page.text()


def _trial(word: str, one: Trial) -> list[list[Span]]:
    numbers = [f"{one.passed}", f"{one.failed}", f"{one.skipped}", f"{one.seconds:.1f}"]
    return [[Span(word)], [Span(one.version)], [Span(one.verdict)], *([Span(text)] for text in numbers)]


def _figures(page: Page, base: Trial, new: Trial) -> None:
    found = {name: median for name, median, _ in new.bench}
    rows = [
        [[Span(name)], [Span(f"{median:.4g}")], [Span(f"{found[name]:.4g}")], [Span(unit)]]
        for name, median, unit in base.bench
        if name in found
    ]
    page.table(("bench (medians)", "in use", "new", "unit"), rows, keys=1)
    page.blank()


__all__ = [
    "show_added",
    "show_canary",
    "show_check",
    "show_chip",
    "show_list",
    "show_new",
    "show_versions",
]
