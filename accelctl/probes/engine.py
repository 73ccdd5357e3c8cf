"""Runs the rules and folds what one cause explains into one finding."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType

from accelctl.abi.rooms import Room
from accelctl.abi.rules import Rule, RuleContext, rules_of
from accelctl.errors import AccelError
from accelctl.model.finding import Evidence, Finding, rank
from accelctl.probes import rules as generic

_LONGEST = 1000  # characters of a title or a step
_ANY = "*"  # no id of a device: ids hold a colon


def generic_modules() -> list[ModuleType]:
    """Every module of probes/rules/, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(generic.__path__))
    return [importlib.import_module(f"{generic.__name__}.{name}") for name in names]


def chip_module(room: Room) -> ModuleType | None:
    """The rules of an in-tree room. A third party's code is not imported by probe: its rules come with its plug-in
    (bringup).
    """
    if room.origin != "in-tree" or not (room.folder / "rules.py").is_file():
        return None
    return importlib.import_module(f"accelctl.backends.{room.name}.rules")


def collect(rooms: Iterable[Room]) -> list[Rule]:
    """All rules that apply: the generic ones, and those of the chips that are there."""
    modules = [*generic_modules(), *filter(None, map(chip_module, rooms))]
    return [entry for module in modules for entry in rules_of(module)]


def run(context: RuleContext, rules: list[Rule]) -> list[Finding]:
    """Evaluate; a rule that needs the log while there is none is recorded as not run."""
    report = context.report
    found: list[Finding] = []
    for entry in rules:
        if entry.needs == "log" and context.log is None:
            report.rules_not_run.extend(entry.ids)
            continue
        report.rules_run += 1
        found.extend(_evaluate(entry, context))
    return sort(fold(dedupe([_tidy(one) for one in found]), rules))


def _tidy(finding: Finding) -> Finding:
    """Titles and steps quote names from the machine, which may hold anything: one line each, of a length to read."""
    steps, effects = tuple(map(_line, finding.fix)), tuple(map(_line, finding.consequences))
    return finding._replace(title=_line(finding.title), fix=steps, consequences=effects)


def _line(text: str) -> str:
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * _LONGEST])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _evaluate(entry: Rule, context: RuleContext) -> Iterator[Finding]:
    """What one rule finds. A mistake in it must not cost the report: what it had found stays, and the mistake is told.

    With ACCELCTL_STRICT set, as in the tests, the mistake is raised instead.
    """
    try:
        yield from entry.run(context)
    except Exception as error:
        if isinstance(error, AccelError) or os.environ.get("ACCELCTL_STRICT", "") not in ("", "0"):
            raise
        yield _failure(entry, error)


def _failure(entry: Rule, error: Exception) -> Finding:
    name = f"{entry.run.__module__}.{entry.run.__qualname__}"
    line, trace = 0, error.__traceback__
    while trace is not None:  # the innermost line of the rule's own module: what a report of the mistake needs
        line = trace.tb_lineno if trace.tb_frame.f_globals.get("__name__") == entry.run.__module__ else line
        trace = trace.tb_next
    title = f"the check for {', '.join(entry.ids)} failed on this machine: nothing is known of what it looks for"
    words = f"{type(error).__name__}: {error}".split("\n", 1)[0][:200]
    fix = ("accelctl capture FILE.tar.xz, and send it with this finding: it is a mistake in accelctl",)
    return Finding("RULE-FAILED", "warn", title, None, (Evidence(f"{name} line {line}", words),), fix)


def dedupe(findings: list[Finding]) -> list[Finding]:
    """One finding per (id, device, title): two rules or two log lines may see the same cause."""
    return list({(finding.id, finding.device, finding.title): finding for finding in reversed(findings)}.values())[::-1]


def fold(findings: list[Finding], rules: list[Rule]) -> list[Finding]:
    """Attach consequences to their cause: same device (or a cause of the whole machine), id named by the cause's
    rule.
    """
    explains: dict[str, set[str]] = {}
    for entry in rules:
        for identity in entry.ids:
            explains.setdefault(identity, set()).update(entry.explains)
    places: dict[tuple[str, str | None], list[int]] = {}  # a log may bring thousands of findings: no search per pair
    for index, one in enumerate(findings):
        places.setdefault((one.id, one.device), []).append(index)
        if one.device is not None:
            places.setdefault((one.id, _ANY), []).append(index)
    kept = dict(enumerate(findings))
    for index, cause in enumerate(findings):
        devices = (None, _ANY) if cause.device is None else (cause.device,)
        keys = [(identity, device) for identity in explains.get(cause.id, ()) for device in devices]
        effects = sorted(place for key in keys for place in places.get(key, ()) if place != index and place in kept)
        if effects and index in kept:
            words = tuple(f"{findings[place].id}: {findings[place].title}" for place in effects)
            kept[index] = cause._replace(consequences=cause.consequences + words)
            for place in effects:
                del kept[place]
    return list(kept.values())


def sort(findings: list[Finding]) -> list[Finding]:
    """Worst first, then by device and id: the same machine gives the same order."""
    return sorted(findings, key=lambda one: (-rank(one.level), one.device or "", one.id, one.title))
