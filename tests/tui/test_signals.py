"""CLI-05: signals at any moment, and bytes that are no keys, leave the terminal as it was."""

from __future__ import annotations

import os
import random
import signal
import termios
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.events import Key

from accelctl.tui.driver import Keys
from tests.tui.ptykit import Screen
from tests.tui.test_terminal import HOST, SIGNALS, alive, children_of, given_back, up, waits_of


def stopped(screen: Screen) -> None:
    """Wait until it is."""
    end = time.monotonic() + 20
    while True:
        pid, status = os.waitpid(screen.pid, os.WUNTRACED | os.WNOHANG)
        if pid:
            assert os.WIFSTOPPED(status)
            return
        assert time.monotonic() < end, f"it did not stop; it wrote {screen.sent[-1000:]!r}"
        screen._take(0.02)


def test_going_on_after_a_stop_that_nobody_asked_for() -> None:
    """SIGSTOP leaves no time to give the terminal back. Whoever had it meanwhile changed its settings."""
    with Screen(HOST, "mouse") as screen:
        up(screen)
        raw, threads = screen.settings(), len(waits_of(screen.pid))
        os.kill(screen.pid, signal.SIGSTOP)
        stopped(screen)
        screen.drain()
        termios.tcsetattr(screen.slave, termios.TCSANOW, screen.before)
        shown = len(screen.sent)
        os.kill(screen.pid, signal.SIGCONT)
        up(screen)
        for mode in (b"1049", b"1006", b"2004"):
            assert b"\x1b[?" + mode + b"h" in screen.sent[shown:]
        assert screen.settings() == raw
        assert len(waits_of(screen.pid)) == threads
        screen.type(b"q")
        assert screen.wait(5) == 0
        given_back(screen)


def test_going_on_without_a_stop_changes_nothing() -> None:
    with Screen(HOST, "mouse") as screen:
        up(screen)
        for _ in range(3):
            os.kill(screen.pid, signal.SIGCONT)
            screen.read_until(b"\x1b[?1049h")
        screen.type(b"q")
        assert screen.wait(5) == 0
        given_back(screen)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGCONT])
@pytest.mark.parametrize("before", [None, signal.SIGSTOP, signal.SIGTSTP])
def test_going_on_while_it_ends_changes_nothing(before: signal.Signals | None, first: signal.Signals) -> None:
    """``kill %1`` of a shell sends SIGTERM and SIGCONT; of two that came together the kernel gives any first."""
    with Screen(HOST, "mouse") as screen:
        up(screen)
        if before is not None:
            os.kill(screen.pid, before)
            stopped(screen)
            screen.drain()
        shown = len(screen.sent)
        for number in (first, {signal.SIGTERM: signal.SIGCONT, signal.SIGCONT: signal.SIGTERM}[first]):
            os.kill(screen.pid, number)
        assert screen.wait() == 143
        given_back(screen)
        if before == signal.SIGTSTP and first == signal.SIGTERM:
            assert b"\x1b[?1049h" not in screen.sent[shown:]  # it does not take the terminal once more


def test_going_on_again_and_again_while_it_ends() -> None:
    with Screen(HOST, "mouse") as screen:
        up(screen)
        screen.type(b"q")
        end = time.monotonic() + 10
        while os.waitid(os.P_PID, screen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < end
            os.kill(screen.pid, signal.SIGCONT)
            screen._take(0.002)
        assert screen.wait() == 0
        given_back(screen)


JUNK = {
    "0xff": b"\xff",
    "0x80": b"\x80",
    "latin-1": b"\xe9a",
    "no number": b"\x1b[1:2u",
    "no letter": b"\x1b[1114112u",
    "far away": b"\x1b[<64;99999;99999M\x1b[<0;99999;99999M",
    "huge": b"\x1b[48;99999;99999;1;1t",
    "nothing": b"\x1b[48;0;0;0;0t",
    **{f"random {seed}": bytes(random.Random(seed).choices(range(0x80, 0x100), k=3000)) for seed in range(3)},
}


@pytest.mark.parametrize("name", list(JUNK))
def test_what_is_no_key_ends_nothing(name: str) -> None:
    with Screen(HOST, "mouse") as screen:
        up(screen)
        screen.type(JUNK[name] + b"5")
        screen.read_until(b"[5 Processes]")
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)
        assert b"Traceback" not in screen.sent


SEQUENCE = st.tuples(
    st.sampled_from((b"\x1b[", b"\x1b[?", b"\x1b[<", b"\x1b", b"\x1bO")),
    st.text("0123456789;:-", max_size=40).map(str.encode),
    st.sampled_from(tuple(bytes((letter,)) for letter in b"uMmtRyAI$~\xff\x00q")),
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), SEQUENCE), max_size=20))
def test_keys_are_read_after_any_bytes(pieces: list[bytes]) -> None:
    keys = Keys()
    for piece in pieces:
        if b"200~" not in piece:  # a paste, which has an end
            keys.take(piece)
    keys.take(b"\x1b[I")  # ends what was begun
    keys._parser._timeout_time = 0.0
    keys.tick()
    assert [one.key for one in keys.take(b"q") if isinstance(one, Key)] == ["q"]


POINTS = (
    "before-quiet", "after-quiet", "before-picture", "after-picture", "after-load", "before-show", "before-app",
    "after-app", "before-driver", "after-driver", "before-start", "after-start", "before-mount", "before-stop",
    "after-stop",
)  # fmt: skip


@pytest.mark.parametrize(
    ("point", "name"),
    [
        *((point, "SIGTERM") for point in POINTS),
        *((point, one) for point in POINTS[4::3] for one in ("SIGINT", "SIGHUP")),
    ],
)
def test_a_signal_at_any_point_of_the_start_gives_the_terminal_back(point: str, name: str) -> None:
    with Screen(HOST, "mouse", "child", f"at={point},{name}") as screen:
        if point.endswith("stop"):
            up(screen)
            children = children_of(screen.pid)
            screen.type(b"q")
        else:
            children = []
        assert screen.wait() == SIGNALS[name]
        given_back(screen, early=True)
        assert b"Traceback" not in screen.sent
        assert [pid for pid in children if alive(pid)] == []
        if POINTS.index(point) > POINTS.index("before-picture"):
            assert b"\x1b[?1049h" in screen.sent


@pytest.mark.parametrize("point", ["after-picture", "after-load", "before-app", "before-driver", "after-start"])
def test_a_stop_at_any_point_of_the_start_gives_the_terminal_back_meanwhile(point: str) -> None:
    with Screen(HOST, "mouse", f"at={point},SIGTSTP") as screen:
        stopped(screen)
        screen.drain()
        given_back(screen, early=True)
        os.kill(screen.pid, signal.SIGCONT)
        up(screen)
        screen.type(b"q")
        assert screen.wait() == 0
        given_back(screen)
