"""`accelctl bench` for people and programs: a table per part that fits 80 columns, and what a comparison says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accelctl.accept.bench import golden as golden_sets
from accelctl.accept.bench import store
from accelctl.model.benchreport import (
    BYTES_PER_S,
    FASTER,
    HIDDEN,
    MISSING,
    NEW,
    PARTS,
    SAME,
    SECONDS,
    SLOWER,
    UNASKED,
    BenchReport,
    Change,
    Comparison,
    Figure,
    GoldenDelta,
    GoldenSet,
    OpRow,
    Spread,
)
from accelctl.render import notes, term
from accelctl.render.document import dumps
from accelctl.render.layout import Line, Page, Span
from accelctl.render.units import counted, seconds

if TYPE_CHECKING:
    from accelctl.accept.bench.asked import Outcome

__all__ = ["document", "show", "table", "text"]

_NAME, _FIGURE, _INTERVAL, _NOTE = 33, 11, 21, 12
"""Columns of the table: 33 + 11 + 2 + 21 + 12 = 79."""
_TITLES = {
    "bandwidth": "bandwidth",
    "roundtrip": "one call of the service",
    "batch": "ops in a batch",
    "stream": "ops in a stream",
    "cache": "translations, new and kept",
    "channel": "data channel and messages",
    "lifecycles": "memory, whole lifecycles",
    "pool": "memory from pools",
    "ops": "ops",
}
MOST_ROWS, MOST_HIDDEN = 20, 8
"""Of what differs, in text; JSON has all."""


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print it. Where noise hides an answer, that is also said on stderr."""
    if as_json:
        term.emit(dumps(documents(outcome)))
    else:
        term.emit(text(outcome, term.current()))
    hidden = outcome.comparison.of(HIDDEN) if outcome.comparison is not None else ()
    if hidden and outcome.comparison is not None:
        many = counted(len(hidden), "figure")
        notes.warn(f"noise hides the answer for {many}; what would settle it: {outcome.comparison.settle}")


def text(outcome: Outcome, terminal: term.Term) -> str:
    """The whole report."""
    page = Page(terminal)
    if outcome.report is not None:
        table(page, outcome.report)
    if outcome.comparison is not None:
        _comparison(page, outcome.comparison)
    if outcome.results is not None:
        _results(page, outcome.results, outcome.delta)
    return page.text()


def table(page: Page, report: BenchReport) -> None:
    """Everything that was measured, part by part."""
    _head(page, report)
    for part in PARTS:
        figures = [one for one in report.figures if one.part == part]
        if part == "ops" and report.ops:
            _ops(page, report.ops)
        elif figures:
            _part(page, part, figures)
    for one in report.skipped:
        page.flow([Span(f"{page.term.glyphs.skip} {one.what}: ", "dim")], [[Span(one.why, "dim")]], hang=2, comma="")
    for note in report.notes:
        page.flow([Span(f"{page.term.glyphs.bullet} ")], [[Span(note)]], hang=2, comma="")
    page.blank()
    style = "ok" if not report.exit_code else "warn"
    page.flow([], [[Span(_verdict(report), style)]], comma="")


def _head(page: Page, report: BenchReport) -> None:
    mark = " SIMULATED" if report.simulated else ""
    print_ = report.fingerprint
    page.flow(
        [], [[Span(report.device, "bold"), Span(f"{mark}  {print_.title}"), Span("")], [Span(f"on {print_.cpu}")]]
    )
    least = min((one.spread.coverage for one in report.figures), default=0.0)
    said = f"{counted(report.rounds, 'round')}; each interval holds its median with {_percent(least)} or more"
    if report.figures:
        page.flow([], [[Span(said, "dim")]], comma="")
    page.blank()


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def _verdict(report: BenchReport) -> str:
    words = f"{counted(len(report.figures), 'figure')} in {seconds(round(report.seconds, 1))}"
    gone = f"; stopped: {report.gone}" if report.gone else ""
    return f"{report.device}: {report.verdict}: {words}{gone}"


def _part(page: Page, part: str, figures: Sequence[Figure]) -> None:
    word = "of ceiling" if any(one.ceiling for one in figures) else "of floor"
    page.line(
        Span(_TITLES[part].ljust(_NAME), "bold"),
        Span("median".rjust(_FIGURE), "dim"),
        Span("interval".rjust(_INTERVAL + 2), "dim"),
        Span(word.rjust(_NOTE), "dim"),
    )
    for one in figures:
        page.line(*_row(one))
    named = {one.ceiling.name if one.ceiling else one.floor_name: one for one in figures}
    for name, one in named.items():
        if name:
            page.flow([Span("  ")], [[Span(f"{word.removeprefix('of ')}: {name}{_floor(one)}", "dim")]], comma="")
    page.blank()


