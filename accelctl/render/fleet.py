"""``accelctl merge`` on a terminal, as JSON and as a line for Nagios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from accelctl.accept.fleet import EXTRA, MISSING, Difference, Fleet, Group, badness
from accelctl.accept.nodeset import fold
from accelctl.errors import UsageError
from accelctl.model.benchreport import BYTES_PER_S, SECONDS
from accelctl.model.finding import LEVELS
from accelctl.render import nagios, term
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Page, Span, cells, clean
from accelctl.render.term import Term
from accelctl.render.units import counted

MOST_DIFFERENCES, MOST_GROUPS = 8, 12
"""What is shown of each group, and of groups, without --all."""
_VALUE = 60


def check(*, as_json: bool, as_nagios: bool, everything: bool) -> None:
    """UsageError for options that contradict each other."""
    given = {"--json": as_json, "--nagios": as_nagios, "--all": everything}
    if len(chosen := [name for name, there in given.items() if there]) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other")


def show(fleet: Fleet, *, as_json: bool, as_nagios: bool, everything: bool) -> int:
    """Write it; the exit status that goes with it."""
    if as_nagios:
        text, status = nagios_line(fleet)
        term.emit(text)
        return status
    term.emit(dumps(document(fleet)) if as_json else text_of(fleet, term.current(), everything))
    return fleet.exit_code


def text_of(fleet: Fleet, out: Term, everything: bool = False) -> str:
    """Schema by schema: the largest group, then the others with what they have otherwise."""
    page = Page(out)
    shown = 0
    for schema in dict.fromkeys(group.schema for group in fleet.groups):
        own = [group for group in fleet.groups if group.schema == schema]
        _first(page, schema, own)
        for group in own[1:]:
            shown += 1
            if everything or shown <= MOST_GROUPS:
                _odd(page, group, own[0], everything)
        page.blank()
    if not everything and shown > MOST_GROUPS:
        page.line(Span(f"{shown - MOST_GROUPS} more groups: --all", "dim"))
        page.blank()
    _slow(page, fleet)
    _rest(page, fleet)
    return page.text()


def _first(page: Page, schema: str, own: Sequence[Group]) -> None:
    total = sum(len(group.nodes) for group in own)
    verdict = "all equal" if len(own) == 1 else f"{len(own)} different reports"
    page.line(Span(f"{schema}: {counted(total, 'node')}, {verdict}", "bold"))
    page.blank()
    _nodes(page, own[0], "")
    _says(page, own[0])
    if len(own) > 1 and len(own[0].nodes) * 2 <= total:
        page.line(Span("no majority: what is odd here may be right", "warn"), indent=2)


def _nodes(page: Page, group: Group, more: str) -> None:
    page.line(
        Span(clean(fold(group.nodes)), "bold"), Span(f"  {counted(len(group.nodes), 'node')}{more}", "dim"), indent=2
    )


def _says(page: Page, group: Group) -> None:
    simulated = "simulated: " if group.simulated else ""
    style = group.level if group.level in LEVELS else "warn"
    page.flow((Span(group.level, style),), [(Span(simulated + clean(group.words)),)], indent=4, hang=10, comma="")


def _odd(page: Page, group: Group, norm: Group, everything: bool) -> None:
    page.blank()
    _nodes(page, group, f", {counted(len(group.differences), 'difference')}")
    if group.words != norm.words:
        _says(page, group)
    most = len(group.differences) if everything else MOST_DIFFERENCES
    for one in group.differences[:most]:
        place, change = clean(one.pointer), _change(one, page.term)
        if page.width is None or cells(place) + cells(change) + 6 <= page.width:
            page.line(Span(f"{place}  "), Span(change, "warn"), indent=4)
        else:
            page.line(Span(place), indent=4)
            page.flow((), [(Span(change, "warn"),)], indent=6, comma="")
    if len(group.differences) > most:
        page.line(Span(f"{len(group.differences) - most} more: --all", "dim"), indent=4)


def _change(one: Difference, out: Term) -> str:
    if one.state == MISSING:
        return f"missing; the others: {_short(_words(one.expected))}"
    if one.state == EXTRA:
        return f"only here: {_short(_words(one.found))}"
    old, new = _words(one.expected), _words(one.found)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new)))  # noqa: B905 - to the shorter's end
    if same > _VALUE // 2:  # else both would be cut before they differ
        old, new = (f"...{text[same - 10 :]}" for text in (old, new))
    return f"{_short(old)} {out.glyphs.arrow} {_short(new)}"


def _words(value: Any) -> str:
    """A value as text; of an object its title, where it has one."""
    if isinstance(value, dict):
        title = next((value[key] for key in ("title", "name", "result") if isinstance(value.get(key), str)), None)
        value = title if title is not None else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text) or '""'


def _short(text: str) -> str:
    return text if len(text) <= _VALUE else text[: _VALUE - 3] + "..."


def _slow(page: Page, fleet: Fleet) -> None:
    if not fleet.slow:
        return
    page.line(Span("Slower than the others", "bold"))
    for one in fleet.slow:
        typical = f"  median of {one.measured}: {_figure(one.typical, one.unit)}"
        page.line(Span(clean(one.figure)), Span(typical, "dim"), indent=2)
        for node, value in one.nodes[:MOST_DIFFERENCES]:
            share = one.typical / value if one.unit == SECONDS else value / one.typical
            said = f"{_figure(value, one.unit)}, {share:.0%}"
            page.line(Span(f"{clean(node)}  ", "bold"), Span(said, "warn"), indent=4)
        if len(one.nodes) > MOST_DIFFERENCES:
            page.line(Span(f"and {fold(node for node, _ in one.nodes[MOST_DIFFERENCES:])}", "dim"), indent=4)
    page.blank()


def _figure(value: float, unit: str) -> str:
    if unit == SECONDS:
        return f"{value * 1e6:.3g} us" if value < 1e-3 else f"{value * 1e3:.3g} ms"
    return f"{value / 1e9:.3g} GB/s" if unit == BYTES_PER_S else f"{value:,.0f} {clean(unit).replace('per_', 'per ')}"


def _rest(page: Page, fleet: Fleet) -> None:
    if fleet.absent:
        page.flow(
            (Span(f"No report of {counted(len(fleet.absent), 'node')}: ", "error"),), [(Span(fold(fleet.absent)),)]
        )
    for one in fleet.bad:
        page.flow((Span(f"{clean(one.where)}: ", "error"),), [(Span(clean(one.reason)),)], comma="")
    odd = sum(len(group.nodes) for group in fleet.odd)
    gone = (
        f", {counted(len(fleet.bad), 'file')} that {'is' if len(fleet.bad) == 1 else 'are'} no report"
        if fleet.bad
        else ""
    )
    page.blank()
    late = len({node for one in fleet.slow for node, _ in one.nodes})
    slow = f", {late} slow" if late else ""
    page.line(Span(f"{counted(fleet.nodes, 'node')}: {f'{odd} odd' if odd else 'none odd'}{slow}{gone}", "bold"))


def document(fleet: Fleet) -> dict[str, Any]:
    """accelctl.merge/1."""
    return headed(
        "accelctl.merge/1",
        equal=fleet.equal,
        level=fleet.level,
        nodes=fleet.nodes,
        groups=[
            {
                "schema": group.schema,
                "nodes": fold(group.nodes),
                "count": len(group.nodes),
                "odd": bool(group.differences),
                "simulated": group.simulated,
                "level": group.level,
                "words": group.words,
                "differences": [one._asdict() for one in group.differences],
            }
            for group in fleet.groups
        ],
        slow=[
            one._asdict() | {"nodes": [{"node": node, "value": value} for node, value in one.nodes]}
            for one in fleet.slow
        ],
        absent=fold(fleet.absent),
        bad=[{"file": one.where, "node": one.node, "reason": one.reason} for one in fleet.bad],
    )


def nagios_line(fleet: Fleet) -> tuple[str, int]:
    """One report as it is; of several, how many nodes are odd and the worst that is reported."""
    worst = max(fleet.groups, key=lambda one: badness(one.level), default=None)
    odd = sum(len(group.nodes) for group in fleet.odd)
    words = []
    if fleet.nodes > 1:
        words.append(
            f"{fleet.nodes} nodes, {odd} odd" + (f" ({fold(n for g in fleet.odd for n in g.nodes)})" if odd else "")
        )
    if fleet.slow:
        words.append(
            f"slow: {fold(node for one in fleet.slow for node, _ in one.nodes)} ({clean(fleet.slow[0].figure)})"
        )
    words += [f"no report of {fold(fleet.absent)}"] if fleet.absent else []
    words += [f"{clean(one.where)}: {one.reason}" for one in fleet.bad]
    if worst is not None:
        words.append(("simulated: " if worst.simulated else "") + worst.words)
    figures = [("nodes", float(fleet.nodes), ""), ("odd", float(odd), ""), ("bad", float(len(fleet.bad)), "")]
    return nagios.line("ACCELCTL", fleet.level, "; ".join(words) or "no report", figures)
