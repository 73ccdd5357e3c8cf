"""What `accelctl top` does with its options: dashboards, one Snapshot as text or JSON, or one picture.

Imports Textual only for dashboards, and all that draws only when the feed is open, which gathers meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelctl.errors import TimeoutFailure, UsageError
from accelctl.hal.endings import in_order, later, once
from accelctl.hal.uncollected import uncollected
from accelctl.model.snapshot import Snapshot
from accelctl.render import term
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.feeds import Wish, open_feed
from accelctl.tui import terminal
from accelctl.tui.screens import LEAST, screen_of

if TYPE_CHECKING:
    from accelctl.tui.state import State

ONCE_TICKS = 2
"""Rates (busy engines, works a second) need a second look."""
LONGEST_S = 30.0
"""Without any number for so long there will be none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """How it is to be shown; where the numbers come from is a Wish."""

    once: bool = False
    as_json: bool = False
    record: str = ""
    screenshot: str = ""
    screen: str = ""
    size: str = "120x40"
    ticks: int = 10
    """Snapshots before the picture is taken."""
    mouse: bool = True


def run(wish: Wish, ask: Ask) -> int:
    """The exit status. What is wrong with the options is said before anything is opened."""
    size = _check(ask)
    with in_order():
        with uncollected():
            feed = _opened(wish, ask.record)
        if ask.screenshot:
            _write_picture(feed, ask, size)
            return 0
        if ask.once or ask.as_json:
            _show_once(feed, as_json=ask.as_json)
            return 0
        return _show(feed, ask)


def _show(feed: Feed, ask: Ask) -> int:
    """Dashboards. Only the first signal ends them: a second one must not cost what gives the terminal back."""
    with once():
        try:
            with terminal.held() as held:
                with uncollected(keep=True):
                    from accelctl.tui import early
                    from accelctl.tui.state import state_for

                    state = state_for(feed)
                    state.screen = screen_of(ask.screen)
                    early.load(feed, state, held)
                    from accelctl.tui import run as dashboards
                return dashboards.show(feed, state, held, mouse=ask.mouse)
        finally:
            with later():
                feed.close()


def _check(ask: Ask) -> tuple[int, int]:
    screen_of(ask.screen)
    width, cross, height = ask.size.partition("x")
    good = ask.size.isascii() and cross and width.isdigit() and height.isdigit() and len(ask.size) < 9
    size = (int(width), int(height)) if good else (0, 0)
    if size[0] < LEAST[0] or size[1] < LEAST[1]:
        raise UsageError(f"--size {ask.size}: columns and lines, 40x10 or more, as in 120x40")
    if ask.screenshot and (ask.once or ask.as_json):
        raise UsageError(f"--screenshot and {'--once' if ask.once else '--json'} do not go together")
    if ask.screenshot:
        from accelctl.render import output

        output.check(ask.screenshot)
    if not (ask.once or ask.as_json or ask.screenshot):
        terminal.check(os.environ, (sys.stdin, sys.stdout))
    return size


def _opened(wish: Wish, record: str) -> Feed:
    feed = open_feed(wish)
    if not record:
        return feed
    from accelctl.accept.recorded import recorded

    try:
        return recorded(feed, record)
    except BaseException:
        feed.close()
        raise


def _show_once(feed: Feed, *, as_json: bool) -> None:
    from accelctl.render import snapshot as view

    state = _filled(feed, ONCE_TICKS)
    assert state.snapshot is not None
    whole = dataclasses.replace(state.snapshot, sources=state.sources, absences=state.absences)
    if as_json:
        term.emit(view.snapshot_json(whole, feed.title))
    else:
        term.emit(view.snapshot_text(whole, term.current(), feed.title))


def _write_picture(feed: Feed, ask: Ask, size: tuple[int, int]) -> None:
    from accelctl.render import output
    from accelctl.tui import frame
    from accelctl.tui.svg import svg

    state = _filled(feed, ask.ticks)
    state.screen = screen_of(ask.screen)
    output.write(ask.screenshot, svg(frame.draw(state, *size), size[0]))


def _filled(feed: Feed, ticks: int) -> State:
    """So many Snapshots, or as many as a recording has; the feed is closed. TimeoutFailure where none comes."""
    try:
        from accelctl.tui.state import state_for

        state = state_for(feed)
        for snapshot in _first(feed, ticks):
            state.take(snapshot)
    finally:
        feed.close()
    if state.snapshot is None:
        raise TimeoutFailure(f"{feed.title}: no numbers came within {LONGEST_S:.0f} s")
    return state


def _first(feed: Feed, ticks: int) -> Iterator[Snapshot]:
    """What a source has not begun to tell is not missing: such Snapshots count only where no others come."""
    from accelctl.telemetry.exporting import starting

    left, end, early = ticks, time.monotonic() + LONGEST_S, None
    while left and time.monotonic() < end and not getattr(feed, "ended", False):
        found = feed.poll(0.25)
        if found is not None and starting(found):
            early = found
        elif found is not None:
            left, end, early = left - 1, time.monotonic() + LONGEST_S, None
            yield found
    if early is not None:
        yield early