def _floor(figure: Figure) -> str:
    """What it was, where one number says that."""
    if figure.ceiling is not None and figure.ceiling.computed:
        return f", {_number(figure.ceiling.value, figure.unit)} = {figure.ceiling.how}"
    if figure.unit == SECONDS and figure.floor_spread is not None:
        return f", {_number(figure.floor_spread.median, figure.unit)}"
    return ""


def _row(figure: Figure) -> Line:
    spread = figure.spread
    return [
        Span(figure.name[: _NAME - 1].ljust(_NAME)),
        Span(_number(spread.median, figure.unit).rjust(_FIGURE)),
        Span(_interval(spread, figure.unit).rjust(_INTERVAL + 2), "dim"),
        Span(_share(figure).rjust(_NOTE)),
    ]


def _share(figure: Figure) -> str:
    """Of the ceiling in percent; of a floor that is measured in times, how many times as long."""
    if figure.of_ceiling is not None:
        return _percent(figure.of_ceiling)
    if figure.ratio is None:
        return ""
    value = figure.ratio.median
    if figure.more_is_better:
        return _percent(value)
    return f"{value:.2f} x" if value < 10 else f"{value:.0f} x"


def _interval(spread: Spread, unit: str) -> str:
    """Both ends in the unit of the median."""
    step, word = _scale(spread.median, unit)
    low, high = (f"{one / step:.3g}" if one / step < 1000 else f"{one / step:.0f}" for one in (spread.low, spread.high))
    return f"{low} to {high} {word}"


def _number(value: float, unit: str) -> str:
    step, word = _scale(value, unit)
    return f"{value / step:.3g} {word}" if value / step < 1000 else f"{value / step:.0f} {word}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    rates = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
    times = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    if unit == BYTES_PER_S:
        return next((row for row in rates if value >= row[0]), (1.0, "B/s"))
    if unit == SECONDS:
        return next((row for row in times if value >= row[0]), times[-1])
    return 1.0, "/s"


def _ops(page: Page, rows: Sequence[OpRow]) -> None:
    name, wide, last = 25, 19, 16
    words = [Span(word.rjust(wide), "dim") for word in ("native", "service")]
    page.line(Span("ops".ljust(name), "bold"), *words, Span("adds, most by".rjust(last), "dim"))
    sign = "±" if page.term.unicode else "+-"
    for row in rows:
        both = [
            f"{_number(one.median, SECONDS)} {sign}{_percent(one.relative):>5}" for one in (row.native, row.service)
        ]
        blame = f"{row.blame} {_percent(row.share)}" if row.blame else "noise"
        cells = [Span(one.rjust(wide)) for one in both]
        page.line(Span(f"{row.op} {row.shape}"[: name - 1].ljust(name)), *cells, Span(blame.rjust(last)))
    text = "native: the same instruction on a ring of this process, without a service"
    page.flow([Span("  ")], [[Span(text, "dim")]], comma="")
    page.blank()


def _comparison(page: Page, found: Comparison) -> None:
    page.blank()
    page.line(
        Span(f"limit {found.max_regress:g} %".ljust(_NAME), "bold"),
        Span("before".rjust(_FIGURE), "dim"),
        Span("now".rjust(_FIGURE), "dim"),
        Span("takes".rjust(17), "dim"),
    )
    glyphs = page.term.glyphs
    for word, sign, style in ((SLOWER, glyphs.error, "critical"), (FASTER, glyphs.ok, "ok"), (HIDDEN, "?", "warn")):
        rows = sorted(found.of(word), key=lambda one: -(one.slowdown.median if one.slowdown else 0.0))
        most = MOST_HIDDEN if word == HIDDEN else MOST_ROWS
        for row in rows[:most]:
            _changed(page, row, sign, style)
        if len(rows) > most:
            page.line(Span(f"  {len(rows) - most} more are {word}: see --json", "dim"))
    for word, said in ((MISSING, "not measured now"), (NEW, "not in the base"), (UNASKED, UNASKED)):
        names = [row.id for row in found.of(word)]
        if names:
            page.flow(
                [Span(f"{glyphs.skip} {said}: ", "dim")], [[Span(one, "dim")] for one in names[:MOST_ROWS]], hang=2
            )
    for line in found.differs:
        page.flow([Span(f"{glyphs.bullet} ")], [[Span(f"not the same as in the base: {line}")]], hang=2, comma="")
    page.blank()
    style = {SLOWER: "critical", MISSING: "warn", HIDDEN: "warn"}.get(found.verdict, "ok")
    page.flow([], [[Span(_judgement(found), style)]], comma="")
    if found.settle:
        page.flow([Span("  to settle it: ")], [[Span(found.settle, "command")]], comma="")


def _changed(page: Page, row: Change, sign: str, style: str) -> None:
    base, now = (_number(one.median, row.unit) if one else "" for one in (row.base, row.now))
    takes = row.detail
    if row.slowdown is not None:
        takes = f"{row.slowdown.low:.2f} to {row.slowdown.high:.2f} x"
    page.line(
        Span(f"{sign} {row.word.ljust(7)}", style),
        Span(f"{row.id}"[: _NAME - 10].ljust(_NAME - 9)),
        Span(base.rjust(_FIGURE)),
        Span(now.rjust(_FIGURE)),
        Span(takes.rjust(17)),
    )


