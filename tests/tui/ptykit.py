"""A program on a pseudo-terminal: what it writes, what it does to the terminal's settings, how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tests.helpers import ROOT, environment

DEADLINE_S = 30.0


class Screen:
    """The master's side of a pseudo-terminal with a program on the other one."""

    def __init__(
        self, *arguments: str, env: Mapping[str, str | None] | None = None, size: tuple[int, int] = (100, 30)
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(slave)
        self.sent = b""
        self.slave = slave
        kept = environment({"TERM": "xterm-256color", "COLUMNS": None, "LINES": None, **(env or {})})
        self.pid = os.fork()
        if not self.pid:
            _become(slave, kept, arguments)
        self.status: int | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)

    def read_until(self, wanted: bytes, deadline_s: float = DEADLINE_S) -> bytes:
        """All that was sent, as soon as ``wanted`` is in what came since the last call."""
        start, end = len(self.sent), time.monotonic() + deadline_s
        while wanted not in self.sent[start:]:
            assert time.monotonic() < end, f"{wanted!r} did not come; the end of what did: {self.sent[-2000:]!r}"
            self._take(0.2)
        return self.sent

    def _take(self, wait_s: float) -> bool:
        """A piece of what was sent; a pseudo-terminal gives at most 4 KiB at a time."""
        if not select.select([self.master], [], [], wait_s)[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # nobody has the other side
            return False
        self.sent += piece
        return bool(piece)

    def drain(self, quiet_s: float = 0.3) -> None:
        """Everything, until nothing comes for a moment."""
        while self._take(quiet_s):
            pass

    def type(self, keys: bytes) -> None:
        """As if typed."""
        os.write(self.master, keys)

    def wait(self, deadline_s: float = DEADLINE_S, *, reading: bool = True) -> int:
        """Its end: the exit status, or 128 + n by a signal. What it still wrote is read, and if ``reading`` before."""
        end = time.monotonic() + deadline_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < end, f"it did not end; it wrote {self.sent[-1000:]!r}"
            if reading and self.master >= 0:
                self._take(0.05)
            else:
                time.sleep(0.01)
        if self.master >= 0:
            self.drain(0.0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status if self.status >= 0 else 128 - self.status

    def settings(self) -> list[Any]:
        """The terminal's settings now."""
        return termios.tcgetattr(self.slave)


def _become(slave: int, env: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    """In the child: a session of its own, whose terminal this is."""
    try:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in (0, 1, 2):
            os.dup2(slave, number)
        os.closerange(3, 256)
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", *arguments], dict(env))
    finally:
        os._exit(127)
