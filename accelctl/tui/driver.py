"""Textual's driver for a terminal that may vanish at any time."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from io import FileIO
from queue import SimpleQueue
from typing import Any, TextIO

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.message import Message

from accelctl.tui import terminal
from accelctl.tui.terminal import Held, settings

LAST_S = 1.0
"""So long the end waits for a terminal that takes no output: then it is left as it is."""
MOST_WAITING = 1 << 16
"""Bytes that a terminal may be behind before no more is drawn for it."""
LOOK_MS, READ = 100, 4096
LARGEST = 4096
"""Columns or lines of a terminal that tells its size among the keys."""
LEAVE = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?1004l\x1b[<u"
    + terminal.LEAVE
)
"""Whatever Textual's driver switches on, off again, for where it did not get so far."""
KITTY = re.compile("\x1b\\[>([0-9]+)u")
"""Puts flags of the keyboard on a pile, from which only one is taken at the end; with = in the place of > it only sets
the topmost."""


class Lasting:
    """A terminal to write to that never fails and never blocks: what is written to one that is gone is lost, and one
    that takes nothing (a stalled connection) holds up a thread that nobody waits for.

    An exception or a wait in Textual's writing thread would fill its queue, and then block keys and signals as well.
    The thread writes past Python's buffer: its lock would hold up the interpreter's end.
    """

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self._raw = FileIO(file.fileno(), "w", closefd=False)
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._taken = threading.Condition()
        self.waiting = 0
        """Bytes that the terminal has not taken."""
        self.lost = False
        threading.Thread(target=self._run, name="accelctl-terminal", daemon=True).start()

    def write(self, text: str) -> int:
        """As of a file."""
        data = text.encode(self._file.encoding, "replace")
        with self._taken:
            self.waiting += len(data)
        self._queue.put(data)
        return len(text)

    def flush(self) -> None:
        """As of a file."""

    def fileno(self) -> int:
        """As of a file."""
        return self._file.fileno()

    def settle(self, most_s: float) -> None:
        """Wait until all is written, or is lost, or for so long."""
        with self._taken:
            self._taken.wait_for(lambda: self.lost or not self.waiting, most_s)

    def _run(self) -> None:
        while True:
            data = self._queue.get()
            try:
                self._put(memoryview(data))
            except (OSError, ValueError):
                self.lost = True
            with self._taken:
                self.waiting -= len(data)
                self._taken.notify_all()

    def _put(self, left: memoryview) -> None:
        while left and not self.lost:
            written = self._raw.write(left)
            if written is None:  # somebody else made it one that does not block
                select.select((), (self._raw,), ())
            else:
                left = left[written:]


