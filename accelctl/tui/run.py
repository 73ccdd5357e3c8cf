"""From an open feed to dashboards on a terminal, and back to a terminal as it was."""

from __future__ import annotations

from functools import partial

from accelctl.hal.endings import later
from accelctl.render import term
from accelctl.telemetry.feed import Feed
from accelctl.tui.app import Top
from accelctl.tui.pump import Pump
from accelctl.tui.state import State
from accelctl.tui.terminal import Held


def show(feed: Feed, state: State, held: Held, *, mouse: bool = True) -> int:
    """Dashboards until somebody ends them; the exit status. The feed is open already, and what it forks is there:
    Textual has threads. It is closed here."""
    app = None
    try:
        app = Top(state, partial(Pump, feed), styles=term.current().colors is not None, held=held)
        status = app.run(mouse=mouse)
    finally:
        with later():
            if app is not None:
                app.close()
            else:
                feed.close()
    if app.failure is not None:
        raise app.failure
    return status or 0
