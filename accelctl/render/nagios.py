"""The one line and the exit status that Nagios, Icinga and NRPE understand (monitoring-plugins.org, guidelines).

``ACCELCTL WARNING - text | label=value;...``: text before the bar is for people, after it are figures for graphs. The
status is not that of accelctl: 0 ok, 1 warning, 2 critical, 3 unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelctl.render.layout import clean

STATUS = {
    "ok": ("OK", 0),
    "info": ("OK", 0),
    "warn": ("WARNING", 1),
    "error": ("CRITICAL", 2),
    "critical": ("CRITICAL", 2),
}
UNKNOWN = ("UNKNOWN", 3)
MOST = 1000
"""Letters of the text; NRPE of version 2 cuts at 1024 bytes, in the middle of the figures if need be."""

Figure = tuple[str, float, str]
"""(label, value, unit): the unit is one of the guidelines' (s, %, B, c, ...) or empty."""


def line(name: str, level: str, text: str, perfdata: Sequence[Figure] = ()) -> tuple[str, int]:
    """The line, and the exit status of the check. ``name`` stands before the status; a level that is none of
    model.finding is unknown."""
    word, status = STATUS.get(level, UNKNOWN)
    words = clean(text).replace("|", "/")
    words = words if len(words) <= MOST else words[: MOST - 3] + "..."
    figures = " ".join(f"{_label(label)}={value:g}{unit}" for label, value, unit in perfdata)
    return f"{name} {word} - {words}" + (f" | {figures}" if figures else ""), status


def _label(label: str) -> str:
    """Quoted where it holds blanks; a quote in it is doubled, neither an equals sign nor a bar may be in it."""
    plain = clean(label).replace("=", "_").replace("|", "/")
    return "'" + plain.replace("'", "''") + "'" if not plain.replace("_", "").replace("/", "").isalnum() else plain
