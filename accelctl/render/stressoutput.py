"""Where the output of `accelctl stress` goes: text or JSON to stdout, JUnit to a file, progress to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelctl.model.stressreport import StressReport
from accelctl.render import notes, stressdocument, term
from accelctl.render.document import dumps, headed
from accelctl.render.output import write
from accelctl.render.stress import report_text


def show(report: StressReport, *, as_json: bool, junit: str) -> None:
    """Print the report, and write what else was asked for."""
    if junit:
        write(junit, stressdocument.junit_text(report))
    if junit != "-":
        term.emit(dumps(stressdocument.document(report)) if as_json else report_text(report, term.current()))


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
    out = term.current()
    lines = [line for row in rows for line in _listed(row, out)]
    term.emit("\n".join([*lines, *(f"{out.glyphs.warn} {problem}" for problem in problems)]) + "\n")


def _listed(row: Any, out: term.Term) -> list[str]:
    candidate = row.candidate
    tier = (
        f"{candidate.manifest.tier}: {candidate.manifest.proven}"
        if candidate.manifest.tier == "proven"
        else candidate.manifest.tier
    )
    head = f"{out.style(candidate.device.id, '1')}  {candidate.manifest.title}  ({tier})"
    lines = [head]
    if row.problem:
        lift = f"; {candidate.lift}" if candidate.lift else ""
        lines.append(f"  left alone: {row.problem}{lift}")
    for dish in row.dishes:
        chain = f" {out.glyphs.arrow} ".join(stage.name for stage in dish.stages)
        lines.append(f"  {dish.name:<16} {'not supported: ' + dish.unsupported if dish.unsupported else chain}")
    if candidate.only_by_name and not row.problem:
        lines.append("  only when it is named: --device " + candidate.device.id)
    return lines
