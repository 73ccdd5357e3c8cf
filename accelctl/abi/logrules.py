"""Kernel log rules as rows of a table: the same rows give ``probe`` its findings and ``watch`` its fault events.

A module of rules (probes/rules/*.py, backends/<chip>/rules.py) lists its rows as ``LOG_RULES`` and turns them into
findings with

    @rule(*ids(LOG_RULES), needs="log")
    def from_the_log(ctx: RuleContext) -> Iterator[Finding]:
        yield from log_findings(ctx, LOG_RULES)

Two hundred lines of one cause are one finding with a count: matches are folded per (id, device), or per title where a
row says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from accelctl.abi.rules import RuleContext, search
from accelctl.model.finding import Finding, rank
from accelctl.model.report import Report

#: A PCI address as the kernel prints it, and as the group that rows call "device".
BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
DEVICE = rf"(?P<device>{BDF})"

_ADDRESS = re.compile(r"^(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$", re.IGNORECASE)

Text = Callable[[re.Match[str]], str]


class LogRule(NamedTuple):
    """One wording of the kernel log.

    ``literal`` must occur in every match: a line without it costs one substring search. ``pattern`` is searched in
    ``lines`` lines (joined by newlines). ``device`` names the group that holds a PCI address in any spelling or another
    device id, or computes it. ``level`` and ``title`` may depend on the match.
    ``accelerators_only``: a match that names a device which is no accelerator of this report is somebody else's
    business. ``split``: fold per title instead of per (id, device). ``source`` says where the wording was seen.
    """

    id: str
    level: str | Text
    literal: str
    pattern: str
    title: str | Text
    fix: tuple[str, ...] = ()
    device: str | Text | None = "device"
    source: str = ""
    certainty: str = "certain"
    lines: int = 1
    accelerators_only: bool = False
    split: bool = False


class LogEvent(NamedTuple):
    """What one line of the log means."""

    id: str
    device: str | None
    level: str
    title: str


def address(text: str) -> str:
    """A PCI address in the kernel's full form; Xid lines leave the function out, old drivers the domain.

    Other ids stay as they are.
    """
    match = _ADDRESS.match(text.strip())
    if match is None:
        return text.strip()
    domain, bus, slot, function = match.groups()
    return f"{domain or '0000'}:{bus}:{slot}.{function or '0'}".lower()


def ids(rows: Iterable[LogRule]) -> tuple[str, ...]:
    """The ids of rows, each once, in order."""
    return tuple(dict.fromkeys(row.id for row in rows))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _text(value: str | Text, match: re.Match[str]) -> str:
    return value if isinstance(value, str) else value(match)


def device_of(row: LogRule, match: re.Match[str]) -> str | None:
    """The device a match names, None where the wording names none."""
    if isinstance(row.device, str):
        found = match.group(row.device) if row.device in match.re.groupindex else None
    else:
        found = row.device(match) if row.device is not None else None
    return address(found) if found else None


def event(row: LogRule, match: re.Match[str]) -> LogEvent:
    """A match in the words of its row."""
    return LogEvent(row.id, device_of(row, match), _text(row.level, match), _text(row.title, match))


def owner(report: Report, name: str) -> str | None:
    """The accelerator an address belongs to: itself, or the only one below that bridge; None for others' devices."""
    if report.device(name) is not None:
        return name
    below = [device.id for device in report.devices if f"/{name}/" in device.path]
    return below[0] if len(below) == 1 else None


class _Fold:
    """Matches that are one finding."""

    def __init__(self, row: LogRule, first: re.Match[str], what: LogEvent) -> None:
        self.row, self.what, self.first, self.last, self.count = row, what, first, first, 1

    def add(self, match: re.Match[str], what: LogEvent) -> None:
        self.last, self.count = match, self.count + 1
        if rank(what.level) > rank(self.what.level):
            self.what = what

    def finding(self, ctx: RuleContext, device: str | None) -> Finding:
        lines = dict.fromkeys(ctx.log_evidence(match) for match in (self.first, self.last))
        title = self.what.title if self.count == 1 else f"{self.what.title} ({self.count} times in the kernel log)"
        fix = tuple(step.replace("{device}", device or "DEVICE") for step in self.row.fix)
        return Finding(self.row.id, self.what.level, title, device, tuple(lines), fix, self.row.certainty)


#: Matches of one pattern in a log; rules that need more than their rows take it from here.
find = search


def matches(ctx: RuleContext, row: LogRule) -> Iterator[re.Match[str]]:
    """Matches of one row in the log of a report, as long as it is about its devices."""
    for match in find(ctx.log.text if ctx.log is not None else "", row.literal, row.pattern, row.lines):
        name = device_of(row, match)
        if not row.accelerators_only or name is None or owner(ctx.report, name) is not None:
            yield match


def log_findings(ctx: RuleContext, rows: Iterable[LogRule]) -> Iterator[Finding]:
    """Findings of rows: one per (id, device) with a count, first and last line as evidence.

    "{device}" in a fix becomes the address.
    """
    folded: dict[tuple[str, str | None, str | None], _Fold] = {}
    for row in rows:
        for match in matches(ctx, row):
            what = event(row, match)
            name = owner(ctx.report, what.device) or what.device if what.device else None
            key = (row.id, name, what.title if row.split else None)
            if key in folded:
                folded[key].add(match, what)
            else:
                folded[key] = _Fold(row, match, what)
    for (_, name, _), fold in folded.items():
        yield fold.finding(ctx, name)
