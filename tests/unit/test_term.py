"""Colour, width and glyphs: every combination of switches that people meet, and that both kinds of sinks get."""

import io
from collections.abc import Iterator

import pytest

from accelctl.render import term

XTERM = {"TERM": "xterm-256color"}


@pytest.fixture(autouse=True)
def no_switches() -> Iterator[None]:
    term.configure()
    yield
    term.configure()


@pytest.mark.parametrize(
    ("tty", "env", "colors"),
    [
        (True, XTERM, "256"),
        (True, XTERM | {"NO_COLOR": "1"}, None),
        (True, XTERM | {"NO_COLOR": ""}, "256"),
        (True, XTERM | {"NO_COLOR": "1", "FORCE_COLOR": "1"}, None),
        (False, XTERM | {"NO_COLOR": "1", "FORCE_COLOR": "1"}, None),
        (True, XTERM | {"FORCE_COLOR": "0"}, None),
        (True, XTERM | {"FORCE_COLOR": "false"}, None),
        (True, XTERM | {"FORCE_COLOR": ""}, "256"),
        (False, XTERM | {"FORCE_COLOR": "1"}, "256"),
        (False, {"FORCE_COLOR": "1"}, "standard"),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, "standard"),
        (True, {"TERM": "dumb"}, None),
        (True, {"TERM": ""}, None),
        (True, {}, None),
        (True, {"TERM": "unknown"}, None),
        (True, {"TERM": "vt220"}, None),
        (True, {"TERM": "vte-256color"}, "256"),
        (True, {"TERM": "linux"}, "standard"),
        (True, {"TERM": "screen-256color"}, "256"),
        (True, {"TERM": "tmux-256color", "COLORTERM": "truecolor"}, "truecolor"),
        (True, {"TERM": "xterm", "COLORTERM": "24bit"}, "truecolor"),
        (True, {"TERM": "xterm-direct"}, "truecolor"),
        (True, {"TERM": "dumb", "COLORTERM": "truecolor"}, None),
        (False, XTERM | {"COLORTERM": "truecolor"}, None),
    ],
)
def test_colour(tty: bool, env: dict[str, str], colors: str | None) -> None:
    assert term.decide(tty, env, "utf-8", 80).colors == colors


def test_command_line_wins_over_environment() -> None:
    term.configure("always")
    assert term.decide(False, XTERM | {"NO_COLOR": "1"}, "utf-8", None).colors == "256"
    term.configure("never")
    assert term.decide(True, XTERM | {"FORCE_COLOR": "1"}, "utf-8", 80).colors is None


@pytest.mark.parametrize(
    ("tty", "columns_variable", "reported", "width"),
    [
        (True, None, 120, 120),
        (True, "100", 120, 100),
        (True, "0", 120, 120),
        (True, "-5", 120, 120),
        (True, "wide", 120, 120),
        (True, "²", 120, 120),
        (True, None, 0, 80),
        (True, None, None, 80),
        (False, "40", None, None),
        (False, None, None, None),
    ],
)
def test_width(tty: bool, columns_variable: str | None, reported: int | None, width: int | None) -> None:
    env = {} if columns_variable is None else {"COLUMNS": columns_variable}
    assert term.decide(tty, env, "utf-8", reported).width == width


@pytest.mark.parametrize(
    ("encoding", "env", "unicode"),
    [
        ("utf-8", {}, True),
        ("UTF8", {}, True),
        ("ascii", {}, False),
        ("ANSI_X3.4-1968", {}, False),
        ("latin-1", {}, False),
        (None, {}, False),
        ("utf-8", {"ACCELCTL_ASCII": "1"}, False),
        ("utf-8", {"ACCELCTL_ASCII": "0"}, True),
    ],
)
def test_glyphs_follow_the_encoding(encoding: str | None, env: dict[str, str], unicode: bool) -> None:
    out = term.decide(False, env, encoding, None)
    assert out.unicode is unicode
    assert out.glyphs is (term.UNICODE if unicode else term.ASCII)


def test_ascii_switch() -> None:
    term.configure(ascii_only=True)
    assert term.decide(True, XTERM, "utf-8", 80).glyphs is term.ASCII


def test_ascii_glyphs_are_ascii() -> None:
    assert all(sign.isascii() for sign in term.ASCII)


def test_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert term.current(stream).tty is False


def test_rich_console_never_cuts_in_a_pipe() -> None:
    """A table wider than 80 columns arrives whole, with an identity column that is not folded."""
    from rich.table import Table

    out = io.StringIO()
    table = Table("id", *[f"column {i}" for i in range(20)])
    table.add_row("0000:03:00.0", *["x" * 30] * 20)
    term.console(out).print(table)
    text = out.getvalue()
    assert "x" * 30 in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) > 600


def test_rich_console_obeys_forced_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "screen-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    term.console(out).print("red", style="bold #ff1234")
    assert "\x1b[" in out.getvalue()
    assert "38;2;" not in out.getvalue(), "24-bit colour where the terminal has 256"
