"""Textual's driver for a terminal that may vanish at any time."""

from __future__ import annotations

import select
import sys
import threading
from io import FileIO
from queue import SimpleQueue
from typing import Any, TextIO

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

LAST_S = 1.0
"""So long the end waits for a terminal that takes no output: then it is left as it is."""
MOST_WAITING = 1 << 16
"""Bytes that a terminal may be behind before no more is drawn for it."""


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


class Terminal(LinuxDriver):
    """Draws on standard output, where Textual would take standard error: stderr is for talk, and may be a file."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert sys.__stdout__ is not None
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

    def close(self) -> None:
        """At the end, and before a stop: give back the terminal, if it lets us."""
        super().close()
        self._lasting.settle(LAST_S)

    def quit(self) -> None:
        """However the program ends: no process ends before its threads, and one that reads from a terminal that has
        vanished is busy for ever."""
        self.exit_event.set()
        super().close()

    def run_input_thread(self) -> None:
        """Keys, until there are none; a terminal that is gone is no mistake of this program."""
        try:
            super().run_input_thread()
        except OSError:
            self._lasting.lost = True
