"""CLI-05: every kind of end gives the terminal back; CLI-02: colours as asked for, and a refusal where nothing can be
drawn."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import run_cli
from tests.tui.ptykit import Screen

HOST = "tests.tui.host"
DRAWN = b"Overview"
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


def given_back(screen: Screen) -> None:
    assert switched_off(screen.sent) == []
    assert [code for code in RESTORED if code not in screen.sent] == []
    assert screen.settings() == screen.before


KEYS = {"q": (b"q", 0), "Ctrl-C": (b"\x03", 130)}
SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}


@pytest.mark.parametrize("key", list(KEYS))
def test_keys_end_it(key: str) -> None:
    typed, status = KEYS[key]
    with Screen(HOST, "mouse") as screen:
        screen.read_until(DRAWN)
        screen.type(typed)
        assert screen.wait() == status
        given_back(screen)


@pytest.mark.parametrize("name", list(SIGNALS))
def test_signals_end_it(name: str) -> None:
    with Screen(HOST, "mouse") as screen:
        screen.read_until(DRAWN)
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
        screen.read_until(DRAWN)
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
        screen.read_until(DRAWN)
        children = children_of(screen.pid)
        os.close(screen.slave)
        os.close(screen.master)
        screen.master = screen.slave = -1
        assert screen.wait() == 129
        assert [pid for pid in children if alive(pid)] == []


def test_no_child_stays() -> None:
    with Screen(HOST, "child") as screen:
        screen.read_until(DRAWN)
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
        screen.read_until(DRAWN)
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
        screen.read_until(DRAWN)
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
        screen.read_until(b"own cost")
        children = children_of(screen.pid)
        assert children
        os.kill(screen.pid, getattr(signal, name))
        assert screen.wait() == SIGNALS[name]
        given_back(screen)
        assert [pid for pid in children if alive(pid)] == []
