"""What is wrong, how bad, on what evidence, and what to type."""

from __future__ import annotations

from typing import NamedTuple

LEVELS = ("ok", "info", "warn", "error", "critical")
CERTAINTIES = ("certain", "likely", "possible")


class Evidence(NamedTuple):
    """A source (path below the root, or a log) and the text that stood there."""

    source: str
    raw: str


class Finding(NamedTuple):
    """One cause. Its consequences fold under it, so that one broken thing is one line.

    ``id`` is stable and has a page for ``accelctl explain``; ``device`` is a Device id or None for the machine;
    ``title`` is the cause in one line; ``fix`` are commands or steps in order.
    """

    id: str
    level: str
    title: str
    device: str | None = None
    evidence: tuple[Evidence, ...] = ()
    fix: tuple[str, ...] = ()
    certainty: str = "certain"
    consequences: tuple[str, ...] = ()


def rank(level: str) -> int:
    """Position of a level in the order of badness."""
    return LEVELS.index(level)
