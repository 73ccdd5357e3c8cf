"""What options may name: checked before anything is opened, and without what draws it."""

from __future__ import annotations

from accelctl.errors import UsageError

NAMES = ("overview", "memory", "queues", "spaces", "processes", "events")
"""The dashboards, in the order of their keys."""

LEAST = (40, 10)
"""Columns and lines below which nothing can be read."""


def screen_of(name: str) -> int:
    """The number of a dashboard; UsageError for one that there is not."""
    if name and name not in NAMES:
        raise UsageError(f"--screen {name}: the screens are {', '.join(NAMES)}")
    return NAMES.index(name) if name else 0
