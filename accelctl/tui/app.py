"""Textual's part of the dashboards: keys, the mouse, signals, and when to draw."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp, Paste, Resize
from textual.filter import LineFilter
from textual.message import Message

from accelctl.errors import AccelError
from accelctl.hal.endings import ENDINGS
from accelctl.probes.filters import LONGEST
from accelctl.tui import frame, table
from accelctl.tui.driver import Terminal
from accelctl.tui.pane import Pane
from accelctl.tui.pump import Delivery, Pump
from accelctl.tui.state import DETAIL, HELP, TABLE, VIEWS, State
from accelctl.tui.terminal import Held
from accelctl.tui.wanted import Wanted, parse

SILENT_PERIODS = 3
"""After so many periods without numbers their age is shown."""
LOOK_S = 0.5
"""Between two looks whether the terminal is still there."""
SEEK_S, FAR_S = 10.0, 60.0


class Arrived(Message):
    """Something from the feed."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self.delivery = delivery


class Plain(LineFilter):
    """No escape code around any text, for NO_COLOR: what matters has a sign or a word as well."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Texts only."""
        return [Segment(text, Style.null()) for text, _, _ in segments]


class Top(App[int]):
    """The dashboards. Ends with the exit status as its return value; ``failure`` is an exception that ended it."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,Q", "end(0)"),
        Binding("ctrl+c", "end(130)", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        *(Binding(str(number + 1), f"screen({number})") for number in range(len(VIEWS))),
        Binding("tab", "turn(1)", priority=True),
        Binding("shift+tab", "turn(-1)", priority=True),
        Binding("up,k", "go(-1)"),
        Binding("down,j", "go(1)"),
        Binding("pageup", "go(-10)"),
        Binding("pagedown", "go(10)"),
        Binding("home,g", "go(-100000)"),
        Binding("end,G", "go(100000)"),
        Binding("enter", "over('detail')"),
        Binding("question_mark,f1,h", "over('help')"),
        Binding("escape", "leave"),
        Binding("s", "sort"),
        Binding("S", "turn_order"),
        Binding("z", "only_table"),
        Binding("slash", "filter"),
        Binding("space,p", "pause"),
        Binding("left", f"seek({-SEEK_S})"),
        Binding("right", f"seek({SEEK_S})"),
        Binding("shift+left", f"seek({-FAR_S})"),
        Binding("shift+right", f"seek({FAR_S})"),
        Binding("y", "copy"),
        Binding("w", "write"),
    ]

    def __init__(
        self,
        state: State,
        pump: Callable[[Callable[[Delivery], object]], Pump],
        *,
        styles: bool,
        held: Held | None = None,
    ) -> None:
        super().__init__(driver_class=Terminal, ansi_color=True)
        self.state = state
        self.held = held
        """For the driver, which Textual makes."""
        self.pane = Pane()
        self.failure: Exception | None = None
        self._late = False
        self._came = time.monotonic()
        """When numbers came last."""
        self._plain: Sequence[LineFilter] = () if styles else (Plain(),)
        self._pump = pump(lambda delivery: self.post_message(Arrived(delivery)))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Whether there are styles is decided in render.term, not from the environment once more."""
        return self._plain

    def compose(self) -> ComposeResult:
        """One widget."""
        yield self.pane

    async def run_async(self, **options: Any) -> int | None:
        """Signals end it in order, from before the driver has the terminal until it has given it back: an exception
        that is raised anywhere in Textual would leave it half done. Not by the loop's own way to hear of signals: that
        leaves them at their default, which ends the program at once, while the feed is still to be closed."""
        loop = asyncio.get_running_loop()

        def end(number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.action_end, 128 + number)

        before = {number: signal.signal(number, end) for number in ENDINGS}
        try:
            return await super().run_async(**options)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_mount(self) -> None:
        """From now on numbers may come."""
        self.pane.focus()
        if not self.is_headless:
            self.set_interval(LOOK_S, self._look)
        self._pump.start()

    def _look(self) -> None:
        if isinstance(self._driver, Terminal) and self._driver.gone:
            self.action_end(128 + signal.SIGHUP)
            return
        silent_s = self._silent_s()
        if self._late or silent_s != self.state.silent_s:
            self.state.silent_s = silent_s
            self.redraw()

    def _silent_s(self) -> int:
        """Whole seconds since numbers came, once that is too long: a clock that stands still is easily overlooked."""
        newest = self.state.newest
        if newest is None or self.state.seekable:
            return 0
        passed = time.monotonic() - self._came
        return int(passed) if passed > SILENT_PERIODS * max(newest.cost.period_ns / 1e9, 1.0) else 0

    def _handle_exception(self, error: Exception) -> None:
        """Leave in order. Textual would print a page of traceback with the values of all variables."""
        if self.failure is None:
            self.failure = self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def close(self) -> None:
        """End the threads and the feed."""
        if isinstance(self._driver, Terminal):
            self._driver.quit()
        self._pump.close()

    # -- drawing --

    def redraw(self) -> None:
        """Show what the state says now; later, where the terminal has not taken what was drawn before."""
        self._late = isinstance(self._driver, Terminal) and self._driver.behind
        if not self._late:
            self.pane.show(frame.draw(self.state, *self.size))

    def on_resize(self, event: Resize) -> None:
        """Another size."""
        self.pane.show(frame.draw(self.state, event.size.width, event.size.height))

    def on_arrived(self, message: Arrived) -> None:
        """Numbers, or the reason why none will come."""
        try:
            found = message.delivery
            if found.anew:
                self.state.start_anew()
            for snapshot in found.snapshots:
                self.state.take(snapshot)
                self._came = time.monotonic()
            if found.anew:  # where somebody went, even if the picture is stopped
                self.state.snapshot = self.state.newest
            self.state.ended = found.ended
            if isinstance(found.error, AccelError):
                self.state.problem = found.error.message
            elif found.error is not None:
                raise found.error
        finally:
            self._pump.taken()
        self.redraw()

    # -- keys --

    def action_end(self, status: int) -> None:
        """Quit."""
        self.exit(status)

    def action_screen(self, number: int) -> None:
        """Another dashboard."""
        self.state.screen = number
        self.state.turn(TABLE)
        self.redraw()

    def action_turn(self, steps: int) -> None:
        """The next dashboard."""
        self.action_screen((self.state.screen + steps) % len(VIEWS))

    def action_go(self, steps: int) -> None:
        """Another row, or further down in a text."""
        state = self.state
        state.said = ""
        if state.over != TABLE:
            state.scroll += steps
        elif (moment := state.moment()) is not None:
            table.move(state.rows(moment), state.place, steps)
        self.redraw()

    def action_over(self, what: str) -> None:
        """Help or detail, and back with the same key."""
        self.state.turn(TABLE if self.state.over == what else HELP if what == HELP else DETAIL)
        self.redraw()

    def action_leave(self) -> None:
        """Out of a text; else without the filter."""
        if self.state.over == TABLE:
            self.state.wanted = Wanted()
        self.state.turn(TABLE)
        self.redraw()

    def action_sort(self) -> None:
        """By the next column."""
        state = self.state
        table.next_sort(state.view.columns, state.place)
        state.said = f"sorted by {state.place.column.lower()}" if state.place.column else "not sorted"
        self.redraw()

    def action_turn_order(self) -> None:
        """The other way round."""
        place = self.state.place
        place.falling = not place.falling
        self.state.said = f"{'largest' if place.falling else 'smallest'} first" if place.column else "not sorted: s"
        self.redraw()

    def action_only_table(self) -> None:
        """More rows instead of what stands below them, and back."""
        self.state.only_table = not self.state.only_table
        self.redraw()

    def action_pause(self) -> None:
        """Stop and go on."""
        state = self.state
        state.paused, state.said = not state.paused, ""
        if state.seekable:
            self._pump.hold(state.paused)
        if not state.paused:
            state.snapshot = state.newest
        self.redraw()

    def action_seek(self, seconds: float) -> None:
        """Elsewhere in a recording."""
        if not self.state.seekable:
            self.state.said = "only a recording can be wound back: accelctl top --record FILE, then --replay FILE"
            self.redraw()
            return
        self._pump.jump(seconds)
        self.state.said = ""

    def action_copy(self) -> None:
        """The row's numbers to the terminal's clipboard; whether it takes them cannot be known."""
        text = self._text_of_row()
        self.state.said = "nothing to copy"
        if text:
            self.copy_to_clipboard(text)
            self.state.said = "sent to terminal, which may or may not have put it on its clipboard; w writes a file"
        self.redraw()

    def action_write(self) -> None:
        """What is on the screen, into a new file."""
        from accelctl.tui import files

        try:
            self.state.said = f"written to {files.write(self.pane.lines)}"
        except AccelError as error:
            self.state.said = error.message
        self.redraw()

    def _text_of_row(self) -> str:
        from accelctl.tui.detail import detail
        from accelctl.tui.lines import plain

        moment, row = self.state.moment(), self.state.row()
        if moment is None or row is None:
            return ""
        return "\n".join(plain(line) for line in detail(moment, self.state.view.table, row, 120))

    # -- the filter --

    def action_filter(self) -> None:
        """Ask for a filter on the last line but one."""
        self.state.asked = self.state.wanted.text
        self.redraw()

    def on_key(self, event: Key) -> None:
        """While a filter is typed, letters are letters. Here, where bindings are looked up, and not in a widget of its
        own: that would have the keys only after it was mounted, and a fast ``/q`` would quit."""
        if self.state.asked is None:
            return
        event.stop()
        event.prevent_default()
        self._typed(self.state.asked, event)
        self.redraw()

    def _typed(self, text: str, event: Key) -> None:
        state = self.state
        if event.key == "enter":
            state.asked = None
            try:
                state.wanted, state.said = parse(text), ""
            except AccelError as error:
                state.said = f"filter not taken: {error.message}"
        elif event.key == "escape":
            state.asked = None
        elif event.key == "backspace":
            state.asked = text[:-1]
        elif event.key == "ctrl+u":
            state.asked = ""
        elif event.is_printable and event.character is not None:
            state.asked = (text + event.character)[:LONGEST]

    def on_paste(self, event: Paste) -> None:
        """Into the filter."""
        if self.state.asked is not None:
            self.state.asked = (self.state.asked + " ".join(event.text.split()))[:LONGEST]
            self.redraw()

    # -- the mouse --

    def on_click(self, event: Click) -> None:
        """A tab, or a row; a second click on it opens it."""
        state = self.state
        if event.y == 1 and (tab := frame.tab_at(event.x)) is not None:
            self.action_screen(tab)
        elif (row := frame.row_at(state, *self.size, event.y)) is not None:
            state.place.row = row
            if event.chain > 1:
                self.action_over(DETAIL)
            self.redraw()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Down."""
        self.action_go(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Up."""
        self.action_go(-3)
