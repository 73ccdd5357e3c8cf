"""CLI-05: every kind of end gives the terminal back; CLI-02: colours as asked for, and a refusal where nothing can be
drawn."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from accelctl.render.layout import Span
from accelctl.tui import early
from accelctl.tui.lines import SGR
from accelctl.tui.pane import style_of
from accelctl.tui.terminal import Held
from tests.helpers import ROOT, run_cli
from tests.tui.ptykit import Screen

HOST = "tests.tui.host"
DRAWN = b"Overview"
UP = b"\x1b[?2004h"
"""Textual switches this on; what was drawn before was drawn without it."""
RESTORED = (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?1006l", b"\x1b[?25h")


def switched_off(sent: bytes) -> list[bytes]:
    """Modes that were switched on and not off again, by the last word on each."""
    modes = set(re.findall(rb"\x1b\[\?(\d+)[hl]", sent))
    wrong = []
    for mode in modes:
        last = re.findall(rb"\x1b\[\?" + mode + rb"([hl])", sent)[-1]
        wanted = b"h" if mode in (b"25", b"7") else b"l"
        wrong += [mode] if last != wanted else []
    return wrong


def up(screen: Screen, drawn: bytes = DRAWN) -> None:
    """Wait until Textual has the terminal and has drawn; both may come in one piece."""
    if drawn not in screen.read_until(UP).rpartition(UP)[2]:
        screen.read_until(drawn)


def given_back(screen: Screen, *, early: bool = False) -> None:
    assert switched_off(screen.sent) == []
    assert early or len(re.findall(rb"\x1b\[>\d+u", screen.sent)) == screen.sent.count(b"\x1b[<u")  # the keyboard's
    assert screen.settings() == screen.before
    assert early or [code for code in RESTORED if code not in screen.sent] == []


KEYS = {"q": (b"q", 0), "Ctrl-C": (b"\x03", 130)}
SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}


@pytest.mark.parametrize("key", list(KEYS))
def test_keys_end_it(key: str) -> None:
    typed, status = KEYS[key]
    with Screen(HOST, "mouse") as screen:
        up(screen)
        screen.type(typed)
        assert screen.wait() == status
        given_back(screen)


@pytest.mark.parametrize("name", list(SIGNALS))
def test_signals_end_it(name: str) -> None:
    with Screen(HOST, "mouse") as screen:
        up(screen)
        os.kill(screen.pid, getattr(signal, name))
        assert screen.wait() == SIGNALS[name]
        given_back(screen)


def test_an_exception_in_a_refresh_is_told_after_the_alternate_screen() -> None:
    with Screen(HOST, "mouse", "crash") as screen:
        assert screen.wait() == 7
        given_back(screen)
        after = screen.sent.rpartition(b"\x1b[?1049l")[2]
        assert b"internal error: ZeroDivisionError: a refresh that fails" in after
        assert b"--debug" in after
        assert b"Traceback" not in screen.sent


@pytest.mark.parametrize("by", ["key", "signal"])
def test_stopping_and_going_on(by: str) -> None:
    """Ctrl-Z gives the terminal to the shell, and fg takes it back and draws everything."""
    with Screen(HOST, "mouse") as screen:
        up(screen)
        if by == "key":
            screen.type(b"\x1a")
        else:
            os.kill(screen.pid, signal.SIGTSTP)
        _, status = os.waitpid(screen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        screen.drain()
        assert switched_off(screen.sent) == []
        assert screen.settings() == screen.before
        shown = len(screen.sent)
        os.kill(screen.pid, signal.SIGCONT)
        screen.read_until(b"Overview")
        assert b"\x1b[?1049h" in screen.sent[shown:]
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)


@pytest.mark.parametrize("words", [(), ("child",)])
def test_a_terminal_that_vanishes_ends_it(words: tuple[str, ...]) -> None:
    """The kernel sends SIGHUP to the session. Nothing is left to give back, but nothing may stay either."""
    with Screen(HOST, *words) as screen:
        up(screen)
        children = children_of(screen.pid)
        os.close(screen.slave)
        os.close(screen.master)
        screen.master = screen.slave = -1
        assert screen.wait() == 129
        assert [pid for pid in children if alive(pid)] == []


def test_no_child_stays() -> None:
    with Screen(HOST, "child") as screen:
        up(screen)
        children = children_of(screen.pid)
        assert len(children) == 1
        screen.type(b"q")
        assert screen.wait() == 0
        assert [pid for pid in children if alive(pid)] == []


def test_a_feed_that_hangs_delays_no_key() -> None:
    """Its thread never comes back, keys are answered, and the end does not wait for it."""
    with Screen(HOST, "hang", "mouse") as screen:
        screen.read_until(b"0000:03:00.0")
        screen.type(b"5")
        screen.read_until(b"[5 Processes]", deadline_s=10)
        screen.type(b"q")
        start = time.monotonic()
        assert screen.wait() == 0
        assert time.monotonic() - start < 10
        given_back(screen)


@pytest.mark.parametrize("by", ["q", *SIGNALS])
def test_a_terminal_that_takes_no_output_holds_up_no_end(by: str) -> None:
    """As behind a stalled connection: nothing can be written, settings of the terminal can be put back."""
    with Screen(HOST, size=(200, 60)) as screen:
        up(screen)
        blocked = time.monotonic() + 30
        while "wait_woken" not in waits_of(screen.pid):
            assert time.monotonic() < blocked, waits_of(screen.pid)
            screen.type(b"2?")
            time.sleep(0.02)
        for _ in range(100):  # more pictures than Textual's queue of 30 holds
            screen.type(b"2?")
            time.sleep(0.02)
        if by == "q":
            screen.type(b"q")
        else:
            os.kill(screen.pid, getattr(signal, by))
        assert screen.wait(15, reading=False) == {"q": 0, **SIGNALS}[by]
        assert screen.settings() == screen.before


def test_a_terminal_that_takes_output_again_shows_what_is_now() -> None:
    with Screen(HOST, "mouse", size=(200, 60)) as screen:
        up(screen)
        for _ in range(100):
            screen.type(b"23")
            time.sleep(0.02)
        screen.type(b"5")
        screen.read_until(b"[5 Processes]")
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)


def waits_of(pid: int) -> list[str]:
    """Where its threads wait in the kernel; writing to a terminal that is full: wait_woken."""
    return [Path(f"{task}/wchan").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]


def children_of(pid: int) -> list[int]:
    """Of all its threads."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# -- while Textual is imported: tests.tui.host stops in the middle of it, until a line is typed ------------------------


