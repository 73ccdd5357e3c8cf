"""Step "bench": how fast is it, against what the link can carry and against a baseline? (`accelctl bench`)"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from accelctl.accept.bench import compare, run, store
from accelctl.accept.bringup.step import FAIL, INCONCLUSIVE, PASS, Came, Job, finding, skipped
from accelctl.model.benchreport import (
    BYTES_PER_S,
    HIDDEN,
    MISSING,
    SECONDS,
    SLOWER,
    BenchReport,
    Change,
    Comparison,
    Figure,
    Skipped,
    Spread,
)
from accelctl.model.bringupreport import Bar, Chart, Fact
from accelctl.model.finding import Finding

IDS = ("BENCH-SLOWER",)
QUICK = ("bandwidth", "roundtrip", "channel")
"""Parts of level 1."""
SHARE = {1: 0.1, 2: 0.5, 3: 0.5}
"""Level -> how much of the box is for measuring; opening, preparing and warming up take the rest."""
MOST = 8


def work(job: Job) -> Came:
    """Measure, and compare with the baseline where there is one."""

    def tick(name: str, number: int, count: int) -> None:
        job.say(f"{name} {number:,} of {count:,}" if count else name)

    subject, order = job.device, job.order
    name = subject.ops_device or subject.memory_device
    parts = QUICK if order.level == 1 else ()
    seconds = max(1.0, job.box_s * SHARE[order.level])
    base = store.read(order.baseline) if order.baseline else None
    report = run.measure((name,), parts, seconds, tick=tick)
    options = "".join(f" --part {part}" for part in parts)
    command = f"accelctl bench --device {name}{options} --seconds {seconds:.0f}"
    if base is None:
        return judged(report, command)
    compared = compare.compare(base, report, order.max_regress)
    return judged(report, f"{command} --compare {shlex.quote(order.baseline)}", compared, order.baseline)


def judged(report: BenchReport, command: str, compared: Comparison | None = None, baseline: str = "") -> Came:
    """A bench report, and what it was compared with, as a step's result. What failed was wanted, and is undecided; what
    the device does not offer is neither."""
    came = _whole(report, command, compared, baseline)
    if not report.ended:
        return came
    if came.result != FAIL:
        came = came._replace(result=INCONCLUSIVE, reason=f"ended by a signal before it was done; {came.reason}")
    return came._replace(cut=True)


def _whole(report: BenchReport, command: str, compared: Comparison | None, baseline: str) -> Came:
    facts = (*_facts(report), *(_compared_facts(report, compared, baseline) if compared is not None else ()))
    charts = tuple(_charts(report, compared))
    if report.gone:
        found = finding("STEP-FAILED", f"bench: {report.gone}", report.device, ((command, report.gone),), (command,))
        return Came(FAIL, report.gone, (found,), facts, charts, command)
    slower = compared.of(SLOWER) if compared is not None else ()
    if slower:
        found = _slower(report, slower, baseline)
        return Came(FAIL, found.title, (found,), facts, charts, command)
    lacking = _lacking(report, compared)
    if lacking:
        return Came(INCONCLUSIVE, lacking, (), facts, charts, command)
    if not report.figures:
        return skipped(_named(report.skipped) or "nothing could be measured")
    left = f"; not measured: {_named(report.skipped)}" if report.skipped else ""
    return Came(PASS, _said(report, compared) + left, (), facts, charts, command)


def _lacking(report: BenchReport, compared: Comparison | None) -> str:
    """What was wanted and is not there; empty: all is."""
    failed = [one for one in report.skipped if one.result == FAIL]
    if failed:
        return f"not measured: {_named(failed)}"
    missing = compared.of(MISSING) if compared is not None else ()
    if missing:
        why = f" ({_named(report.skipped)})" if report.skipped else ""
        names = ", ".join(row.id for row in missing[:MOST])
        return f"in the baseline, and not measured now: {names}{why}"
    if compared is not None and all(row.slowdown is None for row in compared.rows):
        return "nothing of what was measured is in the baseline"
    return ""


def _named(rows: Iterable[Skipped]) -> str:
    return "; ".join(f"{one.what}: {one.why}" for one in rows)


def _said(report: BenchReport, compared: Comparison | None) -> str:
    if compared is None:
        return f"{len(report.figures)} figures measured; no --baseline FILE to compare with"
    number = sum(row.slowdown is not None for row in compared.rows)
    hidden = compared.of(HIDDEN)
    return f"{number} figures compared with the baseline" + (f", of which noise hides {len(hidden)}" if hidden else "")


def _slower(report: BenchReport, rows: Iterable[Change], baseline: str) -> Finding:
    worst = sorted(rows, key=lambda row: -(row.slowdown.median if row.slowdown else 0.0))
    first = worst[0]
    assert first.slowdown is not None
    number = f"{len(worst)} figures" if len(worst) > 1 else "1 figure"
    title = f"{number} slower than the baseline, most {first.id}: {first.slowdown.median:.2f} times as long"
    seen = tuple((f"{baseline} against now", _change(row)) for row in worst[:MOST])
    parts = dict.fromkeys(row.id.partition("/")[0] for row in worst)
    again = " ".join(f"--part {part}" for part in parts)
    fix = (
        f"accelctl bench --device {report.device} {again} --compare {shlex.quote(baseline)}",
        "accelctl top   (does something else use the device or the processors?)",
    )
    return finding("BENCH-SLOWER", title, report.device, seen, fix)


def _change(row: Change) -> str:
    low, high = (row.slowdown.low, row.slowdown.high) if row.slowdown else (0.0, 0.0)
    before = _words(row.base, row.unit) if row.base else "?"
    now = _words(row.now, row.unit) if row.now else "?"
    return f"{row.id}: {before} before, {now} now; {low:.2f} to {high:.2f} times as long"


def _words(spread: Spread, unit: str) -> str:
    return _number(spread.median, unit)


def _number(value: float, unit: str) -> str:
    """As people write it."""
    if unit == BYTES_PER_S:
        return f"{value / 1e9:.3g} GB/s"
    if unit == SECONDS:
        return f"{value * 1e6:.3g} µs" if value < 1e-3 else f"{value * 1e3:.3g} ms"
    return f"{value:,.4g} a second"


def _facts(report: BenchReport) -> Iterator[Fact]:
    for one in report.figures:
        low, high = _number(one.spread.low, one.unit), _number(one.spread.high, one.unit)
        words = f"{one.spread.n} samples, {one.spread.coverage:.0%} interval {low} to {high}"
        if one.ceiling is not None and one.of_ceiling is not None:
            words += f"; {one.of_ceiling:.0%} of {one.ceiling.name} ({one.ceiling.how})"
        yield Fact(one.id, one.spread.median, "measured by accelctl bench, in rounds", words, one.unit, report.device)
    for row in report.ops:
        words = f"most of it in {row.blame}" if row.blame else "nothing outside the noise"
        yield Fact(
            f"through the service/{row.op}",
            row.difference,
            f"service less native, {row.shape}",
            words,
            "seconds",
            report.device,
        )


def _compared_facts(report: BenchReport, compared: Comparison, baseline: str) -> Iterator[Fact]:
    for row in compared.rows:
        if row.slowdown is not None:
            yield Fact(
                f"against baseline/{row.id}", row.word, baseline, f"{_change(row)}, by {row.by}", "", report.device
            )
    if compared.differs:
        yield Fact("against baseline/versions", "differ", baseline, "; ".join(compared.differs), "", report.device)


def _charts(report: BenchReport, compared: Comparison | None) -> Iterator[Chart]:
    slower = {row.id for row in compared.of(SLOWER)} if compared is not None else set()
    base = {row.id: row.base.median for row in compared.rows if row.base is not None} if compared is not None else {}
    for unit, title in ((BYTES_PER_S, "Bandwidth"), (SECONDS, "Time for one")):
        figures = [one for one in report.figures if one.unit == unit]
        if not figures:
            continue
        limits = [base.get(one.id) if compared is not None else _ceiling(one) for one in figures]
        bars = tuple(
            Bar(one.id, one.spread.median, _number(one.spread.median, unit), limit, one.id in slower)
            for one, limit in zip(figures, limits, strict=True)
        )
        name = "the baseline" if compared is not None else "the ceiling"
        yield Chart(title, bars, "medians over rounds", name, logarithmic=True)


def _ceiling(one: Figure) -> float | None:
    return one.ceiling.value if one.ceiling is not None else None
