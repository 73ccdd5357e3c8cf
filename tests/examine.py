"""What must hold for every report, whatever the machine: shared by the fuzz tests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from accelctl.abi.rooms import Room
from accelctl.accept import diff, expect, manifest, pages
from accelctl.accept.evaluated import evaluated
from accelctl.accept.saveexpect import manifest_of
from accelctl.hal.allowlist import DEBUGFS, NEVER
from accelctl.hal.root import SysRoot
from accelctl.model.device import KINDS
from accelctl.model.finding import CERTAINTIES, LEVELS, Finding
from accelctl.model.reading import ABSENCES, SCOPES, Reading
from accelctl.model.report import Report
from accelctl.probes.scan import probe
from accelctl.render import term
from accelctl.render.brief import brief_text
from accelctl.render.document import document, dumps, resolve
from accelctl.render.junit import junit
from accelctl.render.text import report_text

SLOWEST_S = 2.0
"""Processor time that one machine may take, however it is damaged."""

_ID = re.compile(r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+")
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_PAGES = frozenset(entry.id for entry in pages.entries())
_TERMS = (
    term.decide(False, {}, "utf-8", None),
    term.decide(True, {"TERM": "dumb"}, "ascii", 60),
    term.decide(True, {"TERM": "xterm-256color"}, "utf-8", 100),
)


def examine(make: Callable[[], SysRoot], rooms: tuple[Room, ...], *, whole: bool = True) -> Report:
    """Probe, render in every form, and check; the machine is made twice, because a root remembers what it has seen.

    ``whole``: also a second look, all widths and the forms that only options ask for; three times the work.
    """
    root = make()
    started = time.process_time()
    report = probe(root, rooms)
    text = _json(report)
    rendered = [report_text(report, one) for one in (_TERMS if whole else _TERMS[:1])]
    spent = time.process_time() - started
    assert spent < SLOWEST_S, f"{spent:.1f} s of processor time"
    _opened(root)
    _document(json.loads(text), report)
    for finding in report.findings:
        _finding(finding)
    for one in rendered[:2]:
        bad = _CONTROL.search(one)
        assert bad is None, f"control character {bad.group()!r} in {one[max(0, bad.start() - 60) :][:120]!r}"
    if whole:
        assert rendered[1].isascii()
        _other_forms(report, rooms)
        assert _json(probe(make(), rooms)) == text, "a second look gives another document"
    return report


def _json(report: Report) -> str:
    """Without line breaks: the encoder that indents is ten times slower."""
    return json.dumps(document(report), allow_nan=False)


def _opened(root: SysRoot) -> None:
    """Only what the list allows, and nothing that climbs."""
    for path in root.opened:
        assert root.allow.effect(path) is not None, path
        assert ".." not in path.split("/"), path
        assert not path.startswith("sys/") or not NEVER.search(path), path
        assert not path.startswith(DEBUGFS), path


def _document(whole: dict[str, Any], report: Report) -> None:
    for pointer, entry in whole["evidence"].items():
        value = resolve(whole, pointer)
        assert entry["source"], pointer
        assert (value is None) == ("reason" in entry), (pointer, value, entry)
    for device in report.devices:
        assert device.kind in KINDS
        assert device.id
        assert not _CONTROL.search(device.id)
        assert whole["volatile"]["devices"].keys() == {one.id for one in report.devices}
        for key, reading in device.facts.items():
            _reading(key, reading)
    for key, reading in report.machine.items():
        _reading(key, reading)


def _reading(key: str, reading: Reading) -> None:
    assert (reading.value is None) == (reading.absence is not None), (key, reading)
    assert reading.scope in SCOPES, key
    assert isinstance(reading.source, str), key
    assert reading.raw is None or isinstance(reading.raw, str), (key, reading)
    if reading.absence is not None:
        assert reading.absence.kind in ABSENCES, (key, reading)
        assert "\n" not in (reading.absence.detail or ""), (key, reading)


def _finding(finding: Finding) -> None:
    assert _ID.fullmatch(finding.id), finding
    assert finding.id in _PAGES, f"{finding.id} has no page"
    assert finding.level in LEVELS, finding
    assert finding.certainty in CERTAINTIES, finding
    assert finding.title.strip(), finding
    assert finding.evidence, finding
    lines = [finding.title, finding.device or "", *finding.fix, *finding.consequences]
    assert all(isinstance(line, str) and not _CONTROL.search(line) for line in lines), finding
    assert not [line for line in (*finding.fix, finding.device or "") if "$(reboot)" in line], finding
    for one in finding.evidence:
        assert isinstance(one.source, str), finding
        assert isinstance(one.raw, str), finding


def _plain(value: object) -> bool:
    """Nothing but JSON's own types."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def _other_forms(report: Report, rooms: tuple[Room, ...]) -> None:
    """The brief table, JUnit, and an expectation saved from the report, which the same report must meet."""
    lines = brief_text(report, _TERMS[0]).splitlines()
    assert len(lines) == len(report.devices)
    ElementTree.fromstring(junit(report, evaluated(report, rooms)))
    compared = expect.compare(manifest.parse(manifest_of(report).encode(), "saved"), report)
    assert not [one for one in compared.differences if not one.open], compared.differences[:3]
    shown = json.loads(dumps(document(report)))
    assert _plain(document(report, evidence=False))
    assert diff.compare(shown, shown, ("a", "b")).same