def asked(screen: Screen) -> None:
    screen.read_until(b"asked")
    assert DRAWN in screen.sent
    assert UP not in screen.sent
    assert screen.settings() != screen.before  # keys are not shown


def test_the_first_picture_is_there_before_textual_and_keys_are_kept() -> None:
    with Screen(HOST, "stop", "mouse") as screen:
        asked(screen)
        screen.type(b"\n5")
        screen.read_until(b"[5 Processes]")
        before = screen.sent.partition(UP)[0].rpartition(b"asked")[2]
        assert b"5" not in before.partition(b"\x1b")[0]  # not shown as it was typed
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)


@pytest.mark.parametrize("by", ["Ctrl-C", *SIGNALS])
def test_an_end_before_textual_gives_the_terminal_back(by: str) -> None:
    with Screen(HOST, "stop", "child") as screen:
        asked(screen)
        children = children_of(screen.pid)
        if by == "Ctrl-C":
            screen.type(b"\x03")
        else:
            os.kill(screen.pid, getattr(signal, by))
        assert screen.wait() == {"Ctrl-C": 130, **SIGNALS}[by]
        given_back(screen, early=True)
        assert b"\x1b[?1049l" in screen.sent
        assert [pid for pid in children if alive(pid)] == []


def test_a_stop_before_textual_waits_until_it_can_give_the_terminal_back() -> None:
    with Screen(HOST, "stop", "mouse") as screen:
        asked(screen)
        screen.type(b"\x1a")
        time.sleep(0.1)
        assert os.waitpid(screen.pid, os.WNOHANG | os.WUNTRACED) == (0, 0)
        screen.type(b"\n")
        _, status = os.waitpid(screen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        screen.drain()
        given_back(screen, early=True)
        os.kill(screen.pid, signal.SIGCONT)
        up(screen)
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)


