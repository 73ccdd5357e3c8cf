"""A program with the dashboards on synthetic numbers, for tests that need a process of its own on a terminal.

``python -m tests.tui.host [crash|child|hang|mouse|stop|at=POINT,SIGNAL] [DEVICES PROCESSES]``: crash raises in a
refresh; child has a child process that must be gone afterwards; hang never answers after the first Snapshot; stop waits
for a key in the middle of the imports; at sends itself that signal at that point of the start. ``python -m
tests.tui.host live ROOT FILE``: the real feed of that machine as fast as it can, and how many Snapshots came, in that
file.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from accelctl.cli import main
from accelctl.hal.endings import in_order
from accelctl.model.snapshot import Snapshot
from accelctl.telemetry.live import LiveFeed
from tests import snapkit
from tests.tui.kit import Ticks

PERIOD_S = 0.05


class Counted(LiveFeed):
    """The real feed, without a pause between two ticks."""

    def __init__(self, root: str, file: str) -> None:
        super().__init__(root, period_s=0.001, budget=0)
        self.file, self.count = Path(file), 0

    def poll(self, timeout_s: float) -> Snapshot | None:
        found = super().poll(timeout_s)
        self.count += found is not None
        if found is not None and self.count % 100 == 0:
            self.file.write_text(str(self.count))
        return found


class Timed(Ticks):
    """One Snapshot after another, a period apart."""

    def __init__(self, words: list[str], period_s: float) -> None:
        numbers = [int(word) for word in words if word.isdigit()] or [4, 8]
        super().__init__([])
        self.found = snapkit.recording(100_000, 1002, devices=numbers[0], processes=numbers[1], simulated=True)
        self.words, self.period_s, self.due = words, period_s, 0.0
        self.child = os.fork() if "child" in words else 0
        if "child" in words and not self.child:
            signal.pause()
            os._exit(0)

    def poll(self, timeout_s: float) -> Snapshot | None:
        if "hang" in self.words and self.next:
            time.sleep(3600)
        left = self.due - time.monotonic()
        if left > 0:
            time.sleep(min(left, timeout_s))
        if left > timeout_s:
            return None
        self.due = time.monotonic() + self.period_s
        self.next += 1
        return next(self.found)

    def close(self) -> None:
        super().close()
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0


def show() -> int:
    """What `accelctl top` does, with another feed."""
    from accelctl.tui import early, entry, frame, terminal

    words = sys.argv[1:]
    terminal.check(os.environ, (sys.stdin, sys.stdout))
    feed: Timed | Counted
    if words[:1] == ["live"]:
        feed = Counted(*words[1:3])
    else:
        feed = Timed(words, float(os.environ.get("PERIOD", PERIOD_S)))
    if "crash" in words:
        original, count = frame.draw, [0]

        def draw(*arguments: object) -> object:
            count[0] += 1
            if count[0] > 3 and "accelctl.tui.app" in sys.modules:
                raise ZeroDivisionError("a refresh that fails")
            return original(*arguments)  # type: ignore[arg-type]

        frame.draw = draw  # type: ignore[assignment]
    if "stop" in words:
        early.import_module = stopping  # type: ignore[assignment,attr-defined]
    if "hang" in words:  # which a feed must not, and a thread lives with
        early.load = lambda *_: None
    for word in words:
        if word.startswith("at="):
            strike(*word.removeprefix("at=").split(","))
    with in_order():
        return entry._show(feed, entry.Ask(mouse="mouse" in words))


def strike(point: str, name: str) -> None:
    """Send that signal to ourselves at that point of the start, once."""
    from accelctl.tui import early, terminal

    number, left = getattr(signal, name), [1]

    def hit() -> None:
        if left:
            left.clear()
            os.kill(os.getpid(), number)

    def around(owner: Any, attribute: str, *, after: bool) -> None:
        original = getattr(owner, attribute)

        @functools.wraps(original)
        def hooked(*arguments: Any, **more: Any) -> Any:
            if not after:
                hit()
            found = original(*arguments, **more)
            if after:
                hit()
            return found

        setattr(owner, attribute, hooked)

    def late() -> None:
        """What is imported only after the early pictures."""
        from accelctl.tui import run
        from accelctl.tui.app import Top
        from accelctl.tui.driver import Terminal

        owner = {"show": run, "app": Top, "driver": Terminal, "start": Terminal, "mount": Top, "stop": Terminal}
        attribute = {"app": "__init__", "driver": "__init__", "mount": "on_mount"}
        names = {"start": "start_application_mode", "stop": "stop_application_mode", "show": "show", **attribute}
        around(owner[what], names[what], after=when == "after")

    when, _, what = point.partition("-")
    if what == "quiet":
        around(terminal.Held, "quiet", after=when == "after")
    elif what == "picture":
        around(early.Screen, "show", after=when == "after")
    elif what == "load":
        around(early, "load", after=when == "after")
    else:
        original = early.load

        def load(*arguments: Any) -> None:
            original(*arguments)
            late()

        early.load = load  # type: ignore[assignment]


def stopping(name: str) -> None:
    """An import in the middle of which somebody types the words of the command line."""
    if name == "textual":
        sys.stdout.write("asked")
        sys.stdout.flush()
        os.read(sys.stdin.fileno(), 1)
    importlib.import_module(name)


if __name__ == "__main__":
    from accelctl import cli

    cli._dispatch = lambda args, state: show()
    sys.exit(main([]))
