"""What the terminal can show: one place decides about colour, width and glyphs; everything that draws asks here.

Colour (first match wins):
  1. `--color always|never` on the command line (no-color.org: the command line overrides the environment)
  2. NO_COLOR set and not empty: no escape codes at all, not even bold
  3. FORCE_COLOR set and not empty: `0`, `false` or `no` mean no colour, anything else means colour, even into a pipe
  4. stdout is not a terminal, or TERM is unset, empty, `dumb`, `unknown` or a colourless VT: none
  5. COLORTERM `truecolor` or `24bit`, or TERM `*-direct`: 24 bit; TERM `*256*`: 256 colours; else the 16 standard ones

Width: a terminal's columns; None (no limit) when stdout is not a terminal, so that a pipe never gets a cut table.
Glyphs: Unicode only when stdout's encoding is UTF-8 and neither `--ascii` nor ACCELCTL_ASCII asks for plain ASCII.

Nothing here imports rich; `console()` does, when it is called.
"""

import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 1_000_000
"""Columns given to rich for a sink without a width: nothing that accelctl prints is that wide, so nothing is cut."""

FALLBACK_WIDTH = 80
"""Columns of a terminal that does not know its own size (serial consoles report 0)."""

_OFF_WORDS = ("0", "false", "no")


class Glyphs(NamedTuple):
    """Signs that have a plain ASCII stand-in. Meaning is never carried by them alone: the word stands beside it."""

    ok: str
    info: str
    warn: str
    error: str
    critical: str
    skip: str
    bullet: str
    arrow: str
    times: str
    degree: str
    micro: str
    ellipsis: str
    dash: str
    horizontal: str
    vertical: str
    cross: str
    branch: str
    last_branch: str
    pipe: str


UNICODE = Glyphs("✓", "i", "▲", "✗", "‼", "-", "•", "→", "×", "°", "µ", "…", "–", "─", "│", "┼", "├─ ", "└─ ", "│  ")
ASCII = Glyphs("+", "i", "!", "x", "!!", "-", "*", "->", "x", "", "u", "...", "-", "-", "|", "+", "|- ", "`- ", "|  ")


class Term(NamedTuple):
    """What one output stream can show."""

    tty: bool
    width: int | None
    """Columns, or None for no limit."""
    colors: str | None
    """None, "standard" (16), "256" or "truecolor": rich's names for colour systems."""
    unicode: bool

    @property
    def glyphs(self) -> Glyphs:
        """The signs this stream can show."""
        return UNICODE if self.unicode else ASCII

    def style(self, text: str, sgr: str) -> str:
        """Wrap text in an escape code (`sgr`: "1" is bold, "31" red), or return it as it is without colour."""
        return f"\x1b[{sgr}m{text}\x1b[0m" if self.colors else text


class _Switches:
    """What the command line said; set once by the entry point before anything is drawn."""

    color = "auto"
    ascii = False


def configure(color: str = "auto", ascii_only: bool = False) -> None:
    """Take over `--color` (auto, always or never) and `--ascii`."""
    _Switches.color, _Switches.ascii = color, ascii_only


def current(stream: IO[str] | None = None) -> Term:
    """What `stream` (default: stdout) can show, from the environment and the command line's switches."""
    out = sys.stdout if stream is None else stream
    tty = _isatty(out)
    return decide(tty, os.environ, getattr(out, "encoding", None), _columns(out) if tty else None)


def decide(tty: bool, env: Mapping[str, str], encoding: str | None, columns: int | None) -> Term:
    """The decision itself, free of any stream. `columns` is the terminal's own answer (None or 0: unknown)."""
    plain = _Switches.ascii or env.get("ACCELCTL_ASCII", "") not in ("", *_OFF_WORDS)
    utf8 = (encoding or "").lower().replace("-", "").replace("_", "") == "utf8"
    return Term(tty, _width(tty, env, columns), _colors(tty, env), utf8 and not plain)


def _width(tty: bool, env: Mapping[str, str], columns: int | None) -> int | None:
    """COLUMNS wins over the terminal's own size, as in shells; without a terminal there is no limit."""
    if not tty:
        return None
    wanted = env.get("COLUMNS", "")
    if wanted.isascii() and wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return columns or FALLBACK_WIDTH


def _colors(tty: bool, env: Mapping[str, str]) -> str | None:
    forced = _Switches.color == "always"
    if not forced:
        if _Switches.color == "never" or env.get("NO_COLOR"):
            return None
        force = env.get("FORCE_COLOR", "")
        if force.lower() in _OFF_WORDS:
            return None
        forced = bool(force)
    kind = env.get("TERM", "").lower()
    if not forced and (not tty or _colourless(kind)):
        return None
    if env.get("COLORTERM", "").lower() in ("truecolor", "24bit") or kind.endswith("-direct"):
        return "truecolor"
    return "256" if "256" in kind else "standard"


def _colourless(kind: str) -> bool:
    """Terminal types without colour in terminfo: serial consoles usually run as vt100, vt102 or vt220."""
    return kind in ("", "dumb", "unknown") or (kind.startswith("vt") and kind[2:3].isdigit())


def _isatty(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # the stream is closed
        return False


def _columns(stream: IO[str] | None) -> int | None:
    """The terminal's own answer; os.get_terminal_size, because importing shutil costs more than the help text."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream is not None else None
    except (OSError, ValueError):
        return None


def console(stream: IO[str] | None = None) -> "Console":
    """A rich Console that follows the decision above instead of making its own. Imports rich (30 to 50 ms)."""
    from rich.console import Console

    out = sys.stdout if stream is None else stream
    term = current(out)
    return Console(
        file=out,
        force_terminal=term.colors is not None,
        color_system=term.colors,  # type: ignore[arg-type]  # rich spells the same words as a Literal
        no_color=term.colors is None,
        width=term.width or UNLIMITED,
        legacy_windows=False,
        safe_box=not term.unicode,
        emoji=False,
        markup=False,
        highlight=False,
    )


def emit(text: str) -> None:
    """Write data to stdout, with a line break at its end.

    Errors (closed pipe, full disk) are left to the entry point, which turns them into a quiet end or one line.
    """
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def prepare_streams() -> None:
    """Make output robust: a letter the encoding lacks becomes `?`, and a stream closed by the caller becomes a sink.

    Needed for PYTHONIOENCODING=ascii, for LC_ALL=C without UTF-8 mode, and for file names with undecodable bytes.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - lives as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
