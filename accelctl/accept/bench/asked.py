"""What one call of `accelctl bench` asks for, and everything that comes of it: figures, results, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelctl.accept.bench import compare, golden, run, store
from accelctl.errors import UsageError
from accelctl.exits import ExitCode
from accelctl.hal.root import open_root
from accelctl.model.benchreport import STOPPED, BenchReport, Comparison, GoldenDelta, GoldenSet

Tick = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """See commands/bench.py for what each means."""

    device: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    seconds: float = run.SECONDS
    link: str = ""
    save: str = ""
    base: str = ""
    max_regress: float = compare.MAX_REGRESS
    golden: str = ""
    golden_save: str = ""

    @property
    def timed(self) -> bool:
        """Whether figures are wanted: not where only results are asked for."""
        return bool(self.save or self.base or self.parts) or not (self.golden or self.golden_save)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """None: not asked for, or the run ended before it."""

    report: BenchReport | None = None
    comparison: Comparison | None = None
    results: GoldenSet | None = None
    delta: GoldenDelta | None = None

    @property
    def exit_code(self) -> int:
        """A run that was ended says so; else a regression, a changed result or a missing one is 1; 77 where nothing
        was measured."""
        found = [one.exit_code for one in (self.report, self.comparison, self.delta) if one is not None]
        worst = [code for code in found if code not in (int(ExitCode.OK), int(ExitCode.SKIPPED))]
        if self.report is not None and self.report.exit_code in worst:
            return self.report.exit_code
        return worst[0] if worst else max(found, default=0)


def carry_out(request: Request, tick: Tick = lambda name, number, count: None) -> Outcome:
    """All of it. What is wrong with the request, with a file or with the device is told before anything runs."""
    parts = run.checked(request.parts, request.seconds)
    compare.checked(request.max_regress)
    known = golden.read(request.golden) if request.golden else None
    base = store.read(request.base) if request.base else None
    store.writable(request.save)
    store.writable(request.golden_save, golden.SCHEMA)
    if base is not None:
        root = open_root("/")
        compare.same_place(base.fingerprint, run.fingerprint(root, run.choose(root, request.device)))
        parts = parts if request.parts else tuple(name for name in parts if _has(base, name))
    report = comparison = results = delta = None
    if request.golden or request.golden_save:
        results = golden.gather(request.device, tick)
        delta = golden.compare(known, results) if known is not None else None
        if request.golden_save:
            golden.save(request.golden_save, results)
    if request.timed:
        report = run.measure(request.device, parts, request.seconds, link=request.link, tick=tick)
        if base is not None and (report.figures or report.verdict != STOPPED):
            comparison = compare.compare(base, report, request.max_regress)
        if request.save and not report.exit_code:
            store.save(request.save, report)
    return Outcome(report=report, comparison=comparison, results=results, delta=delta)


def _has(base: BenchReport, part: str) -> bool:
    if not base.figures:
        raise UsageError("the base has no figures to compare with", "accelctl bench --save BASE")
    return any(figure.part == part for figure in base.figures)
