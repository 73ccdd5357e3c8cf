"""Whether there is a terminal to draw on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO

from accelctl.errors import UsageError

DUMB = ("", "dumb", "unknown")
ONCE = "accelctl top --once"


def check(env: Mapping[str, str], streams: tuple[IO[str] | None, IO[str] | None]) -> None:
    """UsageError, one line, where nothing can be drawn or no key can come. ``streams``: standard input and output."""
    for stream, name in zip(streams, ("input", "output"), strict=True):
        if not _isatty(stream):
            raise UsageError(f"top needs a terminal, and standard {name} is none", ONCE)
    kind = env.get("TERM", "").lower()
    if kind in DUMB:
        raise UsageError(f"top needs a terminal that can place its cursor, and TERM is {kind or 'not set'}", ONCE)


def _isatty(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
