"""The program in tmux with real keys: what a person sees on a real terminal emulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed: the dashboards were not tried in it")
DEADLINE_S = 40.0


class Pane:
    """A tmux server of our own with one window."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "sh")

    def run(self, *words: str) -> str:
        done = subprocess.run([str(TMUX), "-S", self.socket, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def keys(self, *names: str) -> None:
        self.run("send-keys", *names)

    def until(self, wanted: str) -> str:
        end = time.monotonic() + DEADLINE_S
        while wanted not in (shown := self.run("capture-pane", "-p")):
            assert time.monotonic() < end, f"no {wanted!r} on the screen:\n{shown}"
            time.sleep(0.05)
        return shown


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    found = Pane(tmp_path / "tmux")
    yield found
    found.run("kill-server")


def test_a_session_as_a_person_has_it(pane: Pane) -> None:
    pane.keys(f"cd {ROOT} && PS1='done:$? ' && clear && {sys.executable} -m tests.tui.host mouse", "Enter")
    pane.until("[1 Overview]")
    pane.keys("5")
    pane.until("[5 Processes]")
    pane.keys("Down", "Enter")
    pane.until("processes/10")  # whichever holds the second most
    pane.keys("Escape")
    pane.until("By region")
    pane.keys("/")
    pane.keys("-l", "pid=1002")
    pane.keys("Enter")
    shown = pane.until("only pid=1002")
    assert "1003" not in shown
    pane.keys("?")
    pane.until("another screen")
    pane.run("resize-window", "-x", "80", "-y", "24")
    pane.until("another screen")
    pane.keys("Escape")
    pane.until("By region")  # together with the next key it would be Alt and that key
    pane.keys("q")
    shown = pane.until("done:0")
    assert "Overview" not in shown  # the alternate screen is left, and nothing of it stays
    pane.keys("-l", "echo typed")
    pane.until("echo typed")  # the terminal echoes again
