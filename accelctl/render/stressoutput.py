"""Where the output of `accelctl stress` goes: text or JSON to stdout, JUnit to a file, progress to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelctl.model.stressreport import StressReport
from accelctl.render import notes, stressdocument, term
from accelctl.render.document import dumps, headed
from accelctl.render.layout import Page, Span
from accelctl.render.output import give
from accelctl.render.stress import report_text


def show(report: StressReport, *, as_json: bool, junit: str) -> None:
    """Print the report, then write what else was asked for."""
    give(report, report_text, stressdocument.document, stressdocument.junit_text, as_json=as_json, junit=junit)


def say(line: str) -> None:
    """A line of a sweep, while it goes on."""
    if sys.stderr.isatty():
        notes.note(line)


@contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[str, Any], None]]:
    """A bar on stderr while it runs; nothing where nobody looks (a pipe, a log)."""
    if not enabled:
        yield lambda name, tick: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from accelctl.render.term import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(name: str, tick: Any) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=None)
            bar.update(
                tasks[name], completed=tick.cycles, total=tick.wanted or None, description=f"{name} {tick.phase}"
            )

        yield update


def show_list(listed: tuple[Sequence[Any], Sequence[str]], *, as_json: bool) -> None:
    """What could be run here."""
    rows, problems = listed
    if as_json:
        devices = [
            {
                "device": row.candidate.device.id,
                "chip": row.candidate.target.chip,
                "driver": row.candidate.target.driver,
                "node": row.candidate.target.node,
                "tier": row.candidate.manifest.tier,
                "proven": row.candidate.manifest.proven,
                "left_alone": row.problem or None,
                "lift": row.candidate.lift or None,
                "lifecycles": [
                    {"name": d.name, "stages": [s.name for s in d.stages], "unsupported": d.unsupported or None}
                    for d in row.dishes
                ],
            }
            for row in rows
        ]
        term.emit(dumps(headed("accelctl.stress-list/1", devices=devices, problems=list(problems))))
        return
    page = Page(term.current())
    for row in rows:
        _listed(page, row)
    for problem in problems:
        page.flow([Span(f"{page.term.glyphs.warn} ")], [[Span(problem)]], hang=2)
    term.emit(page.text())


def _listed(page: Page, row: Any) -> None:
    candidate, manifest = row.candidate, row.candidate.manifest
    tier = f"{manifest.tier}: {manifest.proven}" if manifest.tier == "proven" else manifest.tier
    page.flow([], [[Span(candidate.device.id, "bold"), Span(f"  {manifest.title}  ({tier})")]])
    if row.problem:
        lift = f"; {candidate.lift}" if candidate.lift else ""
        page.flow([], [[Span(f"left alone: {row.problem}{lift}")]], indent=2)
    for dish in row.dishes:
        chain = f" {page.term.glyphs.arrow} ".join(stage.name for stage in dish.stages)
        said = f"not supported: {dish.unsupported}" if dish.unsupported else chain
        page.flow([Span(dish.name)], [[Span(said)]], indent=2, hang=17)
    if candidate.only_by_name and not row.problem:
        page.line(Span(f"only when it is named: --device {candidate.device.id}"), indent=2)