def test_a_terminal_that_takes_no_output_gets_no_early_picture() -> None:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        while select.select((), (write,), (), 0)[1]:
            os.write(write, b"x" * 4096)
        held = Held()
        held.output = write
        screen = early.Screen(held)
        for _ in range(3):
            screen.show([[Span("a picture")]])
        assert held.stalled
        held.release()
        os.read(read, 1 << 20)
        assert not select.select((read,), (), (), 0)[0]
    finally:
        for one in (read, write):
            os.close(one)


def test_little_is_left_to_import_after_the_pieces() -> None:
    """So that no new release of Textual makes one piece as long as all were."""
    code = "import sys, accelctl.tui.early; from importlib import import_module as load; counts = []\n"
    code += f"for name in {early.PIECES!r}: load(name); counts.append(len(sys.modules))\n"
    code += "from accelctl.tui import run; print(*counts, len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    counts = [int(word) for word in done.stdout.split()]
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) < 150, steps
    assert steps[-1] < 60, steps


def test_styles_are_those_of_the_widget() -> None:
    line = [Span("text", name) for name in SGR]
    screen = early.Screen(Held())
    screen._styles = True
    decoded = Text.from_ansi(screen._row(line))
    for number, name in enumerate(SGR):
        assert decoded.get_style_at_offset(Console(), 4 * number) == style_of(name), name


COLOURS = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])(?:;\d+)*m")
ANY_STYLE = re.compile(rb"\x1b\[[0-9;]*m")


def drawn(env: dict[str, str | None], *words: str) -> bytes:
    with Screen(HOST, *words, env=env) as screen:
        screen.read_until(b"0000:03:00.0")
        screen.type(b"5")
        screen.read_until(b"[5 Processes]")
        screen.type(b"/vendor=q\r")  # in one go: no letter of it may be taken for a key
        screen.read_until(b"Nothing here is vendor=q")
        screen.type(b"q")
        assert screen.wait() == 0
        return screen.sent


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"FORCE_COLOR": "0"}])
def test_no_color_means_no_escape_code_around_any_text(env: dict[str, str | None]) -> None:
    sent = drawn(env)
    assert ANY_STYLE.findall(sent) == []
    assert "▸".encode() in sent  # the chosen row has a sign
    assert "✗ stuck".encode() in sent  # and so has what is wrong


def test_an_empty_no_color_counts_as_unset() -> None:
    assert COLOURS.search(drawn({"NO_COLOR": ""}))


@pytest.mark.parametrize("kind", ["screen-256color", "tmux-256color", "linux", "xterm"])
def test_never_24_bit_codes(kind: str) -> None:
    """The 16 colours that every theme keeps readable are enough, so a terminal that knows no others is safe."""
    sent = drawn({"TERM": kind, "COLORTERM": None})
    assert b"38;2;" not in sent
    assert b"48;2;" not in sent


def test_ascii_draws_in_ascii() -> None:
    """CLI-03: no letter that a serial console lacks, with the switch and without UTF-8."""
    for name, value in (("ACCELCTL_ASCII", "1"), ("PYTHONIOENCODING", "ascii")):
        assert drawn({name: value}).isascii()


@pytest.mark.parametrize("kind", ["dumb", "", None])
def test_refused_where_nothing_can_be_drawn(kind: str | None) -> None:
    with Screen("accelctl", "top", "--demo", env={"TERM": kind}) as screen:
        assert screen.wait() == 2
        assert b"\x1b" not in screen.sent
        assert screen.sent.count(b"\n") == 2
        assert b"accelctl top --once" in screen.sent


def test_refused_without_a_terminal() -> None:
    done = run_cli("top", "--demo", code=2)
    assert done.stdout == ""
    assert "top needs a terminal, and standard input is none" in done.stderr
    assert "accelctl top --once" in done.stderr


@pytest.mark.parametrize("name", list(SIGNALS))
def test_no_sampler_stays_behind(name: str) -> None:
    """The real feed: its children are gone after every kind of end."""
    with Screen("accelctl", "top", "--period", "0.2") as screen:
        up(screen, b"own cost")
        children = children_of(screen.pid)
        assert children
        os.kill(screen.pid, getattr(signal, name))
        assert screen.wait() == SIGNALS[name]
        given_back(screen)
        assert [pid for pid in children if alive(pid)] == []