class Keys:
    """What comes from a terminal, as Textual's messages. Bytes that are no UTF-8 and sequences that Textual's parser
    breaks on are no keys, and nothing more: a terminal sends what is pasted, and a bad line whatever it likes."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._parser = XTermParser(debug)

    def take(self, data: bytes) -> list[Message]:
        """What these bytes complete. Letter by letter, so that of a bad sequence nothing else is lost."""
        found = [message for letter in self._decode(data) for message in self._told(partial(self._parser.feed, letter))]
        return [one for one in found if not isinstance(one, Resize) or _sized(one)]

    def tick(self) -> list[Message]:
        """What is complete because nothing more came."""
        return self._told(self._parser.tick)

    def _told(self, ask: Callable[[], Iterable[Message]]) -> list[Message]:
        try:
            return list(ask())
        except Exception:
            old, self._parser = self._parser, XTermParser(self._debug)
            self._parser.mouse_pixels = old.mouse_pixels
            self._parser.terminal_size = old.terminal_size
            self._parser.terminal_pixel_size = old.terminal_pixel_size
            return []


def _sized(resize: Resize) -> bool:
    return 0 < resize.size.width <= LARGEST and 0 < resize.size.height <= LARGEST


class Terminal(LinuxDriver):
    """Draws on standard output, where Textual would take standard error: stderr is for talk, and may be a file.

    Signals that stop it and let it go on are dealt with in the event loop: Textual's own handlers write in the midst of
    whatever runs, and might wait for a lock that it holds.
    """

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        assert sys.__stdout__ is not None
        self._context = copy_context()  # the other one's __init__ lets signals come
        self._on = self._away = False
        """Whether it has the terminal; whether it is to take it as soon as it goes on."""
        self._opening: list[str] = []
        """What switched all modes on."""
        self._opens = False
        self._raw: list[Any] | None = None
        """The terminal's settings while it has it."""
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._held: Held = getattr(app, "held", None) or Held()
        self._lasting = Lasting(sys.__stdout__)
        self._file: Any = self._lasting

    @property
    def gone(self) -> bool:
        """Whether the terminal was closed: reading from it says so before any signal, and without one in a session of
        its own."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        ended = select.POLLHUP | select.POLLERR | select.POLLNVAL
        return self._lasting.lost or any(event & ended for _, event in poll.poll(0))

    @property
    def behind(self) -> bool:
        """Whether the terminal has yet to take so much that another picture would only make it later."""
        return self._lasting.waiting > MOST_WAITING

    def write(self, data: str) -> None:
        """Nothing while the terminal is somebody else's: nobody would take it from Textual's queue, which holds 30."""
        if self._opens:
            self._opening.append(data)
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().write(data)

    def start_application_mode(self) -> None:
        """Take the terminal. In the background Textual stops the process, and this is called again when it goes on."""
        if not self._away:
            self._held.pause()
        self._held.drawn, self._held.leaving = True, LEAVE
        thread, self._opening, self._opens = self._key_thread, [], True
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._opens = False
        self._on = self._key_thread is not thread
        self._away = not self._on
        if self._on:
            self.attrs_before = self._held.before
            self._raw = settings(self.fileno)
        else:
            self._held.drawn = False

    def stop_application_mode(self) -> None:
        """Give it back. In the background its settings are somebody else's by now."""
        if self._on:
            self._on = False
            if not self._held.foreground:
                self.attrs_before = None
            super().stop_application_mode()
            self._held.drawn = False

    def close(self) -> None:
        """At the end, and before a stop: give back the terminal, if it lets us."""
        super().close()
        self._lasting.settle(LAST_S)

    def quit(self) -> None:
        """However the program ends: no process ends before its threads, and one that reads from a terminal that has
        vanished is busy for ever."""
        self.exit_event.set()
        super().close()

    # -- stopping and going on --

    def _sigtstp_application(self, *_: object) -> None:
        if not self._soon(self._stop):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        self._soon(lambda: self._loop.call_soon(self._go_on, context=self._context))

    def _soon(self, call: Callable[[], object]) -> bool:
        """Whether the loop will call it. One turn later for SIGCONT: what ends the program, and came with it, is first
        (``kill %1`` sends SIGTERM and SIGCONT)."""
        try:
            self._loop.call_soon_threadsafe(call, context=self._context)
        except RuntimeError:  # it is closed, and the terminal given back
            return False
        return True

    def _stop(self) -> None:
        if self._on:
            self.suspend_application_mode()
            self._away = self._must_signal_resume = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        """After a stop. One that nobody asked us for (SIGSTOP) has left us the terminal, but not as it was: whoever had
        it meanwhile made it their own. How it was at first is known all the same, and keys are read already."""
        if self._app._exit:
            return
        if self._away:
            self.resume_application_mode()
        elif self._on:
            if self._raw is not None:
                with suppress(termios.error):
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self._raw)
            for text in self._opening:
                self.write(KITTY.sub("\x1b[=\\1u", text))
            self._app.refresh()

    # -- keys --

    def run_input_thread(self) -> None:
        """Keys, until there are none; a terminal that is gone is no mistake of this program, and what is one is told as
        any other: Textual would print pages, and end with 0."""
        try:
            self._read()
        except OSError:
            self._lasting.lost = True
        except Exception as error:
            if not self._loop.is_closed():
                self._app.call_later(self._app._handle_exception, error)

    def _read(self) -> None:
        keys, poll = Keys(self._debug), select.poll()
        poll.register(self.fileno, select.POLLIN)
        while not self.exit_event.is_set():
            if poll.poll(LOOK_MS):
                data = os.read(self.fileno, READ)
                if not data:  # gone, or somebody's Ctrl-D before the modes were set again
                    self.exit_event.wait(LOOK_MS / 1000)
                for message in keys.take(data):
                    self.process_message(message)
            for message in keys.tick():
                self.process_message(message)
        if poll.poll(LOOK_MS):  # a late answer of the terminal's, which a shell would take for a line
            os.read(self.fileno, READ)