def _judgement(found: Comparison) -> str:
    mark = " (simulated)" if found.simulated else ""
    words = [f"{len(found.of(word))} {word}" for word in (SLOWER, FASTER, SAME, HIDDEN, MISSING) if found.of(word)]
    said = {
        SLOWER: "slower than the base",
        MISSING: "inconclusive, some of the base is missing",
        HIDDEN: "no regression seen, but noise hides some",
    }.get(found.verdict)
    return f"{found.device}{mark}: {said or found.verdict}: {', '.join(words) or 'nothing to compare'}"


def _results(page: Page, found: GoldenSet, delta: GoldenDelta | None) -> None:
    page.blank()
    mark = " (simulated)" if found.fingerprint.simulated else ""
    device = f"{found.fingerprint.device}{mark}"
    wrong = [row for row in found.rows if not row.right]
    for row in wrong[:MOST_ROWS]:
        page.flow([Span(f"{page.term.glyphs.error} {row.case}: ", "critical")], [[Span(row.detail)]], hang=2, comma="")
    if delta is None:
        page.flow(
            [], [[Span(f"{device}: {counted(len(found.rows), 'result')} kept, seed {found.seed}", "ok")]], comma=""
        )
        return
    signs: dict[str, tuple[str, str]] = {
        "changed": (page.term.glyphs.error, "critical"),
        MISSING: (page.term.glyphs.error, "critical"),
        "drift": ("~", "warn"),
    }
    for one in delta.rows[:MOST_ROWS]:
        sign, style = signs.get(one.word, (page.term.glyphs.skip, "dim"))
        page.flow([Span(f"{sign} {one.word} {one.case}: ", style)], [[Span(one.detail)]], hang=2, comma="")
    if len(delta.rows) > MOST_ROWS:
        page.line(Span(f"  {len(delta.rows) - MOST_ROWS} more: see --json", "dim"))
    for line in delta.differs:
        page.flow(
            [Span(f"{page.term.glyphs.bullet} ")], [[Span(f"not the same as in the set: {line}")]], hang=2, comma=""
        )
    page.blank()
    page.flow([], [[Span(_golden_verdict(device, delta), "critical" if delta.exit_code else "ok")]], comma="")


def _golden_verdict(device: str, delta: GoldenDelta) -> str:
    counts = golden_sets.kinds(delta.rows)
    words = [f"{delta.equal} with the same bytes"] + [f"{count} {word}" for word, count in counts.items()]
    words_of = {"changed": "results changed", MISSING: "results are missing", "drift": "results drifted"}
    said = next((said for word, said in words_of.items() if word in counts), "results are the same")
    first = f"; the first one is {delta.first.case}" if delta.first is not None else ""
    return f"{device}: {said}: {', '.join(words)}{first}"


def documents(outcome: Outcome) -> dict[str, Any]:
    """What was asked for: a report with its comparison, or a golden set with its own."""
    found: dict[str, Any] = {}
    if outcome.report is not None:
        found = document(outcome.report)
    elif outcome.results is not None:
        found = golden_sets.document(outcome.results)
    if outcome.comparison is not None:
        found["comparison"] = comparison(outcome.comparison)
    if outcome.delta is not None:
        found["golden"] = delta(outcome.delta)
    findings = [one for part in ("comparison", "golden") for one in found.get(part, {}).pop("findings", ())]
    return found | {"findings": findings}


document: Callable[[BenchReport], dict[str, Any]] = store.document
"""A report as JSON values, as --save writes it."""


def comparison(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON values; ``findings`` has what is slower or missing."""
    slower = [
        _finding("BENCH-SLOWER", found.device, f"{row.id} takes {row.slowdown.median:.2f} times as long as in the base")
        for row in found.of(SLOWER)
        if row.slowdown is not None
    ]
    missing = [
        _finding("BENCH-MISSING", found.device, f"{row.id} is in the base and could not be measured now")
        for row in found.of(MISSING)
    ]
    told = {"verdict": found.verdict, "exit_code": found.exit_code}
    return {**told, **store.plain(found), "findings": slower + missing}


def delta(found: GoldenDelta) -> dict[str, Any]:
    """A comparison of results as JSON values."""
    identities = {"changed": "OPS-WRONG-RESULT", MISSING: "BENCH-MISSING"}
    findings = [
        _finding(identities[row.word], found.device, f"{row.case}: {row.detail}")
        for row in found.rows
        if row.word in identities
    ]
    first = found.first.case if found.first is not None else None
    return {"exit_code": found.exit_code, "first": first, **store.plain(found), "findings": findings}


def _finding(identity: str, device: str, title: str) -> dict[str, str]:
    return {"id": identity, "level": "error", "device": device, "title": title}
