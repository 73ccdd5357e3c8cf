"""The contract of a health rule: a small function that looks at a report and yields findings.

Rules of the bus stand in probes/rules/, rules of one chip in backends/<chip>/rules.py; both are written the same way:

    @rule("PCI-LINK-WIDTH", explains=("PERF-SLOW",))
    def narrow_link(ctx: RuleContext) -> Iterator[Finding]: ...

A rule never opens a device node and never guesses: what it could not evaluate it does not report. Each id has a page in
data/explain/ (or backends/<chip>/explain/) that ``accelctl explain ID`` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol

from accelctl.abi.rooms import Directory, Room
from accelctl.hal.root import SysRoot
from accelctl.model.device import Device
from accelctl.model.finding import Evidence, Finding
from accelctl.model.reading import Reading
from accelctl.model.report import Report


class Log(Protocol):
    """The kernel log as rules see it: one text, lines joined by newlines, oldest first, time stamps taken off."""

    @property
    def source(self) -> str:
        """Where the log was read."""

    @property
    def text(self) -> str:
        """All lines."""


def search(text: str, literal: str, pattern: str, lines: int = 0) -> Iterator[re.Match[str]]:
    """Matches of a pattern that spans up to ``lines`` lines (0: as many as it has line breaks) and holds ``literal``.

    A log has up to 200,000 lines from whoever could make the kernel or a driver print them, and there are dozens of
    patterns: a match must not cost more than the lines around its literal. Positions are those in the whole text.
    """
    done, place = 0, text.find(literal)
    if place < 0:  # nearly always: a pattern takes 0.3 ms to make
        return
    compiled, more = re.compile(pattern, re.MULTILINE), lines - 1 if lines else pattern.count("\\n")
    while place >= 0:
        start, end = _lines_around(text, place, more)
        for match in compiled.finditer(text, max(start, done), end):
            yield match
            done = max(match.end(), done)
        line_end = text.find("\n", place)
        place = text.find(literal, max(done, line_end)) if line_end >= 0 else -1


def _lines_around(text: str, place: int, more: int) -> tuple[int, int]:
    """Begin and end of the line at ``place``, with ``more`` lines before and after it."""
    start = text.rfind("\n", 0, place)
    end = text.find("\n", place)
    for _ in range(more):
        start = text.rfind("\n", 0, start) if start >= 0 else start
        end = text.find("\n", end + 1) if end >= 0 else end
    return start + 1, end if end >= 0 else len(text)


@dataclass
class RuleContext:
    """Everything a rule may look at. ``log`` is None where no kernel log could be read: log rules are then counted as
    not run.
    """

    root: SysRoot
    report: Report
    rooms: Directory
    log: Log | None

    def devices(self, chip: str | None = None) -> Iterator[Device]:
        """Devices, of one chip room if named."""
        return (device for device in self.report.devices if chip is None or device.chip == chip)

    def room(self, device: Device) -> Room | None:
        """The room of a device's chip."""
        return self.rooms.by_name.get(device.chip or "")

    def log_matches(self, literal: str, pattern: str) -> Iterator[re.Match[str]]:
        """Matches of a pattern in the log (``^`` and ``$`` are borders of lines); every match must hold ``literal``.

        Only lines with the literal are looked at, with as many beside them as the pattern has line breaks.
        """
        if self.log is not None:
            yield from search(self.log.text, literal, pattern)

    def log_evidence(self, match: re.Match[str]) -> Evidence:
        """The matched lines as evidence."""
        source = self.log.source if self.log is not None else "kernel log"
        return Evidence(source, match.group(0).strip())


RuleFunction = Callable[[RuleContext], Iterable[Finding]]


class Rule(NamedTuple):
    """A rule with the ids it may emit, what it needs ("log" or None), and the ids it makes consequences of its own on
    the same device.
    """

    ids: tuple[str, ...]
    needs: str | None
    explains: tuple[str, ...]
    run: RuleFunction


def rule(*ids: str, needs: str | None = None, explains: tuple[str, ...] = ()) -> Callable[[RuleFunction], RuleFunction]:
    """Mark a function as a rule."""

    def mark(function: RuleFunction) -> RuleFunction:
        function.rule = Rule(ids, needs, explains, function)  # type: ignore[attr-defined]
        return function

    return mark


def rules_of(module: ModuleType) -> list[Rule]:
    """The rules a module defines, in the order they stand there."""
    found = (
        getattr(value, "rule", None)
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__
    )
    return [entry for entry in found if isinstance(entry, Rule)]


def evidence(*readings: Reading | None) -> tuple[Evidence, ...]:
    """Evidence from facts: source and raw text (or the reason of the absence)."""
    found = []
    for reading in readings:
        if reading is not None:
            words = (
                reading.raw
                if reading.raw is not None
                else reading.absence.kind
                if reading.absence
                else str(reading.value)
            )
            found.append(Evidence(reading.source, words))
    return tuple(found)
