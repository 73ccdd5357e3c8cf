"""What the dashboards remember between two pictures: data as it came in, and where the user is."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from accelctl.model.snapshot import EventMark, Gone, Snapshot
from accelctl.probes.filters import Facts
from accelctl.render import term
from accelctl.telemetry.feed import Feed
from accelctl.telemetry.history import History
from accelctl.tui import table
from accelctl.tui.detail import Last
from accelctl.tui.moment import Moment, row_id
from accelctl.tui.signs import Signs, signs_for
from accelctl.tui.views.devices import OVERVIEW
from accelctl.tui.views.events import EVENTS
from accelctl.tui.views.memory import MEMORY
from accelctl.tui.views.processes import PROCESSES
from accelctl.tui.views.queues import QUEUES
from accelctl.tui.views.spaces import SPACES
from accelctl.tui.views.view import View
from accelctl.tui.wanted import Wanted

VIEWS = (OVERVIEW, MEMORY, QUEUES, SPACES, PROCESSES, EVENTS)
MOST_EVENTS = 1000

EVERYTHING = Wanted()
TABLE, HELP, DETAIL = "table", "help", "detail"


@dataclasses.dataclass
class State:
    """Everything that a picture follows from, apart from its size."""

    past: History
    signs: Signs
    title: str = ""
    seekable: bool = False
    snapshot: Snapshot | None = None
    """What is shown."""
    newest: Snapshot | None = None
    wanted: Wanted = EVERYTHING
    paused: bool = False
    screen: int = 0
    only_table: bool = False
    """Nothing below the table."""
    over: str = TABLE
    scroll: int = 0
    """Of help and detail."""
    opened: Last | None = None
    """The row that the detail is about, as it was when it was there last."""
    asked: str | None = None
    """The filter as it is being typed."""
    said: str = ""
    """One line about the last key, until the next one."""
    problem: str = ""
    """What is wrong with the feed: why nothing comes any more, what is missing in a recording."""
    ended: bool = False
    """A recording is over."""
    silent_s: int = 0
    """So long nothing has come, where that is longer than it should be."""
    places: list[table.Place] = dataclasses.field(default_factory=lambda: [table.Place() for _ in VIEWS])
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    absences: dict[str, Gone] = dataclasses.field(default_factory=dict)
    events: deque[tuple[int, EventMark]] = dataclasses.field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    known: Callable[[], Iterable[Facts]] = tuple
    """Devices as probe found them, for the filter."""
    heard: int = 0
    """How many events there were."""

    def take(self, snapshot: Snapshot) -> None:
        """One tick. A picture that is stopped stays, the history goes on."""
        self.past.take(snapshot)
        if snapshot.sources or snapshot.absences:  # all of them, whenever one has changed
            self.sources, self.absences = snapshot.sources, snapshot.absences
        self.ended, self.silent_s = False, 0
        for event in snapshot.events:
            self.events.append((self.heard, event))
            self.heard += 1
        self.newest = snapshot
        if not self.paused or self.snapshot is None:
            self.snapshot = snapshot

    def start_anew(self) -> None:
        """After a jump in a recording: what was before it is not what came before it."""
        self.events.clear()
        self.newest = self.snapshot = None

    @property
    def view(self) -> View:
        """The dashboard in sight."""
        return VIEWS[self.screen]

    @property
    def place(self) -> table.Place:
        """Where the user is in its table."""
        return self.places[self.screen]

    def turn(self, over: str) -> None:
        """Table, help or detail. A detail is about the row that is chosen now, until it is closed: no other row takes
        its place. Where there is no row there is no detail."""
        self.over, self.scroll, self.said, self.opened = over, 0, "", None
        if over == DETAIL and self.row() is None:
            self.over, self.said = TABLE, "nothing to open"

    def moment(self) -> Moment | None:
        """What it is drawn from; None before the first Snapshot."""
        return None if self.snapshot is None else self._moment(self.snapshot, self.wanted)

    def _moment(self, snapshot: Snapshot, wanted: Wanted) -> Moment:
        seen = wanted.of(snapshot, self.known())
        happened: Sequence[tuple[int, EventMark]] = self.events
        if wanted.text:
            ids = {device.id for device in seen.devices} | {""}
            happened = [pair for pair in self.events if pair[1].device in ids]
        return Moment(seen, self.past, self.signs, self.sources, self.absences, happened)

    def rows(self, moment: Moment) -> list[Any]:
        """Rows of the dashboard in sight, in the order in which they are seen; of a detail the one that is opened."""
        if self.over == DETAIL and (self.opened or self._open(moment)):
            return [self._now()]
        return table.ordered(self._found(moment), self.view.columns, self.place, moment)

    def _found(self, moment: Moment) -> Sequence[Any]:
        found: Sequence[Any] = self.view.rows(moment) if self.view.rows else getattr(moment.snapshot, self.view.table)
        return found

    def _open(self, moment: Moment) -> bool:
        """Whether there is a row to open; from now on it is also the chosen one."""
        rows = table.ordered(self._found(moment), self.view.columns, self.place, moment)
        if rows:
            row = rows[table.chosen_at(rows, self.place)]
            self.place.row = row_id(row)
            self.opened = Last(self.place.row, row, moment)
        return bool(rows)

    def _now(self) -> Any:
        """The opened row as it is now, whatever the filter says; as it was where it is gone."""
        assert self.opened is not None
        if self.snapshot is not None:
            whole = self._moment(self.snapshot, EVERYTHING)
            for row in self._found(whole):
                if row_id(row) == self.opened.id:
                    self.opened = Last(self.opened.id, row, whole)
                    return row
        return self.opened

    def row(self) -> Any:
        """The chosen row, None where there is none."""
        moment = self.moment()
        rows = self.rows(moment) if moment else []
        return rows[table.chosen_at(rows, self.place)] if rows else None


def state_for(feed: Feed) -> State:
    """The dashboards' memory before the first Snapshot."""
    state = State(History(), signs_for(term.current().unicode), feed.title, feed.seekable)
    state.problem = "; ".join(getattr(feed, "notes", ()))
    state.known = lambda: getattr(feed, "devices", None) or ()
    return state
