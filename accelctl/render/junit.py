"""Findings as JUnit XML, the form that CI servers read: one test case per rule and device that was evaluated.

Written by hand, not by ElementTree: it would let control characters through, which no XML reader accepts again, and
device files and log lines do hold them. There is no time stamp, so that two equal runs give equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

import accelctl
from accelctl.model.finding import Finding, rank
from accelctl.model.report import Report

#: Everything that XML 1.0 does not allow, lone surrogates included (W3C Recommendation, production Char).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Table = Mapping[str | None, Sequence[str]]


def junit(report: Report, table: Table, *, fail_on: str = "error") -> str:
    """The document. ``table`` says which rules looked at which device (accept.evaluated); a finding at ``fail_on`` or
    worse is a failure ("never": none is), one below it passes with its words as output; a rule that could not run is
    skipped."""
    suites = [_suite(report, device, ids, fail_on) for device, ids in table.items() if ids]
    return _document("accelctl probe", suites)


def _suite(report: Report, device: str | None, ids: Sequence[str], fail_on: str) -> tuple[list[int], str]:
    """(tests, failures, skipped) and the text of one device's suite."""
    where = device or "machine"
    cases, failures, skipped = [], 0, 0
    for identity in ids:
        found = [one for one in report.findings if one.id == identity and one.device == device]
        bad = [one for one in found if _fails(one, fail_on)]
        gone = not found and identity in report.rules_not_run
        failures += bool(bad)
        skipped += gone
        cases.append(_case(where, identity, found, bad, gone))
    counts = [len(ids), failures, skipped]
    properties = {"tool": f"accelctl {accelctl.__version__}", "root": report.root, "simulated": "false"}
    return counts, _suite_text(where, counts, properties, cases)


def _case(where: str, identity: str, found: Sequence[Finding], bad: Sequence[Finding], gone: bool) -> str:
    start = f"   <testcase{_attributes(classname=f'accelctl.probe.{where}', name=identity, time='0')}"
    if bad:
        worst = max(bad, key=lambda one: rank(one.level))
        message = "; ".join(one.title for one in bad)
        failure = f"<failure{_attributes(message=message, type=worst.level)}>{_text(words(found))}</failure>"
        return f"{start}>{failure}</testcase>"
    if gone:
        return f"{start}><skipped{_attributes(message='not evaluated: the kernel log could not be read')}/></testcase>"
    if found:
        return f"{start}><system-out>{_text(words(found))}</system-out></testcase>"
    return f"{start}/>"


def suite(tool: str, where: str, cases: Sequence[tuple[str, float, str, str]], properties: Mapping[str, str]) -> str:
    """A document of one suite. Cases are (name, seconds, pass|fail|skip, words)."""
    results = [result for _, _, result, _ in cases]
    counts = [len(cases), results.count("fail"), results.count("skip")]
    group, texts = f"{tool.replace(' ', '.')}.{where}", []
    for name, took, result, text in cases:
        start = f"   <testcase{_attributes(classname=group, name=name, time=f'{took:.3f}')}>"
        first = text.partition("\n")[0]
        inner = {
            "fail": f"<failure{_attributes(message=first, type='error')}>{_text(text)}</failure>",
            "skip": f"<skipped{_attributes(message=first)}/>",
        }.get(result, f"<system-out>{_text(text)}</system-out>")
        texts.append(f"{start}{inner}</testcase>")
    return _document(tool, [(counts, _suite_text(where, counts, properties, texts))])


def _document(tool: str, suites: Sequence[tuple[Sequence[int], str]]) -> str:
    """Suites, each with its tests, failures and skipped, under one head."""
    total = [sum(counts) for counts in zip(*(counts for counts, _ in suites), strict=True)] or [0, 0, 0]
    head = f"<testsuites{_attributes(name=tool, **_counts(total))}>"
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *(text for _, text in suites), "</testsuites>\n"])


def _suite_text(where: str, counts: Sequence[int], properties: Mapping[str, str], cases: Sequence[str]) -> str:
    lines = [f"    <property{_attributes(name=name, value=value)}/>" for name, value in properties.items()]
    head = f"  <testsuite{_attributes(name=where, **_counts(counts))}>"
    return "\n".join([head, "   <properties>", *lines, "   </properties>", *cases, "  </testsuite>"])


def words(found: Sequence[Finding]) -> str:
    """Findings in plain lines: level and cause, what was seen, what to do, what follows."""
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.level}: {one.title} ({one.certainty})")
        lines += [f"  seen {seen.source}: {seen.raw}" for seen in one.evidence]
        lines += [f"  do   {step}" for step in one.fix]
        lines += [f"  then {effect}" for effect in one.consequences]
    return "\n".join(lines)


def _fails(finding: Finding, fail_on: str) -> bool:
    return fail_on != "never" and rank(finding.level) >= rank(fail_on)


def _counts(counts: Sequence[int]) -> dict[str, str]:
    return {"tests": str(counts[0]), "failures": str(counts[1]), "errors": "0", "skipped": str(counts[2])}


def _attributes(**values: str) -> str:
    return "".join(f" {name}={quoteattr(_FORBIDDEN.sub('?', value))}" for name, value in values.items())


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("?", text))
