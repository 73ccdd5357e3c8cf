"""How far a command is: one line on stderr while it runs, gone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accelctl.render import term
from accelctl.render.output import check

Tick = Callable[[str, int, int], None]
"""What runs now, how many are done, of how many (0: nobody knows)."""


@contextmanager
def progress(*, enabled: bool, junit: str = "", redraws: bool = True) -> Iterator[Tick]:
    """A bar from the first tick on; nothing where nobody looks (not ``enabled``: a pipe, a log).

    ``redraws``: on its own, in between. What measures cannot have that: it would be measured too; there it is drawn
    with each tick. UsageError, before anything runs, where ``junit`` cannot be written.
    """
    check(junit)
    if not enabled:
        yield lambda name, done, count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=term.console(sys.stderr), transient=True, auto_refresh=redraws)
    task = bar.add_task("", total=None)

    def tick(name: str, done: int, count: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=count or None, description=name, refresh=not redraws)

    try:
        yield tick
    finally:
        bar.stop()
