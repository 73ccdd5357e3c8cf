"""Textual's driver for a terminal that may vanish at any time."""

from __future__ import annotations

import select
import sys
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class Lasting:
    """A terminal to write to that never fails: what is written to one that is gone is lost, and nobody waits for it.

    An exception in Textual's writing thread would end it, and then its queue would fill up and block the program.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.lost = False

    def write(self, text: str) -> int:
        """As of a file."""
        try:
            return 0 if self.lost else self._file.write(text)
        except (OSError, ValueError):
            self.lost = True
            return 0

    def flush(self) -> None:
        """As of a file."""
        try:
            if not self.lost:
                self._file.flush()
        except (OSError, ValueError):
            self.lost = True

    def fileno(self) -> int:
        """As of a file."""
        return self._file.fileno()


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

    def run_input_thread(self) -> None:
        """Keys, until there are none; a terminal that is gone is no mistake of this program."""
        try:
            super().run_input_thread()
        except OSError:
            self._lasting.lost = True
